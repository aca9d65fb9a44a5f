"""How log lines look on stderr, for people or as JSON: one line for each record, whatever it holds."""

from __future__ import annotations

import json
import logging
import sys
import threading
from types import TracebackType
from typing import Any

from aiohttp.http_exceptions import HttpProcessingError

from retrieval.request_log import REQUEST_ID
from retrieval.settings import Log

logger = logging.getLogger(__name__)


def set_up_logging(settings: Log) -> None:
    """Format everything that this process writes on stderr from now on, warnings and uncaught errors included."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if settings.format == "json" else TextFormatter())
    logging.basicConfig(level=settings.level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(True)
    logging.getLogger("aiohttp.server").addFilter(no_fault_of_ours)
    sys.excepthook = log_uncaught
    threading.excepthook = lambda lost: log_uncaught(lost.exc_type, lost.exc_value, lost.exc_traceback)
    sys.unraisablehook = lambda lost: log_uncaught(lost.exc_type, lost.exc_value, lost.exc_traceback)


def no_fault_of_ours(record: logging.LogRecord) -> bool:
    """False for a malformed request, which aiohttp logs as an error with a traceback: its line in the request log is
    enough, unless the level is debug."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError) or logger.isEnabledFor(logging.DEBUG)


def log_uncaught(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
    if not issubclass(kind, (KeyboardInterrupt, SystemExit)):
        logger.critical("uncaught %s", kind.__name__, exc_info=(kind, error or kind(), trace))


class TextFormatter(logging.Formatter):
    """Time, level, name, message and the request's id if there is one. Only a traceback adds lines, all indented, so
    nothing that it quotes can look like a line of the log."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own name
        record.message = printable(record.message)
        line = super().formatMessage(record)
        return f"{line} [{request_id}]" if (request_id := REQUEST_ID.get()) else line

    def formatException(self, ei: Any) -> str:  # noqa: N802 - logging's own name
        return indented(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:  # noqa: N802 - logging's own name
        return indented(super().formatStack(stack_info))


def indented(text: str) -> str:
    return "\n".join(f"    {printable(line)}" for line in text.split("\n"))


def printable(text: str) -> str:
    """Without line breaks and terminal control characters."""
    return text if text.isprintable() else text.encode("unicode_escape").decode()


class JsonFormatter(logging.Formatter):
    """One JSON object a line. What a record carries as `fields` are members of their own."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if request_id := REQUEST_ID.get():
            entry["request_id"] = request_id
        entry |= getattr(record, "fields", {})
        if record.exc_info:
            entry["trace"] = self.formatException(record.exc_info)
        line = json.dumps(entry, ensure_ascii=False)
        # JSON does not escape line breaks beyond ASCII, and programs that read lines may split at them.
        return line if line.isprintable() else json.dumps(entry)

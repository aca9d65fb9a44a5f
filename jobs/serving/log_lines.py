"""Log formats on stderr, text or JSON: one line per record, whatever its content."""

from __future__ import annotations

import json
import logging
import sys
import threading
from types import TracebackType
from typing import Any

from retrieval.base.request_id import REQUEST_ID
from retrieval.base.settings import LogSection

logger = logging.getLogger(__name__)


def set_up_logging(settings: LogSection, process: str = "") -> None:
    """Install the log format for this process, including warnings and uncaught exceptions. Lines bear the name of a
    process that has one."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter(process) if settings.format == "json" else TextFormatter(process))
    logging.basicConfig(level=settings.level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(True)
    # Our formats do not show these, and they cost time for every line (Logging HOWTO, "Optimization").
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    sys.excepthook = log_uncaught
    threading.excepthook = lambda lost: log_uncaught(lost.exc_type, lost.exc_value, lost.exc_traceback)
    sys.unraisablehook = lambda lost: log_uncaught(lost.exc_type, lost.exc_value, lost.exc_traceback)


def log_uncaught(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
    if not issubclass(kind, (KeyboardInterrupt, SystemExit)):
        logger.critical("uncaught %s", kind.__name__, exc_info=(kind, error or kind(), trace))


class TextFormatter(logging.Formatter):
    """Time, level, process and name, message and the request's id, if any. Only tracebacks add lines, which are
    indented so that quoted text cannot pass for a log line."""

    def __init__(self, process: str = "") -> None:
        super().__init__(f"%(asctime)s %(levelname)s {process and f'{process} '}%(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own name
        record.message = escape_controls(record.message)
        line = super().formatMessage(record)
        return f"{line} [{request_id}]" if (request_id := REQUEST_ID.get()) else line

    def formatException(self, ei: Any) -> str:  # noqa: N802 - logging's own name
        return indent(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:  # noqa: N802 - logging's own name
        return indent(super().formatStack(stack_info))


def indent(text: str) -> str:
    return "\n".join(f"    {escape_controls(line)}" for line in text.split("\n"))


def escape_controls(text: str) -> str:
    """`text` with line breaks and terminal control characters escaped."""
    return text if text.isprintable() else text.encode("unicode_escape").decode()


class JsonFormatter(logging.Formatter):
    """One JSON object per line. A record's `fields` become top-level members."""

    def __init__(self, process: str = "") -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if self._process:
            entry["process"] = self._process
        if request_id := REQUEST_ID.get():
            entry["request_id"] = request_id
        entry |= getattr(record, "fields", {})
        if record.exc_info:
            entry["trace"] = self.formatException(record.exc_info)
        line = json.dumps(entry, ensure_ascii=False)
        # json.dumps leaves non-ASCII line breaks unescaped, and line readers may split at them.
        return line if line.isprintable() else json.dumps(entry)

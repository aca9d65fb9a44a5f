"""Reads queries and relevance judgments from files.

queries   JSON lines {"id", "text"}, plain or .gz
qrels     lines of query id, document id, grade, separated by tabs or spaces (TREC's extra second column allowed)

Of several lines for one query and document, the last one counts, as with feedback.
"""

from __future__ import annotations

import gzip
import logging
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from indexes.base.errors import InvalidInput

logger = logging.getLogger(__name__)

QRELS_COLUMNS = (3, 4)
# ir_measures takes time and memory in proportion to a grade, and is wrong or crashes from 32 bits on.
GRADE_MAX = 1_000_000


class TextQuery(msgspec.Struct, frozen=True):
    id: str
    text: str


@dataclass(frozen=True, slots=True)
class Judgment:
    query: str
    document: str
    grade: int


def read_queries(path: Path) -> list[TextQuery]:
    """Read queries. Raises InvalidInput naming file and line."""
    queries: dict[str, TextQuery] = {}
    for place, line in lines_of(path):
        try:
            one = msgspec.json.decode(line, type=TextQuery)
        except msgspec.DecodeError as error:
            raise InvalidInput(f"{place}: expected a query with id and text: {error}") from None
        if not one.text.strip():
            raise InvalidInput(f"{place}: the text of query {one.id!r} is empty")
        if one.id in queries:
            raise InvalidInput(f"{place}: an earlier query has the id {one.id!r} too")
        queries[one.id] = one
    if not queries:
        raise InvalidInput(f"{path} holds no queries")
    return list(queries.values())


def read_judgments(path: Path) -> list[Judgment]:
    """Read one judgment of each query and document, the last one; log how many lines were overruled. Raises
    InvalidInput naming file and line."""
    judgments: dict[tuple[str, str], Judgment] = {}
    overruled = 0
    for place, line in lines_of(path):
        fields = line.split("\t") if "\t" in line else line.split()
        try:
            if len(fields) not in QRELS_COLUMNS:
                raise ValueError
            one = Judgment(fields[0], fields[-2], int(fields[-1]))
        except ValueError:
            raise InvalidInput(f"{place}: expected query, document, grade; found {line.strip()!r}") from None
        if abs(one.grade) > GRADE_MAX:
            raise InvalidInput(f"{place}: expected a grade of at most {GRADE_MAX}; found {line.strip()!r}")
        overruled += (one.query, one.document) in judgments
        judgments[one.query, one.document] = one
    if not judgments:
        raise InvalidInput(f"{path} holds no judgments")
    if overruled:
        logger.warning(
            "%s: %d lines repeat a query and document; of each, the last grade counts", path, overruled
        )
    return list(judgments.values())


def lines_of(path: Path) -> Iterator[tuple[str, str]]:
    """Yield each nonblank line with its location for error messages. Raises InvalidInput for a file that cannot be
    read, or is not text."""
    if not path.is_file():
        raise InvalidInput(f"{path} is not a file")
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield f"{path}, line {number}", line
    except UnicodeDecodeError:
        raise InvalidInput(f"{path} is not text in UTF-8") from None
    except (OSError, EOFError, zlib.error) as error:  # also of gzip
        raise InvalidInput(f"{path} cannot be read: {error}") from None

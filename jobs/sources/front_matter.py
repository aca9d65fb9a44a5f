"""Front matter of Markdown files: YAML between lines of `---`, TOML between lines of `+++`."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from datetime import date, time
from typing import Any

import yaml

from indexes.base.model import ACL
from jobs.sources.columns import infer

STRING = "tag:yaml.org,2002:str"
BLOCK_CHARS_MAX = 65_536  # longer blocks are data; PyYAML takes a second for this much

_OPENED = re.compile(r"(---|\+\+\+)[ \t]*\n")
_CLOSED = {  # YAML may also end its document by dots
    "---": re.compile(r"^(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.MULTILINE),
    "+++": re.compile(r"^\+\+\+[ \t]*(?:\n|\Z)", re.MULTILINE),
}
_KEY_LINE = re.compile(r"""["']?\w[\w \t.-]*["']? ?[:=](?:\s|$)""")
_TOML_KEY_LINE = re.compile(r"""["'\w][^=\n]*=""")


@dataclass(frozen=True, slots=True)
class FrontMatter:
    """The front matter of `text`, which is what follows it. A block that cannot be read stays in `text`, and `problem`
    says why; `block_chars` is its length then, for it holds no heading."""

    text: str
    metadata: dict[str, object] = field(default_factory=dict)
    problem: str | None = None
    block_chars: int = 0


def split_front_matter(text: str) -> FrontMatter:
    """Separate the leading block from the text.

    A block whose first line is not a key is text without a problem: most likely a horizontal rule.
    """
    opened = _OPENED.match(text)
    if opened is None:
        return FrontMatter(text)
    mark = opened[1]
    closed = _CLOSED[mark].search(text, opened.end())
    content = text[opened.end() : closed.start() if closed else len(text)]
    first = next((line for line in content.split("\n") if line.strip() and not line.startswith("#")), "")
    is_key = _KEY_LINE.match(first) or (mark == "+++" and _TOML_KEY_LINE.match(first))
    if first and not is_key and not first.startswith(("[", "{")):
        return FrontMatter(text)
    if closed is None:
        unclosed = first and not first.startswith(("[", "{"))
        return FrontMatter(text, problem=f"no line {mark} ends it" if unclosed else None)
    metadata: object = None
    problem = None
    if len(content) > BLOCK_CHARS_MAX:
        problem = f"longer than {BLOCK_CHARS_MAX:,} characters"
    else:
        try:
            metadata = tomllib.loads(content) if mark == "+++" else _Loader(content).get_single_data()
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            problem = _reason(error)
    if problem is not None:
        return FrontMatter(text, problem=problem, block_chars=closed.end())
    if metadata is not None and not isinstance(metadata, dict):
        return FrontMatter(text)
    return FrontMatter(text[closed.end() :], _members(metadata or {}))


class _Loader(yaml.SafeLoader):
    """Reads plain scalars by the rules of tables, not those of YAML 1.1, which turns `no` into False, 0123 into 83, and
    12:30 into 750. Aliases are refused, since a few lines of them can stand for gigabytes. Duplicate keys are
    refused as in TOML, since one of their values would be lost."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - the name and the shape are PyYAML's
        first: [("tag:yaml.org,2002:null", re.compile(r"(?:~|null|Null|NULL|)\Z"))]
        for first in ["~", "n", "N", ""]
    }

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases (*name) are not read")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.MarkedYAMLError(
                        problem=f"duplicate key {key.value}", problem_mark=key.start_mark
                    )
                seen.add(key.value)
                key.tag, key.style = STRING, '"'  # as written: `1` and `true` would be one key
        return super().construct_mapping(node, deep)

    def construct_text(self, node: yaml.ScalarNode) -> object:
        return node.value if node.style else infer([node.value]).value(node.value)


_Loader.add_constructor(STRING, _Loader.construct_text)


def _reason(error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 2}: {error.problem}"
    return "nested too deeply" if isinstance(error, RecursionError) else " ".join(str(error).split())


def _members(values: Mapping[Any, object]) -> dict[str, object]:
    return {
        str(key): value for key, one in values.items() if (value := _plain(one)) is not None or key == ACL
    }


def _plain(value: object) -> object | None:
    """Convert `value` to JSON, numbers that JSON lacks to strings. Null is None, which is left out of lists."""
    if isinstance(value, Mapping):
        return _members(value)
    if isinstance(value, list):
        return [plain for one in value if (plain := _plain(one)) is not None]
    if isinstance(value, date | time):  # also datetime
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, str | int | float | bool) or value is None else str(value)

"""The service's settings: what they are, what values they may take, and where a value came from.

`load_config` is the only reader of files and environment; everything else is handed the part of `Config` it needs. A
value is taken from the first of: the environment (`NEARLINE_<SECTION>_<KEY>`), the file, the default in
`retrieval/base/settings.py`. `configs/default.toml` explains each key; a test holds it equal to those defaults.

Nothing is guessed: an unknown section or key, a wrong type, a value out of range, or two values that contradict each
other raise `InvalidInput` with one line that names the file or variable, the key, what was expected and what was found.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import msgspec

from indexes.base import failpoints
from indexes.base.errors import InvalidInput
from retrieval.base.settings import RESTART, Config

__all__ = ["Config", "ignored_variables", "load_config", "take_over"]


def load_config(path: Path | None, environ: Mapping[str, str]) -> Config:
    """Load the settings of `path` (the defaults when None), overridden by the `NEARLINE_*` variables of `environ`.

    Folders stay as given, relative to the working directory. Raises `InvalidInput` as described above.
    """
    values: dict[str, dict[str, object]] = {name: {} for name in _KEYS}
    if path is not None:
        for section, key, value in _read_file(path):
            values[section][key] = _convert(value, section, key, source=str(path), from_text=False)
    for variable, section, key in _overrides(environ):
        values[section][key] = _convert(environ[variable], section, key, source=variable, from_text=True)
    config = msgspec.convert(values, Config)
    _check_together(config)
    return config


def take_over(current: Config, fresh: Config) -> tuple[list[str], list[str]]:
    """Apply to `current`, which all parts of a service share, the changes in `fresh` that a reload can make.

    Returns the keys that changed, and those that differ but need a restart. Raises InvalidInput, and changes nothing,
    if the new values make no sense together with those that cannot change.
    """
    changes: dict[str, dict[str, object]] = {}
    waiting = []
    for section, keys in _KEYS.items():
        now, then = getattr(current, section), getattr(fresh, section)
        for key in keys:
            if getattr(now, key) == getattr(then, key):
                continue
            if RESTART & {section, f"{section}.{key}"}:
                waiting.append(f"{section}.{key}")
            else:
                changes.setdefault(section, {})[key] = getattr(then, key)
    after = {name: msgspec.structs.replace(getattr(current, name), **of) for name, of in changes.items()}
    _check_together(msgspec.structs.replace(current, **after))
    for section, values in changes.items():
        for key, value in values.items():
            msgspec.structs.force_setattr(getattr(current, section), key, value)
    return [f"{section}.{key}" for section, values in changes.items() for key in values], waiting


def ignored_variables(environ: Mapping[str, str]) -> list[str]:
    """List the `NEARLINE_*` variables that name no section, sorted, each with the likely name if there is one: another
    program's, or a typo worth a warning."""
    clients = (f"{PREFIX}URL", f"{PREFIX}KEY", f"{PREFIX}SYNC_STATE")
    known = [f"{PREFIX}{section}_{key}".upper() for section, keys in _KEYS.items() for key in keys]
    return [
        # The prefix that all share would make any two names similar.
        name + _did_you_mean(name, [*known, *clients], shared=PREFIX)
        for name, value in sorted(environ.items())
        if name.startswith(PREFIX)
        and name not in (failpoints.VARIABLE, *clients)
        and not _section_of(name)
        and not _is_service_link(name, value)
    ]


PREFIX = "NEARLINE_"
# The type of every key by section and name, derived from `Config` so that the two cannot differ.
_KEYS: dict[str, dict[str, Any]] = {
    section.name: {key.name: key.type for key in msgspec.structs.fields(section.type)}
    for section in msgspec.structs.fields(Config)
}


def _read_file(path: Path) -> Iterator[tuple[str, str, object]]:
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInput(
            f"configuration {path}: cannot be read: {error.strerror}", param="config"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"configuration {path}: not valid TOML: {error}", param="config") from error
    for section, table in tables.items():
        if section not in _KEYS:
            raise InvalidInput(
                f"{path}: no section [{section}]{_did_you_mean(section, _KEYS)}; "
                f"expected one of: {', '.join(_KEYS)}",
                param=section,
            )
        if not isinstance(table, dict):
            raise InvalidInput(
                f"{path}: {section}: expected a section [{section}], found {table!r}", param=section
            )
        for key, value in table.items():
            _check_key(section, key, source=str(path))
            yield section, key, value


def _overrides(environ: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    for variable in sorted(environ):
        section = _section_of(variable)
        if section is None or _is_service_link(variable, environ[variable]):
            continue
        key = variable.removeprefix(f"{PREFIX}{section.upper()}_").lower()
        _check_key(section, key, source=variable)
        yield variable, section, key


def _section_of(variable: str) -> str | None:
    return next((name for name in _KEYS if variable.startswith(f"{PREFIX}{name.upper()}_")), None)


_SERVICE_LINK = re.compile(
    r"_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)$"
)


def _is_service_link(variable: str, value: str) -> bool:
    """Whether Kubernetes set the variable for a Service.

    For one named "nearline-redis" every pod gets NEARLINE_REDIS_PORT=tcp://10.0.0.7:6379 and six more. Treating them as
    settings would stop the start in exactly the deployments that look most natural.
    """
    return bool(_SERVICE_LINK.search(variable)) or (
        variable.endswith("_PORT") and value.startswith(("tcp://", "udp://", "sctp://"))
    )


def _check_key(section: str, key: str, *, source: str) -> None:
    known = _KEYS[section]
    if key not in known:
        raise InvalidInput(
            f"{source}: no key '{key}' in section [{section}]{_did_you_mean(key, known)}; "
            f"expected one of: {', '.join(known)}",
            param=f"{section}.{key}",
        )


def _convert(value: object, section: str, key: str, *, source: str, from_text: bool) -> object:
    declared = _KEYS[section][key]
    try:
        if from_text and get_origin(declared) in {dict, list}:
            return msgspec.json.decode(str(value), type=declared)
        return msgspec.convert(value, declared, strict=not from_text)
    except msgspec.DecodeError as error:
        raise InvalidInput(
            f"{source}: [{section}] {key}: expected {_describe_expected(section, key, error)}, "
            f"found {'a value that is not shown' if key.endswith(('secret', 'api_key')) else _redact(value)}",
            param=f"{section}.{key}",
        ) from error


def _describe_expected(section: str, key: str, error: msgspec.DecodeError) -> str:
    declared = _KEYS[section][key]
    if key == "nodes":
        return 'nodes and the addresses of their services: { "a" = ["http://10.0.0.1:8080"] }, as JSON in a variable'
    if get_origin(declared) is dict:
        return 'names and what they stand for: { "a" = "b" } in the file, {"a": "b"} in a variable'
    if key == "cors_origins":
        return 'a list of origins without a path, ["https://app.example.com"], or ["*"]'
    if key == "min_similarity":
        return 'a cosine from -1 to 1, or "model"'
    if key == "bad_from":
        return 'a number, or "none"'
    if key == "bad":
        return 'a list of outcomes, ["failed", "rollback"]'
    if key == "hosts":
        return 'a list of names in lower case without a port, ["nearline.example.com"], or ["*"]'
    if get_origin(declared) is list:
        return 'a list of names, ["a", "b"]'
    if get_origin(declared) is Literal:
        return "one of " + ", ".join(f'"{choice}"' for choice in get_args(declared))
    kind = msgspec.inspect.type_info(declared)
    if isinstance(kind, msgspec.inspect.Metadata) and kind.extra_json_schema:
        return str(kind.extra_json_schema["description"])
    return str(error).removeprefix("Expected ").partition(", got")[0].replace("`", "")


def _redact(value: object) -> str:
    # The address of a Redis may contain its password, and error messages end up in logs.
    if isinstance(value, str) and "@" in value:
        return repr("***@" + value.rpartition("@")[2])
    return repr(value)


def _did_you_mean(word: str, known: Iterable[str], *, shared: str = "") -> str:
    """Return a suggestion to add to an error, or nothing. `shared`, which all names begin with, is not compared."""
    rest = [one.removeprefix(shared) for one in known]
    close = difflib.get_close_matches(word.removeprefix(shared), rest, n=1)
    return f" (did you mean '{shared}{close[0]}'?)" if close else ""


def _check_together(config: Config) -> None:
    """Refuse values that are valid alone but make no sense together."""
    limits, index = config.limits, config.index
    half = config.passages.tokens_max // 2
    for key, value, bound_name, bound in (
        ("passages.overlap_tokens", config.passages.overlap_tokens, "half of passages.tokens_max", half),
        ("search.k", config.search.k, "limits.k_max", limits.k_max),
        (
            "limits.document_bytes_max",
            limits.document_bytes_max,
            "server.body_bytes_max",
            config.server.body_bytes_max,
        ),
        ("assess.neighbors", config.assess.neighbors, "limits.k_max", limits.k_max),
        ("assess.review_from", config.assess.review_from, "assess.stop_from", config.assess.stop_from),
        ("index.recall_floor", index.recall_floor, "index.recall_target", index.recall_target),
    ):
        if value > bound:
            raise InvalidInput(f"{key}: expected at most {bound_name} ({bound}), found {value}", param=key)
    urls = [url.rstrip("/") for one in config.cluster.nodes.values() for url in one]
    if len(set(urls)) < len(urls) or not all(config.cluster.nodes.values()):
        raise InvalidInput(
            "[cluster] nodes: expected at least one URL for each node, and each URL once",
            param="cluster.nodes",
        )
    if config.search.weight_dense + config.search.weight_lexical <= 0:
        raise InvalidInput(
            "[search] weight_dense and weight_lexical: expected at least one above 0, found 0 and 0",
            param="search.weight_dense",
        )

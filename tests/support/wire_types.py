"""Writes retrieval/clients/wire/: the service's wire types as TypedDicts, for callers that do not import the service.

    python -m tests.support.wire_types

A test holds these files equal to what this makes.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect

from retrieval.wire import (
    answer as answer_schemas,
)
from retrieval.wire import (
    assess as assess_schemas,
)
from retrieval.wire import (
    collections as collection_schemas,
)
from retrieval.wire import (
    documents as document_schemas,
)
from retrieval.wire import (
    explain as explain_schemas,
)
from retrieval.wire import (
    search as schemas,
)

FOLDER = Path(__file__).parents[2] / "retrieval" / "clients" / "wire"
HEADER = '''"""What the service {does}, for type checkers; at run time all of it is plain dictionaries.

Made from the service's own types by `python -m tests.support.wire_types`: do not edit. A key that is `NotRequired` in
an answer is absent where it says nothing.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict
'''

REQUESTS: tuple[type[msgspec.Struct], ...] = (
    schemas.SearchRequest,
    schemas.SearchCollections,
    schemas.ContextRequest,
    explain_schemas.ExplainRequest,
    assess_schemas.AssessRequest,
    answer_schemas.AnswerRequest,
    document_schemas.SentDocument,
    document_schemas.ScrollDocuments,
    document_schemas.CountDocuments,
    document_schemas.DeleteDocuments,
    document_schemas.PatchDocuments,
    document_schemas.PatchDocument,
    collection_schemas.CreateCollection,
    collection_schemas.SetRanking,
    collection_schemas.SetSynonyms,
    collection_schemas.SentFeedback,
    collection_schemas.Reindex,
    collection_schemas.Tune,
)
ANSWERS: tuple[type[msgspec.Struct], ...] = (
    schemas.SearchAnswer,
    schemas.SearchCollectionsAnswer,
    schemas.ContextAnswer,
    explain_schemas.ExplainAnswer,
    assess_schemas.Assessment,
    answer_schemas.Answer,
)
RECORDS: tuple[type[msgspec.Struct], ...] = (
    document_schemas.Written,
    document_schemas.Deleted,
    document_schemas.Patched,
    document_schemas.ScrollPage,
    document_schemas.CountBody,
    collection_schemas.CollectionList,
    collection_schemas.AliasBody,
    collection_schemas.FeedbackKept,
    collection_schemas.FeedbackList,
    collection_schemas.JobList,
    collection_schemas.HeldBody,
    collection_schemas.SynonymsBody,
)
# Arguments or methods of their own in the client.
ARGUMENTS: dict[type[Any], set[str]] = {
    collection_schemas.CreateCollection: {"name"},
    answer_schemas.AnswerRequest: {"stream"},
    document_schemas.PatchDocument: {"metadata"},
}
FILES = {
    "requests": (REQUESTS, "is sent"),
    "answers": (ANSWERS, "answers to questions"),
    "records": (RECORDS, "answers about what it holds"),
}


def source(name: str) -> str:
    """The whole file of this name, formatted."""
    roots, does = FILES[name]
    known: dict[str, str] = {}
    for root in roots:
        describe(root, known)
    text = "\n\n".join([HEADER.format(does=does), *known.values()])
    formatted = subprocess.run(
        [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(FOLDER / f"{name}.py"), "-"],
        input=text,
        capture_output=True,
        text=True,
        check=True,
    )
    return formatted.stdout


def describe(kind: type[Any], known: dict[str, str]) -> str:
    """The name of the TypedDict for a struct or TypedDict, added to `known` after those that it needs."""
    name = kind.__name__
    if name not in known:
        base = base_of(kind)
        parent = describe(base, known) if base else "TypedDict"
        lines = [f"    {line}" for line in fields_of(kind, known)] or ["    pass"]
        known[name] = "\n".join([f"class {name}({parent}):", *lines]) + "\n"
    return name


def base_of(kind: type[Any]) -> type[Any] | None:
    """The nearest struct above it whose fields it has as they are."""
    own = {field.name: field for field in getattr(inspect.type_info(kind), "fields", ())}
    for base in (
        kind.__mro__[1 : kind.__mro__.index(msgspec.Struct)] if issubclass(kind, msgspec.Struct) else ()
    ):
        info: Any = inspect.type_info(base)
        if info.fields and all(own[field.name] == field for field in info.fields):
            return base
    return None


def fields_of(kind: type[Any], known: dict[str, str]) -> Iterator[str]:
    info: Any = inspect.type_info(kind)
    omits = getattr(getattr(kind, "__struct_config__", None), "omit_defaults", False)
    inherited = getattr(base_of(kind), "__struct_fields__", ())
    for field in info.fields:
        if field.name in inherited or field.name in ARGUMENTS.get(kind, ()):
            continue
        written = as_source(field.type, known)
        # An answer writes out its defaults, unless it omits them; a request may leave them out.
        is_unset = field.default is msgspec.NODEFAULT and field.default_factory is msgspec.NODEFAULT
        may_lack = not field.required and (omits or issubclass(kind, schemas.Request) or is_unset)
        yield f"{field.encode_name}: " + (f"NotRequired[{written}]" if may_lack else written)


def as_source(of: inspect.Type, known: dict[str, str]) -> str:
    """A type as it is written in annotations."""
    match of:
        case inspect.Metadata():
            return as_source(of.type, known)
        case inspect.UnionType():
            return " | ".join(dict.fromkeys(as_source(one, known) for one in of.types))
        case inspect.LiteralType():
            return f"Literal[{', '.join(map(repr, of.values))}]"
        case inspect.ListType():
            return f"list[{as_source(of.item_type, known)}]"
        case inspect.DictType():
            return f"dict[str, {as_source(of.value_type, known)}]"
        case inspect.StructType() | inspect.TypedDictType() | inspect.DataclassType():
            return describe(of.cls, known)
        case inspect.StrType() | inspect.IntType() | inspect.FloatType() | inspect.BoolType():
            return type(of).__name__.removesuffix("Type").lower()
        case inspect.NoneType():
            return "None"
        case _:
            return "Any"  # JSON that the service reads later


if __name__ == "__main__":
    for one in FILES:
        (FOLDER / f"{one}.py").write_text(source(one))

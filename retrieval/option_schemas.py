"""The wire types of search options that are more than one value."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from retrieval.decoding import Doc, Request

SnippetChars = Annotated[int, Meta(ge=20, le=10_000)]
PassageCount = Annotated[int, Meta(ge=0, le=100)]
Place = Annotated[int, Meta(ge=0)]
Span = tuple[Place, Place]  # [start, end) in a hit's text, in characters


class Highlight(Request, frozen=True, kw_only=True):
    """Show where each hit has words of the query."""

    snippet_chars: Annotated[SnippetChars, Doc("Most characters of `snippet`")] = 240


class Neighbors(Request, frozen=True, kw_only=True):
    """How many passages around each hit are shown with it."""

    before: Annotated[PassageCount, Doc("Passages before it in the document")] = 0
    after: Annotated[PassageCount, Doc("Passages after it")] = 0


Expand = Neighbors | Literal["section", "document"]


class Expanded(msgspec.Struct, omit_defaults=True):
    """A hit with the passages around it, as they stand in the document: nothing comes twice."""

    passages: Annotated[Span, Doc("Positions of the first and the last passage, inclusive")]
    start: Annotated[int, Doc("Start in the document's text, in characters")]
    end: Annotated[int, Doc("End in the document's text, in characters, exclusive")]
    text: Annotated[str, Doc("The document's text from `start` to `end`")]
    cut: Annotated[bool, Doc("Whether limits.expanded_chars_max left out some that belong to it")] = False

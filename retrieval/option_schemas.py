"""The wire types of search options that are more than one value."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from retrieval.decoding import Doc, Request

SnippetChars = Annotated[int, Meta(ge=20, le=10_000)]
Place = Annotated[int, Meta(ge=0)]
Span = tuple[Place, Place]  # [start, end) in a hit's text, in characters


class Highlight(Request, frozen=True, kw_only=True):
    """Show where each hit has words of the query."""

    snippet_chars: Annotated[SnippetChars, Doc("Most characters of `snippet`")] = 240

"""The wire types of `POST explain`: why a document is, or is not, among the hits of a search."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from indexes.base.model import Tier
from retrieval.base.settings import Count
from retrieval.wire.search import Doc, DocumentId, Ranks, Scores, SearchRequest, Seq, SeqToken

Kind = Literal[
    "found",
    "no_document",
    "expired",
    "not_visible",
    "filtered",
    "missed_by_index",
    "beyond_depth",
    "missing_terms",
    "words_elsewhere",
    "unread_query",
    "cut_query",
    "own_vector",
    "reranked",
    "grouped",
    "collapsed",
    "below_floor",
    "outscored",
    "left_out",
]
Stage = Literal["log", "snapshot", "filter", "candidates", "fusion", "rerank", "floor", "group", "page"]


class ExplainRequest(SearchRequest, frozen=True, kw_only=True):
    """A search, and the document or passage to follow through it."""

    document_id: Annotated[DocumentId, Doc("The document to follow")]
    passage: Annotated[Count | None, Doc("One of its passages, from 0; absent: the one that ranks best")] = (
        None
    )
    answer_seq: Annotated[
        Count | SeqToken | None,
        Doc("`seq` in the receipt of an answer without it, to tell whether it was written later"),
    ] = None


class Cause(msgspec.Struct):
    """Why the document is where it is, and the stage that decided it."""

    kind: Annotated[Kind, Doc("The kind of cause")]
    stage: Annotated[Stage, Doc("The stage of the search that decided")]
    reason: Annotated[str, Doc("The cause in words")]
    evidence: Annotated[dict[str, Any], Doc("The numbers behind it; their names depend on the kind")]


class Change(msgspec.Struct):
    """A change of the request that finds the document. It was tried: `verified_rank` is the rank in that search."""

    patch: Annotated[dict[str, Any], Doc("JSON merge patch (RFC 7396) of the search; null removes a field")]
    verified_rank: Annotated[int, Doc("Rank among the hits of the changed search, from 1")]


class FollowedWord(msgspec.Struct):
    """A word of the query and its contribution to one passage. Stopwords are left out."""

    word: Annotated[str, Doc("The word as in the query")]
    score: Annotated[float, Doc("Its part of the BM25 score; 0 if the passage does not contain it")]
    share: Annotated[float, Doc("Share of the passage's BM25 score, 0 to 1")]
    near: Annotated[str | None, Doc("A similar word that the passage contains instead")] = None


class FollowedPassage(msgspec.Struct):
    """One passage followed through the search. `exact` ranks are among all passages that the filter allows;
    `candidate` ranks are those of the search, null if it did not reach the passage."""

    passage: Annotated[int, Doc("Position of the passage in its document, from 0")]
    tier: Annotated[Tier, Doc("Tier that holds the passage")]
    scores: Annotated[Scores, Doc("Score in each ranking")]
    exact: Annotated[Ranks, Doc("Rank in each ranking by exact search")]
    candidate: Annotated[Ranks, Doc("Rank in each ranking of this search")]
    score: Annotated[float | None, Doc("Final score; null if it was not a candidate")]
    place: Annotated[
        int | None, Doc("Rank among all candidates in their final order, from 1, before floors and grouping")
    ]
    words: Annotated[list[FollowedWord], Doc("The words of the query")]


class ExplainAnswer(msgspec.Struct):
    """Where the document is among the hits (`found`), or why it is not.

    `cause` is the first reason for a miss, and `also` are the reasons that remain once that is changed. `change` is
    the smallest change that finds the document, if possible among the first `k` hits; `others` find it too.
    """

    found: Annotated[int | None, Doc("Rank among the hits, from 1; null if it is not among them")]
    cause: Annotated[Cause, Doc("Why")]
    also: Annotated[list[Cause], Doc("The reasons that remain once the cause is changed")]
    change: Annotated[Change | None, Doc("The smallest change that finds it; null if none was found")]
    others: Annotated[list[Change], Doc("Other changes that find it")]
    passages: Annotated[list[FollowedPassage], Doc("Passages of the document, best first")]
    searches: Annotated[int, Doc("Searches that were run for this explanation")]
    seq: Annotated[Seq, Doc("Last operation that the search could see")]
    within_k: Annotated[
        bool | UnsetType,
        Doc("Whether `change` brings it among the first `k` hits as asked; absent if it is among them"),
    ] = UNSET
    over_budget: Annotated[
        bool | UnsetType,
        Doc("True: the searches took so long that not every change was tried; absent otherwise"),
    ] = UNSET

"""Joins the hits of several searches into one ranking without repetition, and their receipts into one."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

import msgspec
import regex
from msgspec import UNSET

from indexes.base.normalizing import normalize
from indexes.base.work import OnStep, do_nothing
from retrieval.wire.search import Evidence, Hit, Receipt, SearchAnswer, Timings

Key = tuple[str, int]  # a passage's document id and its position there
OVERLAP_MAX = 0.5  # share of the shorter passage above which two passages of a document count as repetition
WORDS = regex.compile(r"\w+")
FIRST_WORDS, FIRST_CHARS, COMPARED_CHARS = 3, 100, 20_000
RANK_CONSTANT = 10  # of reciprocal ranks, which break ties


@dataclass(frozen=True, slots=True)
class Joined:
    """`hits` holds all hits, best first; each is also in either `relevant` or `irrelevant`."""

    hits: list[Hit]
    relevant: list[Hit]
    irrelevant: list[Hit]
    receipt: Receipt
    timings_ms: Timings


def key_of(hit: Hit) -> Key:
    return hit.document_id, hit.passage


def join_answers(found: Sequence[SearchAnswer], floor: float) -> Joined:
    """Join at least one answer into one ranking.

    A passage is ranked by its best place in any search, so each query gets its share; ties go to the passage that
    more searches rank high. A passage is relevant if it is for one of the searches.
    """
    relevant_keys: set[Key] = set()
    best: dict[Key, tuple[int, Hit]] = {}
    support: dict[Key, float] = {}
    for answer in found:
        relevant_keys.update(map(key_of, relevant_of(answer.hits, floor)))
        for place, hit in enumerate(answer.hits):
            key = key_of(hit)
            support[key] = support.get(key, 0.0) + 1 / (RANK_CONSTANT + place)
            if key not in best or place < best[key][0]:
                best[key] = place, hit
    hits = [best[key][1] for key in sorted(best, key=lambda key: (best[key][0], -support[key]))]
    hits = hits[: max(len(answer.hits) for answer in found)]
    return Joined(
        hits,
        [hit for hit in hits if key_of(hit) in relevant_keys],
        [hit for hit in hits if key_of(hit) not in relevant_keys],
        receipt_of([answer.receipt for answer in found]),
        max((answer.timings_ms for answer in found), key=lambda timings: timings.total),
    )


def relevant_of(hits: Sequence[Hit], floor: float) -> list[Hit]:
    """Drop hits whose meaning is far from the query, unless it names them, or they match its words about as well as the
    best hit."""
    words = max((hit.scores.lexical or 0.0 for hit in hits), default=0.0) / 2
    return [
        hit
        for hit in hits
        if hit.scores.dense is None
        or hit.scores.dense >= floor
        or hit.scores.name
        or (hit.scores.lexical or 0.0) > words
    ]


def receipt_of(receipts: Sequence[Receipt]) -> Receipt:
    """Return a receipt that holds for all searches, with the most evidence of any."""
    first, *others = receipts
    if not others:
        return first
    evidence = [one.evidence for one in receipts if one.evidence is not None]
    read = [one.share_read for one in receipts if one.share_read is not None]
    degraded = {what for one in receipts for what in one.degraded or ()}
    over_budget = {what for one in receipts for what in one.over_budget or ()}
    missing = {shard for one in receipts for shard in one.shards_missing or ()}
    return msgspec.structs.replace(
        first,
        degraded=sorted(degraded) or UNSET,
        over_budget=sorted(over_budget) or UNSET,
        shards_missing=sorted(missing) or UNSET,
        query_cut=any(one.query_cut is True for one in receipts) or UNSET,
        generation=min(one.generation for one in receipts),
        seq=min(one.seq for one in receipts),
        tiers=list(dict.fromkeys(tier for one in receipts for tier in one.tiers)),
        cold_skipped=next((one.cold_skipped for one in receipts if one.cold_skipped), None),
        share_read=min(read, default=None),
        cache="hit"
        if all(one.cache == "hit" for one in receipts)
        else ("bypass" if first.cache == "bypass" else "miss"),
        evidence=max(evidence, key=get_args(Evidence).index, default=None),
    )


def without_repetition(hits: Sequence[Hit], on_step: OnStep = do_nothing) -> tuple[list[Hit], dict[Key, Hit]]:
    """Return the hits without repetitions, and the repetitions with the hit that each repeats. Hits repeat each
    other if they have equal words, or are mostly the same stretch of one document."""
    kept: list[Hit] = []
    repeats: dict[Key, Hit] = {}
    by_document: dict[str, Stretches] = {}
    # All words are compared only where the first ones are equal, so of most passages only those are taken.
    alone: dict[tuple[str, ...], Hit | None] = {}
    by_words: dict[tuple[str, ...], Hit] = {}
    for hit in hits:
        on_step()
        others, first = by_document.setdefault(hit.document_id, Stretches()), first_words(hit)
        words = all_words(hit) if first in alone else None
        if (before := alone.get(first)) is not None:
            by_words[all_words(before)], alone[first] = before, None
        same = None if words is None else by_words.get(words)
        same = same or others.first_like(hit)
        if same is not None:
            repeats[key_of(hit)] = same
            continue
        if words is None:
            alone[first] = hit
        else:
            by_words[words] = hit
        others.add(hit, len(kept))
        kept.append(hit)
    return kept, repeats


class Stretches:
    """Passages of one document, none of which is mostly the same as another. So none contains another, and in the
    order in which they begin they also end."""

    def __init__(self) -> None:
        self._places: list[
            tuple[int, int]
        ] = []  # of the beginning in the document, and of the hit in the ranking
        self._hits: list[Hit] = []

    def add(self, hit: Hit, rank: int) -> None:
        at = bisect_right(self._places, (hit.start, rank))
        self._places.insert(at, (hit.start, rank))
        self._hits.insert(at, hit)

    def first_like(self, hit: Hit) -> Hit | None:
        """Return the best of those that are mostly the same as this passage."""
        at = bisect_right(self._places, (hit.start, 0))
        while at > 0 and self._hits[at - 1].end > hit.start:
            at -= 1
        found: tuple[int, Hit] | None = None
        while at < len(self._hits) and self._hits[at].start < hit.end:
            rank = self._places[at][1]
            if (found is None or rank < found[0]) and overlapping(hit, self._hits[at]):
                found = rank, self._hits[at]
            at += 1
        return None if found is None else found[1]


def first_words(hit: Hit) -> tuple[str, ...]:
    """Return a key that is equal for passages with equal words."""
    words = words_of(hit, FIRST_CHARS)
    return tuple((words if len(words) > FIRST_WORDS else words_of(hit, COMPARED_CHARS))[:FIRST_WORDS])


def all_words(hit: Hit) -> tuple[str, ...]:
    """Return what is equal for passages with equal words; what follows COMPARED_CHARS is compared as it is."""
    return (*words_of(hit, COMPARED_CHARS), hit.text[COMPARED_CHARS:])


def words_of(hit: Hit, chars: int | None = None) -> list[str]:
    """Return the words without case and punctuation, from the title if a document has no text."""
    text = (hit.text or hit.title)[:chars]
    found: list[str] = WORDS.findall(normalize("NFKC", text).casefold())
    return found


def overlapping(hit: Hit, other: Hit) -> bool:
    """Whether two passages of one document are mostly the same."""
    shared = min(hit.end, other.end) - max(hit.start, other.start)
    return shared > OVERLAP_MAX * min(hit.end - hit.start, other.end - other.start)

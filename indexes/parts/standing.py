"""Finds where given passages stand for a query, for explanations: scores, exact ranks, and places in the indexes.

An exact rank counts all passages that the filter allows, so it takes as long as scoring them all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from indexes.base.masks import bits_at, rows_in
from indexes.base.model import TIERS, Floats, Ids, Rows, Tier
from indexes.base.work import OnStep, do_nothing
from indexes.filters.grammar import Filter
from indexes.lexical.analysis import query_terms
from indexes.lexical.bm25 import best_of, idf, saturate, score_rows
from indexes.parts.generation import Generation
from indexes.parts.part import Part
from indexes.parts.prepared import Prepared, Selected
from indexes.parts.query import Query
from indexes.parts.snapshot import Snapshot

BEST = 3  # passages examined per score
BLOCK = 16_384  # rows scored at once: 24 MB of 384 dimensions
BEFORE_ALL, AFTER_ALL = -1, 1 << 62  # no passage has such ids


@dataclass(frozen=True, slots=True)
class ColdList:
    """The list of a cold passage: its place among all `lists` by nearness to the query (from 1), and how many lists
    every search reads."""

    number: int
    place: int
    lists: int
    always_read: int


@dataclass(frozen=True, slots=True)
class Standing:
    """Where one passage stands. Scores and ranks (from 1) are None if the query lacks that searcher or BM25 is 0; ranks
    also if the filter excludes the passage. `gains` is what each term of the query adds to its BM25 score."""

    id: int
    tier: Tier
    allowed: bool
    dense: float | None
    lexical: float | None
    dense_rank: int | None
    lexical_rank: int | None
    gains: Mapping[str, float]
    lacks: Mapping[str, float]
    cold_list: ColdList | None


def standings(
    prepared: Prepared, ids: Ids, counts: Mapping[str, float], on_step: OnStep = do_nothing
) -> list[Standing]:
    """The standings of a few passages of the snapshot, ordered by id. `counts` maps the terms of the query's text to
    their number of occurrences. `on_step` is called between blocks of rows."""
    ids = np.sort(ids)
    dense, lexical = prepared.scores(ids)
    by_meaning = ranks_by(prepared, ids, dense, _dense_blocks(prepared, on_step))
    by_words = ranks_by(prepared, ids, lexical, _lexical_blocks(prepared, on_step))
    found = []
    for chosen, at, rows in locate_selected(prepared, ids):
        part = chosen.part
        tiers = part.tiers_of(rows)
        allowed = np.ones(len(rows), bool) if chosen.allowed is None else bits_at(chosen.allowed, rows)
        for place, row, tier, may in zip(at.tolist(), rows.tolist(), tiers.tolist(), allowed.tolist()):
            score, words = float(dense[place]), float(lexical[place])
            gains, lacks = gains_of(prepared, part, row, counts)
            found.append(
                Standing(
                    id=int(ids[place]),
                    tier=TIERS[tier],
                    allowed=may,
                    dense=None if np.isnan(score) else score,
                    lexical=words if words > 0 else None,
                    dense_rank=None if np.isnan(score) or not may else int(by_meaning[place]) + 1,
                    lexical_rank=int(by_words[place]) + 1 if words > 0 and may else None,
                    gains=gains,
                    lacks=lacks,
                    cold_list=cold_list_of(part, row, prepared.query.vector),
                )
            )
    return sorted(found, key=lambda one: one.id)


def ahead_of(
    prepared: Prepared, dense: Floats, lexical: Floats, *, first: bool, on_step: OnStep = do_nothing
) -> tuple[Ids, Ids]:
    """How many passages of the snapshot rank before others, which it does not have, by each of their scores; with
    `first`, those of the same score are before them."""
    places = np.full(len(dense), AFTER_ALL if first else BEFORE_ALL, np.int64)
    return (
        ranks_by(prepared, places, dense, _dense_blocks(prepared, on_step)),
        ranks_by(prepared, places, lexical, _lexical_blocks(prepared, on_step)),
    )


def best_of_each(prepared: Prepared, ids: Ids) -> Ids:
    """Return the best few of these passages by each score, ascending."""
    chosen: set[int] = set()
    for scores in prepared.scores(ids):
        order = np.argsort(-np.nan_to_num(scores, nan=-np.inf), kind="stable")
        chosen.update(ids[order[:BEST]].tolist())
    return np.array(sorted(chosen), np.int64)


def words_of(snapshot: Snapshot, query: Query) -> tuple[dict[str, dict[str, float]], str]:
    """Return the query's words that count, each with its terms and their counts, and the query's language."""
    if query.text is None:
        return {}, ""
    terms = snapshot.terms_of(query)
    counts = terms.weights
    words: dict[str, dict[str, float]] = {}
    for token in dict.fromkeys(query.text.split()):
        own = query_terms(token, terms.language, terms.others)
        if kept := {term: counts[term] for term in own if term in counts}:
            words[token.strip(".,;:!?\"'()[]") or token] = kept
    return words, terms.language


def locate_selected(prepared: Prepared, ids: Ids) -> Iterator[tuple[Selected, Rows, Rows]]:
    """For each part that holds any of these: the part, positions in `ids`, and rows in the part."""
    for chosen in prepared.selection:
        rows = chosen.part.rows_of(ids)
        alive = chosen.visible.alive
        held = rows >= 0
        if alive is not None:
            held[held] = bits_at(alive, rows[held])
        at = np.flatnonzero(held)
        if len(at):
            yield chosen, at, rows[at]


def ranks_by(prepared: Prepared, ids: Ids, own: Floats, blocks: Iterator[tuple[Ids, Floats]]) -> Ids:
    """How many passages rank before each of these: those with a higher score, or the same score and a lower id."""
    before = np.zeros(len(ids), np.int64)
    for others, scores in blocks:
        for at, (one, score) in enumerate(zip(ids.tolist(), own)):
            # Exclude the passage itself: its score may be rounded differently in another block.
            ahead = (scores > score) | ((scores == score) & (others < one))
            before[at] += np.count_nonzero(ahead & (others != one))
    return before


def _dense_blocks(prepared: Prepared, on_step: OnStep) -> Iterator[tuple[Ids, Floats]]:
    vector = prepared.query.vector
    if vector is None:
        return
    for chosen in prepared.selection:
        part = chosen.part
        rows = np.arange(part.size) if chosen.allowed is None else rows_in(chosen.allowed, part.size)
        for at in range(0, len(rows), BLOCK):
            on_step()
            some = rows[at : at + BLOCK]
            yield part.ids_of(some), part.vectors.scores(some, vector)


def _lexical_blocks(prepared: Prepared, on_step: OnStep) -> Iterator[tuple[Ids, Floats]]:
    if prepared.weighed is None:
        return
    for chosen in prepared.selection:
        on_step()
        part = chosen.part
        rows, scores = best_of(part.lexical, prepared.weighed, max(part.size, 1), chosen.allowed)
        yield part.ids_of(rows), scores


def gains_of(
    prepared: Prepared, part: Part, row: int, counts: Mapping[str, float]
) -> tuple[dict[str, float], dict[str, float]]:
    """What each term in a row adds to its score, and what each missing term would add."""
    weighed = prepared.weighed
    if weighed is None:
        return {}, {}
    weights, rows = dict(weighed.weights), np.array([row], np.int64)
    given = prepared.query.statistics
    held = {} if given is None else given.frequencies
    live = given.passages if given else sum(chosen.visible.live for chosen in prepared.selection)
    once = saturate(np.ones(1, np.uint16), part.lexical.lengths[rows] + 1, weighed.formula)
    gains, lacks, shown = {}, {}, weighed.synonyms.names
    for term in {**counts, **weights}:  # a search may look for more than the text's own terms
        if term in weighed.synonyms.replaced:
            continue  # its group has the weight
        weight = weights.get(term, counts.get(term, 0.0) * idf(max(held.get(term, 0), 1), live))
        alone = replace(weighed, weights=((term, weight),), met=())
        gain = float(score_rows(part.lexical, alone, rows)[0])
        if gain > 0:
            gains[shown.get(term, term)] = gain
        else:
            lacks[shown.get(term, term)] = weight * float(once[0])
    return gains, lacks


def cold_list_of(part: Part, row: int, vector: Floats | None) -> ColdList | None:
    cold = part.cold if isinstance(part, Generation) else None
    if cold is None or vector is None:
        return None
    number = int(cold.lists_of(np.array([row], np.int64))[0])
    similarities = cold.centroids() @ vector
    place = int(np.count_nonzero(similarities > similarities[number])) + 1
    return ColdList(number, place, cold.lists, cold.settings.probes)


def find_holding(prepared: Prepared, ids: Ids, terms: Iterable[str]) -> dict[str, Ids]:
    """The passages among these that hold each term of the query's text; terms without any are left out."""
    found: dict[str, list[Ids]] = {}
    weighed, wanted = prepared.weighed, set(terms)
    shown = {} if weighed is None else weighed.synonyms.names
    for term, weight in () if weighed is None else weighed.weights:
        for chosen, at, rows in locate_selected(prepared, ids) if shown.get(term, term) in wanted else ():
            assert weighed is not None
            alone = replace(weighed, weights=((term, weight),), met=())
            held = ids[at[score_rows(chosen.part.lexical, alone, rows) > 0]]
            if len(held):
                found.setdefault(shown.get(term, term), []).append(held)
    return {term: np.sort(np.concatenate(each)) for term, each in found.items()}


def holds(prepared: Prepared, passage: int, condition: Filter) -> bool:
    """Whether a passage satisfies a filter."""
    one = np.array([passage], np.int64)
    for chosen, _, rows in locate_selected(prepared, one):
        return int(rows[0]) in chosen.part.filters.match(condition)
    return False

"""Which changes of a search may bring a missed document among its first hits, the likeliest first.

The candidates of a hybrid search have both scores and both ranks, and so have the document's passages: its place with
other weights, by rank fusion or in another mode is computed without a search. What is proposed is still to be tried.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from msgspec.structs import asdict
from numpy.typing import NDArray

from indexes.lexical.operators import plain_words
from retrieval.insight.trail import CHARS_COMPARED, WORD, Trail
from retrieval.search.fusion import reciprocal_rank
from retrieval.search.plan import gathers
from retrieval.search.ranking import fuse_scores, lift_named
from retrieval.wire.search import Mode

JSON = dict[str, Any]

WEIGHTS = tuple(step / 10 for step in range(11))
GROUPED_ROOM = 3  # with one hit per document or group, its best passage may stand this many times deeper
PHRASES_MAX = 3
WORDS_MAX = 32  # of a query in which phrases are looked for: a search for many words and a phrase takes long
QUOTED_OR_STARRED = re.compile('["\u201c\u201d\u201e*]')
MODES: tuple[Mode, ...] = ("hybrid", "lexical", "dense")


def mends_of(trail: Trail) -> list[JSON]:
    """Return patches of the scoring, then of the query's words."""
    return [*weights(trail), *rank_fusion(trail), *uncorrected(trail), *phrases(trail)]


def room(trail: Trail) -> int:
    """Return the last exact rank at which a passage may be a hit as asked."""
    return trail.plan.k * (GROUPED_ROOM if gathers(trail.plan.request) else 1)


def modes(trail: Trail) -> list[Mode]:
    """Return the other modes in which the document may be a hit: of a hybrid search, its ranks tell."""
    ranks = {
        "lexical": [one.lexical_rank for one in trail.best],
        "dense": [one.dense_rank for one in trail.best],
    }
    others = [mode for mode in MODES if mode != trail.plan.mode]
    if trail.plan.mode != "hybrid":
        return others
    return [mode for mode in others if any(rank and rank <= room(trail) for rank in ranks[mode])]


def weights(trail: Trail) -> list[JSON]:
    """Return the weights nearest to those of the search that put the document among the first hits, if any do."""
    if trail.plan.mode != "hybrid":
        return []
    found, present = trail.search.fused.candidates, trail.plan.fusion.base_weight
    by_rank = trail.embedded.weight_dense is None
    for share in sorted(WEIGHTS, key=lambda one: abs(one - present)):
        scores = fuse_scores(
            trail.embedded, trail.embedded.weight_as_read(share), found, found.dense, found.lexical
        )
        if (by_rank or share != present) and leads(trail, scores):
            return [fusion(trail, weights={"dense": share, "lexical": round(1 - share, 1)})]
    return []


def rank_fusion(trail: Trail) -> list[JSON]:
    if trail.plan.mode != "hybrid" or trail.embedded.weight_dense is None:
        return []
    found = trail.search.fused.candidates
    scores = reciprocal_rank([found.dense_ranks, found.lexical_ranks], trail.plan.fusion.rrf_k)
    return [fusion(trail, method="rrf")] if leads(trail, scores) else []


def leads(trail: Trail, scores: NDArray[np.float64]) -> bool:
    """Whether these scores of the candidates put one of the document's among the first hits."""
    found = trail.search.fused.candidates
    scores, own = lift_named(found, scores, 1.0), np.isin(found.ids, trail.target.followed)
    return bool(own.any()) and int(np.count_nonzero(scores[~own] > scores[own].max())) < room(trail)


def fusion(trail: Trail, **wanted: Any) -> JSON:
    """Return the patch that replaces the request's fusion."""
    given = trail.plan.request.fusion
    set_now = {} if given is None else {name for name, value in asdict(given).items() if value is not None}
    return {"fusion": {**dict.fromkeys(set_now), **wanted}}


def uncorrected(trail: Trail) -> list[JSON]:
    return [{"typos": False}] if trail.search.answer.corrected else []


def phrases(trail: Trail) -> list[JSON]:
    """Return the query with words in quotes that stand together in it and in the document: several before single ones,
    rare ones first."""
    query = trail.plan.request.query
    if not query or trail.plan.operators or QUOTED_OR_STARRED.search(query):
        return []
    words = [one.span() for one in WORD.finditer(query)]
    if len(words) > WORDS_MAX:
        return []
    held = [plain_words(trail.passage.text, CHARS_COMPARED), plain_words(trail.passage.title)]
    gained = trail.first.gains
    gains = {word: sum(gained.get(term, 0.0) for term in terms) for word, terms in trail.found.words.items()}
    runs: dict[tuple[int, int], tuple[bool, float]] = {}
    reached = 0
    for first, (start, _) in enumerate(words):
        last, end = first, start
        while last < len(words) and any(plain_words(query[start : words[last][1]]) in text for text in held):
            end, last = words[last][1], last + 1
        if last > reached:  # not a part of the run before
            reached = last
            gain = sum(gains.get(query[slice(*one)], 0.0) for one in words[first:last])
            runs[start, end] = last - first > 1, gain
    best = sorted(
        (span for span, (_, gain) in runs.items() if gain), key=lambda span: runs[span], reverse=True
    )
    return [
        {"query": f'{query[:start]}"{query[start:end]}"{query[end:]}', "operators": True}
        for start, end in best[:PHRASES_MAX]
    ]

"""Whether a cached answer outlives writes: would the same search still return the same hits, order and scores?

Nothing that a search computes for one passage depends on other passages, except for the statistics of BM25 (rounded, so
that they hardly ever change), the tenth score of each ranking (for relevance), and which passages are candidates at
all. So an answer holds as long as

    the passages that it rests on are live, and none that had expired is back,
    its query scores passages as before (`Prepared.scoring`),
    and no passage written since would rank among those that it rests on.

An answer rests on its first candidates, which no other candidate and no passage beyond the depth of the rankings can
reach. Where more than the first ones matter (rank fusion, reranking, boosts, later pages), it rests on all candidates.
"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from indexes.base.model import Floats, Ids
from indexes.parts.query import Candidates
from retrieval.search.plan import EmbeddedQuery, Plan, rearranges
from retrieval.search.ranking import Fused, Positions, fuse_scores, last_score
from retrieval.search.relevance import EVIDENCE_HITS, LEAD_OVER
from retrieval.search.shard import Later, Shard, StateSearched

SMALLEST: Final = 1e-30  # above 0, below any BM25 score
ROUNDING: Final = 2e-6  # largest rounding error of a score
RESTS_ON_MAX: Final = 1024  # passages; with more, an answer holds only for the content it was computed on
NEWER_MAX: Final = 1024  # passages written since; checking more takes as long as searching
NOTHING: Final = float("-inf")


class Grounds(msgspec.Struct, frozen=True, array_like=True):
    """What an answer rests on. `lives` and `expired` are int64 passage ids, `vector` is the query's, float32.

    Passages with ids above `newest` are later. The answer ends with one that scores `score_from`, `dense_from` or
    `lexical_from`. It also ends once more than `spare` of them reach `dense_last` or `lexical_last`, because each
    pushes a candidate out of the rankings.
    """

    newest: int
    seq: int  # of the snapshot on which it last held; an older one may have passages deleted by then
    scoring: bytes
    vector: bytes
    share_read: float | None
    lives: bytes
    expired: bytes
    score_from: float
    dense_from: float
    lexical_from: float
    dense_last: float
    lexical_last: float
    spare: int
    light: bool  # preparing its query, and so checking it, takes no time


def grounds_of(
    embedded: EmbeddedQuery, state: StateSearched, fused: Fused, decided: Positions | None
) -> bytes:
    """Return the grounds of an answer that the candidates at positions `decided` decided, None for all of them; empty
    if it holds only for its content.

    `fused` holds the candidates as they were ranked, before boosts, sort or mmr reordered them.
    """
    found, request = fused.candidates, embedded.request
    # Ranks, which `explain` shows, count every candidate.
    by_content = embedded.examples or embedded.plan.facets or request.exact or request.explain
    # After steps, a later place of the dense ranking may have a better score.
    stepped = embedded.query.steps and embedded.query.vector is not None
    if by_content or stepped or max(len(found), len(state.expired)) > RESTS_ON_MAX:
        return b""
    depth = embedded.query.depth
    dense, lexical = (found.dense, found.dense_ranks), (found.lexical, found.lexical_ranks)
    last = dense_last, lexical_last = score_at(depth, *dense, NOTHING), score_at(depth, *lexical, SMALLEST)
    first = deciding_candidates(embedded, fused, decided)
    score_from = entry_score(embedded, fused, first)
    crowded = embedded.plan.mode == "hybrid" and score_from <= unseen_score_max(embedded, found, *last)
    if crowded or rests_on_all(embedded):
        lives, spare = np.arange(len(found)), 0
        score_from, dense_from, lexical_from = float("inf"), dense_last, lexical_last
    else:
        places = best_places(found)
        listed = places < LEAD_OVER
        listed[first] = True
        lives = np.flatnonzero(listed)
        dense_from = score_at(LEAD_OVER, *dense, NOTHING)
        lexical_from = score_at(LEAD_OVER, *lexical, SMALLEST)
        spare = depth - 1 - int(places[first].max(initial=0))
    vector = b"" if embedded.query.vector is None else embedded.query.vector.astype(np.float32).tobytes()
    return msgspec.msgpack.encode(
        Grounds(
            newest=state.newest,
            seq=state.seq,
            scoring=state.scoring,
            vector=vector,
            share_read=embedded.share_read,
            lives=found.ids[lives].astype(np.int64).tobytes(),
            expired=state.expired.astype(np.int64).tobytes(),
            score_from=score_from,
            dense_from=dense_from,
            lexical_from=lexical_from,
            dense_last=dense_last,
            lexical_last=lexical_last,
            spare=spare,
            light=state.light,
        )
    )


def is_light(kept: bytes) -> bool:
    """Whether `renew_grounds` may run on the event loop."""
    try:
        return msgspec.msgpack.decode(kept, type=Grounds).light
    except msgspec.DecodeError:
        return True


async def renew_grounds(kept: bytes, plan: Plan, similarity_floor: float, shard: Shard) -> bytes | None:
    """Return the grounds that an answer has on this later state of its shard; None if it does not hold there. `plan` is
    that of the same request, and `similarity_floor` that of its model."""
    try:
        grounds = msgspec.msgpack.decode(kept, type=Grounds)
    except msgspec.DecodeError:
        return None
    if shard.seq < grounds.seq:
        return None
    vector = np.frombuffer(grounds.vector, np.float32) if grounds.vector else None
    query = replace(plan.query, vector=vector)
    embedded = EmbeddedQuery(plan, query, similarity_floor, share_read=grounds.share_read)
    later = await shard.later(
        Later(
            embedded.query,
            grounds.scoring,
            grounds.newest,
            NEWER_MAX,
            ids_of(grounds.lives),
            ids_of(grounds.expired),
        )
    )
    if (found := later.candidates) is None:
        return None
    reaching = int(((found.dense >= grounds.dense_last) | (found.lexical >= grounds.lexical_last)).sum())
    ends = (found.dense >= grounds.dense_from) | (found.lexical >= grounds.lexical_from)
    if ends.any() or reaching > grounds.spare or (fused_scores(embedded, found) >= grounds.score_from).any():
        return None
    return msgspec.msgpack.encode(
        replace(
            grounds,
            newest=max(later.newest, grounds.newest),
            seq=shard.seq,
            spare=grounds.spare - reaching,
        )
    )


def rests_on_all(embedded: EmbeddedQuery) -> bool:
    request = embedded.request
    arranged = rearranges(request) or embedded.plan.rerank
    fused = embedded.plan.mode == "hybrid" and embedded.weight_dense is None
    return bool(
        fused or arranged or embedded.plan.operators or request.offset or request.min_relevance is not None
    )


def deciding_candidates(embedded: EmbeddedQuery, fused: Fused, decided: Positions | None) -> Positions:
    """Return the candidates that decide the answer: all up to its last hit and what it counts, and those of its
    evidence."""
    order, least = fused.order, embedded.request.min_score
    if decided is not None:
        places = np.zeros(len(fused.candidates), np.intp)
        places[order] = np.arange(len(order))
        reached = int(places[decided].max(initial=0)) + 1
    else:
        reached = len(order) if least is None else int((fused.scores[order] >= least).sum())
    return order[: max(reached, EVIDENCE_HITS)]


def entry_score(embedded: EmbeddedQuery, fused: Fused, first: Positions) -> float:
    """Return the score from which a new passage would be one of them."""
    if len(first) < len(fused.order):
        return float(fused.scores[first[-1]]) - ROUNDING
    return SMALLEST if embedded.plan.mode == "lexical" else NOTHING


def unseen_score_max(
    embedded: EmbeddedQuery, found: Candidates, dense_last: float, lexical_last: float
) -> float:
    """Return the highest score that a passage outside the candidates can have."""
    if dense_last == NOTHING:
        return NOTHING  # all passages are candidates
    dense = np.array([dense_last], np.float32)
    lexical = np.array([0.0 if lexical_last == SMALLEST else lexical_last], np.float32)
    return last_score(embedded, found, dense, lexical) + ROUNDING


def fused_scores(embedded: EmbeddedQuery, found: Candidates) -> Floats:
    if embedded.plan.mode != "hybrid":
        return found.dense if embedded.plan.mode == "dense" else found.lexical
    if embedded.weight_dense is None:
        return np.zeros(len(found), np.float32)  # rank fusion: the answer rests on all candidates
    return fuse_scores(embedded, embedded.weight_dense, found, found.dense, found.lexical).astype(np.float32)


def score_at(place: int, scores: Floats, ranks: NDArray[np.int32], none: float) -> float:
    """Return the score at this place of a ranking, counted from 1; `none` if it is shorter."""
    return float(scores[ranks == place - 1].max(initial=none))


def best_places(found: Candidates) -> NDArray[np.uint32]:
    """Return each candidate's better place in the two rankings, the first for one that only its name brought: nothing
    pushes it out. NOT_FOUND (-1) is the largest unsigned number."""
    best = np.minimum(found.dense_ranks.view(np.uint32), found.lexical_ranks.view(np.uint32))
    best[best == np.iinfo(np.uint32).max] = 0
    return best


def ids_of(stored: bytes) -> Ids:
    return np.frombuffer(stored, np.int64)

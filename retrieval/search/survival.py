"""Whether an answer outlives writes: would the same search still give it, hits, order, scores and all?

Nothing that a search computes of one passage depends on the others, but for the statistics of BM25 (rounded, so that
they hardly ever change), the tenth score of each ranking (for relevance), and which passages are candidates at all. So
an answer holds as long as

    the passages that it rests on live, and none that had expired is back,
    its query scores passages as it did (`Prepared.scoring`),
    and no passage written since has a place among those that it rests on.

What it rests on are its first candidates, which no other candidate and no passage beyond the depth of the rankings
reaches; and where more than the first ones matter (rank fusion, reranking, boosts, later pages), all candidates.
"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from indexes.base.model import Floats, Ids
from indexes.base.work import WorkBudget
from indexes.parts.query import Candidates
from indexes.parts.snapshot import Snapshot
from retrieval.search.plan import Plan
from retrieval.search.relevance import LEAD_OVER, SUPPORT_HITS
from retrieval.search.stages import Fused, Positions, added, last_score

SMALLEST: Final = 1e-30  # above 0, below any BM25 score
ROUNDING: Final = 2e-6  # of scores
RESTS_ON_MAX: Final = 1024  # passages: with more, an answer holds for its content alone
NEWER_MAX: Final = 1024  # passages written since: to judge by more takes as long as to search
NOTHING: Final = float("-inf")


class Grounds(msgspec.Struct, frozen=True, array_like=True):
    """What an answer rests on. `lives` and `expired` are int64 passage ids, `vector` is the query's, float32.

    Later passages are those above `newest`. It ends with one that scores `score_from`, `dense_from` or `lexical_from`,
    and with the one after `spare` that reach `dense_last` or `lexical_last` and so leave less room to candidates.
    """

    newest: int
    seq: int  # of the snapshot for which it was last found right; an older one may have what was deleted by then
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
    light: bool  # its query takes no time to prepare, and so to judge by


def grounds_of(
    plan: Plan, snapshot: Snapshot, scoring: bytes, fused: Fused, shown: list[int], *, light: bool
) -> bytes:
    """Of an answer whose hits are the candidates in the positions `shown`; empty if it holds for its content alone.

    `fused` are the candidates as they were ranked, before they were arranged in another order.
    """
    found, request = fused.candidates, plan.request
    # Ranks, which `explain` shows, count every candidate.
    by_content = plan.examples or plan.facets or request.exact or request.explain
    # After steps, a later place of the dense ranking may have a better score.
    stepped = plan.query.steps and plan.query.vector is not None
    if by_content or stepped or max(len(found), len(snapshot.expired)) > RESTS_ON_MAX:
        return b""
    depth = plan.query.depth
    dense, lexical = (found.dense, found.dense_ranks), (found.lexical, found.lexical_ranks)
    dense_last, lexical_last = in_place(depth, *dense, NOTHING), in_place(depth, *lexical, SMALLEST)
    first = first_of(plan, fused, shown)
    score_from = enters_from(plan, fused, first)
    crowded = plan.mode == "hybrid" and score_from <= unseen(plan, found, dense_last, lexical_last)
    if crowded or rests_on_all(plan):
        lives, spare = np.arange(len(found)), 0
        score_from, dense_from, lexical_from = float("inf"), dense_last, lexical_last
    else:
        places = places_of(found)
        listed = places < LEAD_OVER
        listed[first] = True
        lives = np.flatnonzero(listed)
        dense_from = in_place(LEAD_OVER, *dense, NOTHING)
        lexical_from = in_place(LEAD_OVER, *lexical, SMALLEST)
        spare = depth - 1 - int(places[first].max(initial=0))
    vector = b"" if plan.query.vector is None else plan.query.vector.astype(np.float32).tobytes()
    return msgspec.msgpack.encode(
        Grounds(
            newest=snapshot.newest,
            seq=snapshot.seq,
            scoring=scoring,
            vector=vector,
            share_read=plan.share_read,
            lives=found.ids[lives].astype(np.int64).tobytes(),
            expired=snapshot.expired.astype(np.int64).tobytes(),
            score_from=score_from,
            dense_from=dense_from,
            lexical_from=lexical_from,
            dense_last=dense_last,
            lexical_last=lexical_last,
            spare=spare,
            light=light,
        )
    )


def is_light(kept: bytes) -> bool:
    """Whether `still_holding` may run on the event loop."""
    try:
        return msgspec.msgpack.decode(kept, type=Grounds).light
    except msgspec.DecodeError:
        return True


def still_holding(
    kept: bytes, plan: Plan, snapshot: Snapshot, work: WorkBudget | None = None
) -> bytes | None:
    """The grounds that an answer has on this later snapshot; None if it does not hold there. `plan` is of the same
    request, not embedded."""
    try:
        grounds = msgspec.msgpack.decode(kept, type=Grounds)
    except msgspec.DecodeError:
        return None
    if (
        snapshot.seq < grounds.seq
        or not snapshot.live_among(ids_of(grounds.lives)).all()
        or snapshot.live_among(ids_of(grounds.expired)).any()
    ):
        return None
    vector = np.frombuffer(grounds.vector, np.float32) if grounds.vector else None
    plan = replace(plan, query=replace(plan.query, vector=vector), share_read=grounds.share_read)
    prepared = snapshot.prepare(plan.query, work=work)
    if prepared.scoring != grounds.scoring:
        return None
    found = prepared.newer(grounds.newest, NEWER_MAX)
    if found is None:
        return None
    reaching = int(((found.dense >= grounds.dense_last) | (found.lexical >= grounds.lexical_last)).sum())
    ends = (found.dense >= grounds.dense_from) | (found.lexical >= grounds.lexical_from)
    if ends.any() or reaching > grounds.spare or (scores_of(plan, found) >= grounds.score_from).any():
        return None
    return msgspec.msgpack.encode(
        replace(
            grounds,
            newest=max(snapshot.newest, grounds.newest),
            seq=snapshot.seq,
            spare=grounds.spare - reaching,
        )
    )


def rests_on_all(plan: Plan) -> bool:
    """Whether more than the first candidates decide about the answer."""
    request = plan.request
    arranged = request.boosts or request.sort or request.mmr or plan.rerank
    fused = plan.mode == "hybrid" and plan.weight_dense is None
    return bool(fused or arranged or plan.operators or request.offset or request.min_relevance is not None)


def first_of(plan: Plan, fused: Fused, shown: list[int]) -> Positions:
    """The candidates that decided about the answer: those as far as its last hit, and those that support it."""
    order, least = fused.order, plan.request.min_score
    if len(shown) == plan.last:
        places = np.zeros(len(fused.candidates), np.intp)
        places[order] = np.arange(len(order))
        reached = int(places[shown].max(initial=0)) + 1
    else:
        reached = len(order) if least is None else int((fused.scores[order] >= least).sum())
    return order[: max(reached, SUPPORT_HITS)]


def enters_from(plan: Plan, fused: Fused, first: Positions) -> float:
    """The score from which a passage would be one of them."""
    if len(first) < len(fused.order):
        return float(fused.scores[first[-1]]) - ROUNDING
    return SMALLEST if plan.mode == "lexical" else NOTHING


def unseen(plan: Plan, found: Candidates, dense_last: float, lexical_last: float) -> float:
    """The most that a passage can score that is no candidate."""
    if dense_last == NOTHING:
        return NOTHING  # all passages are candidates
    dense = np.array([dense_last], np.float32)
    lexical = np.array([0.0 if lexical_last == SMALLEST else lexical_last], np.float32)
    return last_score(plan, found, dense, lexical) + ROUNDING


def scores_of(plan: Plan, found: Candidates) -> Floats:
    if plan.mode != "hybrid":
        return found.dense if plan.mode == "dense" else found.lexical
    if plan.weight_dense is None:
        return np.zeros(len(found), np.float32)  # by ranks: all candidates count
    return added(plan, plan.weight_dense, found, found.dense, found.lexical).astype(np.float32)


def in_place(place: int, scores: Floats, ranks: NDArray[np.int32], none: float) -> float:
    """The score in this place of a ranking, from 1; `none` if it is shorter."""
    return float(scores[ranks == place - 1].max(initial=none))


def places_of(found: Candidates) -> NDArray[np.uint32]:
    """The better one of each candidate's places in the rankings; NOT_FOUND, -1, is the last of unsigned numbers."""
    return np.minimum(found.dense_ranks.view(np.uint32), found.lexical_ranks.view(np.uint32))


def ids_of(stored: bytes) -> Ids:
    return np.frombuffer(stored, np.int64)

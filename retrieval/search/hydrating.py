"""Hits of the candidates on a page: read from the log last, so that nothing deleted is returned."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from msgspec import UNSET

from indexes.base.model import TIERS, StoredPassage
from indexes.base.normalizing import utf8_bytes
from indexes.lexical.spans import Marks
from indexes.parts.query import Candidates
from indexes.reading.surroundings import Surroundings
from retrieval.admission.ceiling import size_of
from retrieval.search.collapsing import TIED_MAX, Group, Groups
from retrieval.search.highlighting import snippet
from retrieval.search.plan import EmbeddedQuery
from retrieval.search.ranking import Fused, Positions, last_score, none_if_nan, round_scores
from retrieval.search.relevance import features_of, relevance_of
from retrieval.search.rounds import Rounds
from retrieval.search.shard import Searchable, What, shard_of
from retrieval.wire.options import Expanded, Highlight
from retrieval.wire.search import Hit, Ranks, RelevanceEvidence, Scores

DEPTH_MAX = 32_768  # of a ranking; a search that still lacks hits at this depth returns those it has
COPY_BYTES = 512  # reading so much of a copy costs as much as another one
TIED_WITHIN = 1e-5  # scores of one vector in two tiers differ by less


async def hydrate(
    embedded: EmbeddedQuery, fused: Fused, shard: Searchable, terms: frozenset[str], rounds: Rounds
) -> tuple[list[Hit], bool] | None:
    """Make hits of the candidates on the page. Also returns whether some candidates were gone. `terms` are those to
    highlight. Returns None, and raises, as `read_page` does."""
    page = await read_page(embedded, fused, shard, rounds)
    if page is None:
        return None
    groups, vanished = page
    rounds.groups, chosen = groups.page, [one for group in groups.page for one in group.shown]
    hits = hits_of(embedded, fused, chosen)
    name_groups(hits, groups.page)
    for hit, (_, passage) in zip(hits, chosen) if rounds.collections else ():
        hit.collection = rounds.collections[shard_of(passage.id)]
    around: Mapping[int, Surroundings] = {}
    reach, counted = embedded.plan.reach, embedded.plan.counted
    if counted or reach is not None:
        numbers = [passage.id for _, passage in chosen]
        around = (await shard.fetch(numbers, What(reach=reach, hits=counted))).around
    if reach is not None:
        texts = [utf8_bytes(one.text) for one in around.values()]
        rounds.budget.reach(groups.size + sum(texts), max(texts, default=0))
        expand(hits, [around.get(passage.id) for _, passage in chosen])
    if embedded.request.highlight:
        rounds.highlights_whole = highlight(embedded, hits, terms, rounds)
    return hits, vanished


async def read_page(
    embedded: EmbeddedQuery, fused: Fused, shard: Searchable, rounds: Rounds
) -> tuple[Groups, bool] | None:
    """Read the candidates up to the end of the page that are still live, and collapse them. Also returns whether some
    candidates were gone.

    Returns None if there are too few and a deeper search may find more. Raises TooLarge as soon as those on the page
    exceed the budget.
    """
    ids, order = fused.candidates.ids, above_floors(embedded, fused)
    groups, vanished = Groups(embedded.request, embedded.plan.last), False
    what = What(passages=True, vectors=groups.similarity is not None)
    at, end = 0, len(order)
    while at < end and (
        groups.full or (rounds.may_read_on(embedded) and rounds.may_pass_copies(embedded, at))
    ):
        rounds.on_step()
        until = min(at + groups.step(at), end)
        batch = [(place, int(ids[order[place]])) for place in range(at, until)]
        batch = [(place, one) for place, one in batch if one not in rounds.left_out]
        unread = [one for _, one in batch if not groups.may_skip(rounds.traits.get(one))]
        found = await shard.fetch(unread, what)
        vectors = {} if found.vectors is None else dict(zip(unread, found.vectors, strict=True))
        gone = set(unread).difference(found.passages)
        vanished |= bool(gone)
        for place, one in batch:
            passage = found.passages.get(one)
            if one in gone or place >= end or (passage is not None and rounds.leaves_out(embedded, passage)):
                continue
            if passage is not None:
                rounds.traits[one] = groups.traits_of(passage)
            copies = groups.add((int(order[place]), one), rounds.traits[one], passage, vectors.get(one))
            if copies and passage is not None:
                rounds.budget.work.copies -= 1 + size_of(passage) // COPY_BYTES
            if end == len(order) and groups.full:
                end = place + 1 + (ties_after(place, order, fused.candidates) if groups.by_text else 0)
        rounds.budget.reach(groups.size, groups.longest)
        at = until
    lacking = groups.lack > 0 and len(groups.documents) != rounds.documents
    seeks = lacking and rounds.may_read_on(embedded) and may_find_more(embedded, fused)
    if seeks and rounds.may_pass_copies(embedded, at) and rounds.may_deepen(embedded):
        return None
    rounds.decided = order[:end] if groups.full else None
    return groups, vanished


def above_floors(embedded: EmbeddedQuery, fused: Fused) -> Positions:
    order = fused.order
    if embedded.request.min_score is not None:
        order = order[fused.scores[order] >= embedded.request.min_score]
    if embedded.request.min_relevance is not None:
        order = order[fused.relevance[order] >= embedded.request.min_relevance]
    return order


def ties_after(place: int, order: Positions, candidates: Candidates) -> int:
    """Return how many candidates follow that have the same two scores, at most TIED_MAX: copies do."""
    near = order[place : place + 1 + TIED_MAX]
    (dense, lexical), *others = zip(
        candidates.dense[near].tolist(), candidates.lexical[near].tolist(), strict=True
    )
    for count, (by_meaning, by_words) in enumerate(others):
        if differ(dense, by_meaning) or differ(lexical, by_words):
            return count
    return len(others)


def differ(one: float, other: float) -> bool:
    """Whether two scores are not the same; NaN is the same as NaN."""
    return not abs(one - other) < TIED_WITHIN and not (math.isnan(one) and math.isnan(other))


def may_find_more(embedded: EmbeddedQuery, fused: Fused) -> bool:
    """Whether passages beyond the depth of this search may pass its score floors.

    That is so if a ranking continues, and a passage with the last scores of both would pass: no later one scores
    higher.
    """
    found, depth = fused.candidates, embedded.query.depth
    rankings = (found.dense, found.dense_ranks), (found.lexical, found.lexical_ranks)
    lasts = [scores[ranks >= 0] for scores, ranks in rankings]
    if depth >= DEPTH_MAX or all(len(listed) < depth for listed in lasts):
        return False
    dense, lexical = (np.array([listed.min(initial=np.inf)], np.float32) for listed in lasts)
    dense[np.isinf(dense)], lexical[np.isinf(lexical)] = np.nan, 0.0
    if embedded.request.min_relevance is not None:
        features = features_of(found, dense, lexical, embedded.similarity_floor)
        likely = relevance_of(features, embedded.calibration(found))[0]
        if not likely >= embedded.request.min_relevance:  # NaN, too
            return False
    if embedded.request.min_score is None or fused.reranked is not None:
        return True
    if fused.boosts is not None:
        return False  # the metadata of later passages is unknown
    best = last_score(embedded, found, dense, lexical)
    return bool(best >= embedded.request.min_score)


def hits_of(embedded: EmbeddedQuery, fused: Fused, chosen: list[tuple[int, StoredPassage]]) -> list[Hit]:
    candidates = fused.candidates
    at = np.array([position for position, _ in chosen], np.intp)
    evidence = [
        RelevanceEvidence(*row[1:]) if embedded.request.explain else None
        for row in round_scores(fused.features[at]).tolist()
    ]
    read = [UNSET] * len(at) if fused.reranked is None else map(none_if_nan, fused.reranked[at].tolist())
    boosts = [UNSET] * len(at) if fused.boosts is None else round_scores(fused.boosts[at]).tolist()
    dense = round_scores(np.clip(candidates.dense[at], -1, 1))
    shown = dense, round_scores(candidates.lexical[at]), fused.scores[at], fused.relevance[at]
    names = [0.0] * len(at) if candidates.names is None else candidates.names[at].tolist()
    columns = zip(*(one.tolist() for one in shown), read, boosts, names, evidence, strict=True)
    return [
        Hit(
            document_id=passage.document_id,
            passage=passage.ordinal,
            start=passage.start,
            end=passage.end,
            text=passage.text,
            title=passage.title,
            metadata=passage.metadata,
            score=score,
            scores=Scores(none_if_nan(by_meaning), none_if_nan(by_words), by_reading, boost, name or UNSET),
            tier=TIERS[candidates.tiers[position]],
            ranks=ranks_of(candidates, position) if embedded.request.explain else None,
            heading=passage.heading,
            tokens=passage.tokens,
            language=passage.language,
            relevance=none_if_nan(likely),
            evidence=why,
        )
        for (position, passage), (by_meaning, by_words, score, likely, by_reading, boost, name, why) in zip(
            chosen, columns, strict=True
        )
    ]


def name_groups(hits: list[Hit], groups: list[Group]) -> None:
    """Tell each hit its group's value, and the first of each group how many candidates stand behind it."""
    left = iter(hits)
    for group in groups:
        for place, _ in enumerate(group.shown):
            hit = next(left)
            hit.group, hit.collapsed = group.value, 0 if place else len(group.behind)


def expand(hits: list[Hit], around: list[Surroundings | None]) -> None:
    """Attach its surroundings to each hit; just its own passage if it was deleted a moment ago."""
    for hit, found in zip(hits, around, strict=True):
        hit.expanded = (
            Expanded((found.first, found.last), found.start, found.end, found.text, found.cut)
            if found
            else Expanded((hit.passage, hit.passage), hit.start, hit.end, hit.text)
        )


def highlight(embedded: EmbeddedQuery, hits: list[Hit], terms: frozenset[str], rounds: Rounds) -> bool:
    """Mark the words of the query in each hit. Returns False if only the first hits, and of the last of these only the
    first part, were marked, because the work budget was used up."""
    work = rounds.budget.work
    wanted = Highlight() if embedded.request.highlight is True else embedded.request.highlight
    assert wanted
    marks = Marks(terms)
    for hit in hits:
        rounds.on_step()
        if not work.may_highlight:
            break
        hit.highlights = list(marks.of(hit.text, hit.language, work))
        hit.snippet = snippet(hit.text, hit.highlights, wanted.snippet_chars)
    return work.may_highlight


def ranks_of(candidates: Candidates, position: int) -> Ranks:
    dense, lexical = int(candidates.dense_ranks[position]), int(candidates.lexical_ranks[position])
    return Ranks(dense + 1 if dense >= 0 else None, lexical + 1 if lexical >= 0 else None)

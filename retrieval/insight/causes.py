"""Why a search did not return a document: the first stage that dropped it, and what decided there.

A cause that numbers alone do not prove is confirmed by testing what would happen without it: words that no index has
count as the cause only if a passage that had them would be among the hits.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from indexes.base.languages import primary, sure_language
from indexes.base.model import Floats
from indexes.base.paths import value_at
from indexes.filters.grammar import Comparison
from indexes.filters.unmet import Unmet
from retrieval.documents.writing import TITLE_TOKENS_MAX
from retrieval.embedding.embedders import Embedder
from retrieval.embedding.long_queries import sentences_of
from retrieval.insight.trail import WORD, Trail, first_index, round_score, strings_in, terms_in
from retrieval.search.relevance import READ_MIN
from retrieval.wire.explain import Cause, Kind, Stage
from retrieval.wire.options import Collapse

SHOWN_CHARS = 80
PASSAGES, LISTED_MAX = "other passages", 5
# Limits on texts from metadata and cut titles that are embedded to see if they would have found the document.
PIECES_MAX, PIECE_WORDS, PIECE_CHARS_MAX = 32, 16, 400


def cause_of_rank(trail: Trail) -> Cause:
    """Explain the rank of a document that is among the hits."""
    first, plan = trail.first, trail.plan
    parts = []
    if first.dense is not None and plan.mode != "lexical":
        parts.append(f"{ordinal(first.dense_rank)} by meaning (cosine {first.dense:.3f})")
    if plan.mode != "dense":
        rows = [row for row in trail.word_rows(first) if row.score]
        words = ", ".join(f"{row.word} {row.share:.0%}" for row in rows) or "none of its words"
        place = "last by words" if first.lexical is None else f"{ordinal(first.lexical_rank)} by words"
        parts.append(f"{place} (BM25 {first.lexical or 0:.3f}: {words})")
    name = trail.name(first)
    named = f"the query names it{'' if name == 1 else ' in part'}, and " if name else ""
    reason = f"it is hit {trail.rank}: {named}its passage {trail.passage.ordinal} is {' and '.join(parts)}"
    return cause(trail, "found", "page", reason)


def ordinal(rank: int | None) -> str:
    if rank is None:
        return "unranked"
    ending = "th" if rank % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(rank % 10, "th")
    return f"{rank}{ending}"


def count_of(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def numbers(trail: Trail) -> dict[str, Any]:
    """Return the evidence most causes share. `score` is what the best passage has, or would have had as a candidate."""
    first, plan = trail.first, trail.plan
    score = trail.score_with(first.dense, first.lexical)
    if (position := trail.position(first)) is not None:
        score = float(trail.search.fused.scores[position])
    found: dict[str, Any] = {
        "passage": trail.passage.ordinal,
        "score": round_score(score) if np.isfinite(score) else None,
        "last_hit_score": round_score(trail.last_score) if np.isfinite(trail.last_score) else None,
        "dense_rank": first.dense_rank,
        "lexical_rank": first.lexical_rank,
        "place": trail.place(first),
        "k": plan.k,
        "depth": trail.embedded.query.depth,
        "weight_dense": trail.embedded.weight_dense,
        "share_read": trail.embedded.share_read,
        "query_cut": trail.embedded.query_cut or None,
    }
    return {name: value for name, value in found.items() if value is not None}


def cause(trail: Trail, kind: Kind, stage: Stage, reason: str, **more: Any) -> Cause:
    """Return a cause with the evidence that most causes share, and more."""
    return Cause(kind, stage, reason, {**numbers(trail), **more})


# --- stages before scores ---------------------------------------------------------------------------------------


def filter_cause(trail: Trail) -> Cause | None:
    """Return the conditions of the request's filter that the document fails."""
    unmet = trail.found.unmet
    if not unmet:
        return None
    metadata = trail.target.document.metadata
    reason = "; ".join(describe_unmet(one, value_at(metadata, one.condition.key)) for one in unmet)
    evidence = [
        {
            "where": one.where,
            "condition": msgspec.to_builtins(one.condition),
            "document_value": value_at(metadata, one.condition.key),
        }
        for one in unmet
    ]
    return Cause("filtered", "filter", f"the filter leaves it out: {reason}", {"conditions": evidence})


def describe_unmet(unmet: Unmet, value: object) -> str:
    """Describe a failed condition: `filter.filters[0] asks for lang eq "en", the document has "de"`."""
    one = unmet.condition
    wanted = f"{one.type if isinstance(one, Comparison) else 'exists'} {show_value(one.value)}"
    has = f"no {one.key}" if value is None else show_value(value)
    text = f"{unmet.where} asks for {'not ' * unmet.negated}{one.key} {wanted}, the document has {has}"
    given = {type(one.value), type(value)}
    if isinstance(one, Comparison) and len(given) == 2 and {str, bool} & given and list not in given:
        text += "; values compare only with their own kind: string, number or boolean"
    return text


def show_value(value: object) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= SHOWN_CHARS else text[:SHOWN_CHARS] + "..."


def grouping_cause(trail: Trail) -> Cause | None:
    """Another passage of the document is shown in its place."""
    other = trail.target.other_in(trail.search.answer.hits) if trail.plan.request.group_by_document else None
    if other is None:
        return None
    rank, passage = other
    reason = f"group_by_document shows one passage of each document, here passage {passage} at rank {rank}"
    return cause(trail, "grouped", "group", reason, shown_passage=passage, shown_rank=rank)


def collapsing_cause(trail: Trail) -> Cause | None:
    """Other documents stand for it."""
    followed = set(trail.target.followed.tolist())
    group = next((one for one in trail.search.groups if not followed.isdisjoint(one.behind)), None)
    if group is None:
        return None
    rank = 1 + sum(len(one.shown) for one in trail.search.groups[: group.place])
    _, other = group.shown[0]
    what = f"passage {other.ordinal} of {other.document_id!r} at rank {rank}"
    wanted = trail.plan.request.collapse
    if isinstance(wanted, Collapse) and wanted.key is not None:
        hits = count_of(len(group.shown), "hit")
        reason = f"collapse shows {hits} with {wanted.key} {show_value(group.value)}, the first is {what}"
    else:
        alike = "text" if wanted == "text" else "text or a similar vector"
        reason = f"collapse shows one hit of those with the same {alike}, here {what}"
    shown = {"shown_document": other.document_id, "shown_passage": other.ordinal, "shown_rank": rank}
    return cause(trail, "collapsed", "group", reason, **shown, collapsed=len(group.behind))


def below_floor(trail: Trail) -> tuple[Cause, dict[str, float]] | None:
    """A passage that `min_score` or `min_relevance` drops, here or where a deeper search would rank it, and the floors
    that would keep it."""
    request, values = trail.plan.request, trail.compared_with_floors(trail.first)
    floors = {"min_score": request.min_score, "min_relevance": request.min_relevance}
    lower, parts = {}, []
    for name, floor in floors.items():
        if floor is not None and name in values and not values[name] >= floor:
            lower[name] = float(values[name])
            parts.append(f"{name.removeprefix('min_')} is {lower[name]:.4f}, {name} asks for {floor}")
    if not lower:
        return None
    text = " and ".join(parts)
    return cause(trail, "below_floor", "floor", f"its {text}", **floors, has=lower), lower


# --- candidates and scores --------------------------------------------------------------------------------------


def missed_by_index(trail: Trail) -> Cause | None:
    """Exact search would have found it, but the approximate indexes did not."""
    plan, first = trail.plan, trail.first
    if first.dense is None or first.dense_rank is None or plan.request.exact:
        return None
    position = trail.position(first)
    candidates = trail.search.fused.candidates
    if position is not None and candidates.dense_ranks[position] >= 0:
        return None
    wanted = plan.k if plan.mode == "dense" else trail.embedded.query.depth
    if first.dense_rank > wanted or trail.score_with(first.dense, first.lexical) < trail.last_score:
        return None
    if position is not None and trail.embedded.weight_dense is not None:
        return None  # weighted fusion scored it anyway
    evidence: dict[str, Any] = {"tier": first.tier}
    cold = first.cold_list
    if first.tier == "cold" and candidates.cold_skipped:
        how = f"the cold tier, where it is, was not searched: {candidates.cold_skipped}"
        evidence["cold_skipped"] = candidates.cold_skipped
    elif cold is not None and not candidates.cold_skipped:
        how = (
            f"it is in list {cold.number}, the {ordinal(cold.place)} nearest to the query of {cold.lists}; "
            f"{cold.always_read} are always read, others where they promise more"
        )
        evidence |= {
            "list": cold.number,
            "list_place": cold.place,
            "lists": cold.lists,
            "lists_always_read": cold.always_read,
        }
    else:
        how = f"the {first.tier} tier is searched approximately, and this search missed it"
    reason = f"exact search has it in place {first.dense_rank} by meaning, but {how}"
    return cause(trail, "missed_by_index", "candidates", reason, **evidence)


def unread_query(trail: Trail) -> Cause | None:
    """Dense search of a query that the model cannot read."""
    plan = trail.plan
    if plan.mode != "dense" or trail.embedded.share_read is None or trail.embedded.share_read >= READ_MIN:
        return None
    # Cosines of such a query prove nothing, but its words may occur literally in the metadata.
    words = set(WORD.findall((plan.request.query or "").lower()))
    if words <= set(WORD.findall(" ".join(strings_in(trail.target.document.metadata)).lower())):
        return elsewhere(trail, "metadata", "all words of the query stand", sorted(words))
    reason = f"the model reads {trail.embedded.share_read:.0%} of this query, and mode dense has nothing else to go by"
    return cause(trail, "unread_query", "candidates", reason)


async def nearest_sentence(trail: Trail, embedder: Embedder, own: Floats) -> str | None:
    """Return the sentence of a query longer than the model reads that is nearest to the vector of the document's best
    passage; None for other queries."""
    if not trail.embedded.query_cut or trail.plan.text is None:
        return None
    sentences = list(dict.fromkeys(sentences_of(trail.plan.text)))
    if len(sentences) > PIECES_MAX:
        sentences = sentences[: PIECES_MAX // 2] + sentences[-PIECES_MAX // 2 :]
    if len(sentences) < 2:
        return None
    cut = [one[:PIECE_CHARS_MAX] for one in sentences]
    return cut[int(np.argmax(await embedder.queries(cut) @ own))]


def cut_query(trail: Trail, rank: int) -> Cause:
    reason = (
        "the query is longer than the model reads, and so the model read its questions, or its beginning and end: "
        f"by one of its sentences alone, it is hit {rank}"
    )
    return cause(trail, "cut_query", "candidates", reason)


async def own_vector(trail: Trail, embedder: Embedder) -> Cause | None:
    """The document was written with its own vector, and the vector of its text would have found it."""
    first, passage = trail.first, trail.passage
    vector = trail.embedded.query.vector
    if passage.tokens or not passage.text or vector is None or first.dense is None:
        return None
    (of_text,) = await embedder.documents([f"{passage.title}\n{passage.text}".strip()])
    similarity = float(of_text @ vector)
    if similarity <= first.dense or trail.score_with(similarity, first.lexical) < trail.last_score:
        return None
    reason = (
        f"it was written with a vector of its own, whose cosine with the query is {first.dense:.3f}; "
        f"that of its text would be {similarity:.3f}, enough to be a hit"
    )
    cosines = {"own_cosine": round_score(first.dense), "text_cosine": round_score(similarity)}
    return cause(trail, "own_vector", "candidates", reason, **cosines)


def words_elsewhere(trail: Trail) -> Cause | None:
    """The query's words occur where no index looks, or in other passages; with them, it would be a hit."""
    first = trail.first
    lacking = {
        word: own for word, own in trail.found.words.items() if not any(one in first.gains for one in own)
    }
    for place, held in places_of(trail, {one for own in lacking.values() for one in own}).items():
        words = {word: [one for one in own if one in held] for word, own in lacking.items()}
        words = {word: own for word, own in words.items() if own}
        gain = sum(first.lacks.get(one, 0.0) for own in words.values() for one in own)
        if gain and trail.score_with(first.dense, (first.lexical or 0.0) + gain) >= trail.last_score:
            named = ", ".join(map(repr, words))
            found = elsewhere(trail, place, f"{named} {'stand' if len(words) > 1 else 'stands'}", list(words))
            if place == PASSAGES:
                found.evidence["passages"] = {
                    word: sorted({ordinal for one in own for ordinal in held[one]})[:LISTED_MAX]
                    for word, own in words.items()
                }
            return found
    return None


def places_of(trail: Trail, lacking: set[str]) -> dict[str, dict[str, list[int]]]:
    """Return where else the document has terms that the best passage lacks: by place, the terms and their passages."""
    passage, ids = trail.passage, trail.target.ids
    metadata = "\n".join(strings_in(trail.target.document.metadata))
    others = {term: held for term, held in trail.found.holding.items() if term in lacking}
    return {
        "metadata": {key: [] for key in lacking & terms_in(metadata, passage.language)},
        "headings": {key: [] for key in lacking & terms_in(passage.heading, passage.language)},
        PASSAGES: {term: [ids.index(one) for one in held.tolist()] for term, held in others.items()},
    }


async def meant_elsewhere(trail: Trail, embedder: Embedder) -> Cause | None:
    """The cut part of the title, or the metadata, embedded by itself, would be a hit."""
    vector, title = trail.embedded.query.vector, trail.passage.title
    starts = embedder.counter.starts(title) if title and trail.passage.tokens else ()
    pieces = [("metadata", text[:PIECE_CHARS_MAX]) for text in strings_in(trail.target.document.metadata)]
    if len(starts) > TITLE_TOKENS_MAX:
        words = title[starts[TITLE_TOKENS_MAX] :].split()
        pieces += [
            ("title", " ".join(words[at : at + PIECE_WORDS])) for at in range(0, len(words), PIECE_WORDS // 2)
        ]
    pieces = pieces[:PIECES_MAX]
    if not pieces or vector is None:
        return None
    similarities: Floats = await embedder.documents([text for _, text in pieces]) @ vector
    best = int(np.argmax(similarities))
    (place, text), similarity = pieces[best], float(similarities[best])
    if similarity < trail.last_score or similarity <= (trail.first.dense or -1.0):
        return None
    return elsewhere(trail, place, f"{text[:SHOWN_CHARS]!r} (cosine {similarity:.3f}) stands", [text])


WHERE = {
    "title": f"beyond the first {TITLE_TOKENS_MAX} tokens of its title, which are all that is embedded of a title",
    "metadata": "in its metadata, which filters read and searches do not",
    "headings": "in the headings above the passage, which are shown with it but not searched",
    PASSAGES: "in other passages of the document: no single one has what the query asks for",
}


def elsewhere(trail: Trail, place: str, what: str, words: list[str]) -> Cause:
    reason = f"{what} {WHERE[place]}"
    return cause(trail, "words_elsewhere", "candidates", reason, where=place, words=words)


def missing_terms(trail: Trail) -> Cause | None:
    """Words decide here, and the document has none of the query's words."""
    plan = trail.plan
    unread = trail.embedded.share_read is not None and trail.embedded.share_read < READ_MIN
    if plan.mode == "dense" or (plan.mode == "hybrid" and not unread) or trail.first.lexical is not None:
        return None
    language = trail.passage.language
    rows = trail.word_rows(trail.first)
    near = {row.word: row.near for row in rows if row.near}
    none = f"it holds none of {', '.join(repr(row.word) for row in rows)}" if rows else "the query has none"
    reason = f"words decide here, and {none}"
    if near:
        reason += "; but it holds " + ", ".join(f"{own!r} for {word!r}" for word, own in near.items())
    # Not the language whose words were looked up, which is always one that passages have.
    asked = plan.query.language or sure_language(plan.request.query or "")
    languages = {"language": language}
    if asked is not None:
        languages["query_language"] = asked = primary(asked)
    if language and asked and language != asked:
        reason += f"; it is in language {language!r}, the query in {asked!r}"
    words = [row.word for row in rows]
    return cause(trail, "missing_terms", "candidates", reason, words=words, near=near, **languages)


def beyond_depth(trail: Trail) -> tuple[Cause, int] | None:
    """A hybrid search fuses only the top of each ranking, and it is in neither. Also returns the depth that would
    reach it."""
    first, plan = trail.first, trail.plan
    ranks = [rank for rank in (first.dense_rank, first.lexical_rank) if rank is not None]
    if plan.mode != "hybrid" or trail.position(first) is not None or not ranks:
        return None
    depth = trail.embedded.query.depth
    reason = (
        f"each ranking hands its first {depth} passages on, and it is {ordinal(first.dense_rank)} by "
        f"meaning and {ordinal(first.lexical_rank)} by words"
    )
    if trail.score_with(first.dense, first.lexical) >= trail.last_score:
        reason += "; its score would make it a hit"
    needed = min(ranks)
    return cause(trail, "beyond_depth", "candidates", reason, depth_needed=needed), needed


def score_cause(trail: Trail) -> tuple[Cause, int]:
    """Others score higher. Also returns the number of hits that would reach it, as far as known."""
    first, evidence, plan = trail.first, numbers(trail), trail.plan
    if trail.embedded.leaves_out(trail.passage, trail.work):
        example = (
            trail.embedded.examples is not None
            and trail.passage.document_id in trail.embedded.examples.documents
        )
        reason = "it is an example itself" if example else "it does not hold a phrase or prefix of the query"
        return Cause("left_out", "page", f"{reason}, and so no hit", evidence), plan.k
    needed = place_after_floors(trail) or first.dense_rank or first.lexical_rank
    if needed is None:
        return Cause("left_out", "candidates", "no ranking of this search has it", evidence), plan.k
    if needed <= trail.plan.k:
        reason = f"by its scores it would be hit {needed}: another option of the search leaves it out"
        return Cause("left_out", "page", reason, evidence), needed
    reason = f"{count_of(needed - 1, 'passage')} {'scores' if needed == 2 else 'score'} more"
    if plan.request.sort:
        reason = f"{count_of(needed - 1, 'passage')} {'stands' if needed == 2 else 'stand'} before it as `sort` has it"
    elif "score" in evidence and "last_hit_score" in evidence:
        behind = evidence["last_hit_score"] - evidence["score"]
        reason += f"; it lacks {behind:.4f} to the last of the {trail.plan.k} hits"
    if trail.plan.mode != "dense":
        lacking = [row.word for row in trail.word_rows(first) if not row.score]
        if lacking:
            reason += f"; it does not hold {', '.join(map(repr, lacking))}"
    return Cause("outscored", "page", reason, {**evidence, "k_needed": needed}), needed


def place_after_floors(trail: Trail) -> int | None:
    position, fused = trail.position(trail.first), trail.search.fused
    if position is None:
        return None
    order, request = fused.order, trail.plan.request
    for values, floor in (fused.scores, request.min_score), (fused.relevance, request.min_relevance):
        if floor is not None:
            order = order[values[order] >= floor]
    at = first_index(order, position)
    return None if at is None else at + 1

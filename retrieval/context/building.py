"""Context for a prompt: the passages of one or several searches, without repetition, cut to an exact number of
tokens, each cited. `framing` defines how they are shown.

A budget is spent on many documents before many passages of one, because the right page is then included more often
(docs/context.md has the measurements). In order, as long as there is room:

1. the best passage of each document, whole for the first few, as a short excerpt for the others;
2. excerpts grow into whole passages, best first;
3. further passages, best first, at most `per_document` per document.

Neighboring passages of a document are merged. A document's passages appear together, in document order; documents
are ordered by their best passage, or as `order` says.

Packing counts tokens text by text, but the limit applies to the whole, including frames and messages: passages of the
last document, then of the one before, are dropped until it fits, the worst first.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from indexes.base.errors import InvalidInput, TooLarge
from indexes.base.work import OnStep, do_nothing
from retrieval.base.settings import Config
from retrieval.context.framing import Framing, check_template, fence_for
from retrieval.context.joining import Key, join_answers, key_of, without_repetition
from retrieval.context.packing import (
    SAMPLE_CHARS,
    Block,
    Packer,
    Page,
    StartsOf,
    excerpt_tokens_of,
    pack,
    per_document_of,
)
from retrieval.wire.search import (
    Citation,
    Considered,
    ContextAnswer,
    ContextRequest,
    Hit,
    Outcome,
    PassageKey,
    SearchAnswer,
    SearchOptions,
    SearchRequest,
)

HINTED = 16  # number of short passages whose tokens the hint counts
DEFAULT_K = 100  # passages to search: more than fit, since documents have several and not all are shown


def queries_of(wanted: ContextRequest, config: Config) -> list[str]:
    """Return the queries of a request. Raises InvalidInput or TooLarge unless there are from one to the maximum."""
    if (wanted.query is None) == (wanted.queries is None):
        raise InvalidInput("a context needs either query or queries", param="query")
    if wanted.queries is None:
        return [wanted.query or ""]
    most = config.limits.queries_per_context_max
    if not wanted.queries:
        raise InvalidInput("queries is empty, expected at least one", param="queries")
    if len(wanted.queries) > most:
        raise TooLarge(f"{len(wanted.queries)} queries, at most {most} are allowed", param="queries")
    return wanted.queries


def check_context(wanted: ContextRequest, config: Config) -> None:
    """Check what a search would not check. Raises InvalidInput or TooLarge naming the field."""
    if wanted.token_budget > config.limits.token_budget_max:
        raise TooLarge(f"token_budget must be at most {config.limits.token_budget_max}", param="token_budget")
    queries, k_max = queries_of(wanted, config), config.limits.k_max
    if wanted.k is not None and wanted.k > DEFAULT_K and wanted.k * len(queries) > k_max:
        most = max(DEFAULT_K, k_max // len(queries))
        raise TooLarge(f"k is for each of {len(queries)} queries, and at most {most} for so many", param="k")
    check_template(wanted.template, config)
    dated = wanted.order in {"newest", "oldest"}
    if dated != (wanted.date_key is not None):
        raise InvalidInput("date_key and order newest or oldest require each other", param="date_key")


def search_requests(wanted: ContextRequest, config: Config) -> list[SearchRequest]:
    """Return the searches behind a context. They ask for more passages than will fit, since some repeat others."""
    options = {name: getattr(wanted, name) for name in SearchOptions.__struct_fields__}
    k = min(DEFAULT_K, config.limits.k_max) if wanted.k is None else wanted.k
    return [SearchRequest(query=query, **{**options, "k": k}) for query in queries_of(wanted, config)]


def build_context(
    found: Sequence[SearchAnswer],
    wanted: ContextRequest,
    starts_of: StartsOf,
    config: Config,
    on_step: OnStep = do_nothing,
    *,
    similarity_floor: float,
) -> ContextAnswer:
    """Pack passages into at most `wanted.token_budget` tokens; one that does not fit is skipped in favor of a
    smaller one.

    `found` has an answer for each query. `similarity_floor` is the model's, for requests and settings that set none.
    `on_step` is called between steps, and `starts_of` should call it too in long texts.
    """
    usual = config.context.min_similarity
    floor = similarity_floor if usual == "model" else usual
    together = join_answers(found, floor if wanted.min_similarity is None else wanted.min_similarity)
    distinct, repeats = without_repetition(together.relevant, on_step)
    rank_of = {key_of(hit): rank for rank, hit in enumerate(distinct)}
    framing = Framing(wanted, fence_for(distinct))
    packer = Packer(wanted, framing, starts_of, on_step)
    pages = pack(distinct, wanted, packer, config)
    whole = packer.render(pages)
    while whole.tokens > wanted.token_budget:
        # Joined texts may take a few more tokens than the sum of their parts. Counting the whole is slow, so leave out
        # as many passages at once as needed.
        beyond = whole.tokens - wanted.token_budget
        while beyond > 0 and pages:
            beyond -= packer.shrink(pages[-1], rank_of)
            if not pages[-1].blocks:
                pages.pop()
        on_step()
        whole = packer.render(pages)
    return ContextAnswer(
        context=whole.context,
        citations=[
            cite(block, number, tokens)
            for number, (block, tokens) in enumerate(zip(whole.blocks, whole.of_blocks, strict=True), 1)
        ],
        tokens=whole.tokens,
        omitted=len(distinct) - sum(len(block.hits) for block in whole.blocks),
        irrelevant=len(together.irrelevant),
        receipt=together.receipt,
        timings_ms=together.timings_ms,
        fence=framing.fence,
        messages=whole.messages or None,
        hint=hint(distinct, packer, config) if distinct and not whole.blocks else None,
        passages=fates(together.hits, together.irrelevant, repeats, whole.blocks, per_document_of(wanted))
        if wanted.explain
        else None,
    )


def hint(hits: list[Hit], packer: Packer, config: Config) -> str:
    """Return a message with the number of tokens that the smallest of these passages needs, estimated if no budget may
    be as large."""
    excerpt_tokens, most = excerpt_tokens_of(packer.wanted, config), config.limits.token_budget_max

    def needed(hit: Hit) -> int:
        packer.on_step()
        block = packer.whole(hit)
        if 0 < excerpt_tokens < block.tokens:
            block = packer.excerpt(hit, excerpt_tokens)
        estimate = packer.besides + packer.tokens(block)
        return estimate if estimate > most else max(estimate, packer.most_tokens([Page([block])]))

    shortest = heapq.nsmallest(HINTED, hits, key=lambda hit: len(hit.text) + len(hit.title))
    short = [hit for hit in shortest if len(hit.text) <= SAMPLE_CHARS]
    least = min(map(needed, short or shortest[:1]))
    needs = f"{least} tokens" if least <= most else f"more than the {most} tokens that it may have"
    return f"token_budget {packer.wanted.token_budget} is too small: the smallest passage found needs {needs}"


def fates(
    hits: Sequence[Hit],
    irrelevant: Sequence[Hit],
    repeats: dict[Key, Hit],
    blocks: Sequence[Block],
    per_document: int | None,
) -> list[Considered]:
    """Return what was done with each passage found."""
    numbers = {key_of(hit): (number, block) for number, block in enumerate(blocks, 1) for hit in block.hits}
    far = {key_of(hit) for hit in irrelevant}
    documents = [hit.document_id for block in blocks for hit in block.hits]

    def of(hit: Hit) -> Considered:
        key, number, same = key_of(hit), None, None
        outcome: Outcome = "no_room"
        if key in numbers:
            number, block = numbers[key]
            outcome = "excerpt" if block.excerpt else "shown"
        elif key in far:
            outcome = "irrelevant"
        elif key in repeats:
            outcome, same = "repeats", PassageKey(repeats[key].document_id, repeats[key].passage)
        elif per_document is not None and documents.count(hit.document_id) >= per_document:
            outcome = "per_document"
        return Considered(hit.document_id, hit.passage, hit.score, outcome, number, same)

    return list(map(of, hits))


def cite(block: Block, number: int, tokens: int) -> Citation:
    first = block.hits[0]
    return Citation(
        number=number,
        document_id=first.document_id,
        passages=[hit.passage for hit in block.hits],
        start=block.start,
        end=block.end,
        title=first.title,
        heading=first.heading,
        metadata=first.metadata,
        score=max(hit.score for hit in block.hits),
        relevance=max((hit.relevance for hit in block.hits if hit.relevance is not None), default=None),
        excerpt=block.excerpt,
        tokens=tokens,
    )

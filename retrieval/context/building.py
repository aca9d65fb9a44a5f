"""Context for a prompt: the passages of one or several searches, without repetition, cut to an exact number of tokens,
each cited. `framing` says how they are shown.

A budget goes to many documents before it goes to many passages of one: the right page is then more often among them
(docs/context.md has the measurements). In turn, as long as there is room,

1. the best passage of each document, whole for the first few, as a short excerpt for the others;
2. excerpts grow into whole passages, best first;
3. further passages, best first, at most `per_document` of one document.

Neighbouring passages of a document become one. A document's passages stand together, in the order of the document;
documents stand by their best passage, or as `order` says.

Packing counts text by text. What counts is the whole in the end, marks and messages too: documents leave from the last
until it fits.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from indexes.base.errors import InvalidInput, TooLarge
from indexes.base.work import OnStep, do_nothing
from retrieval.base.settings import Config
from retrieval.context.framing import Framing, check_template, fence_for
from retrieval.context.joining import Key, joined, key_of, without_repetition
from retrieval.context.packing import (
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

HINTED = 16  # the shortest passages found, of which the hint counts the tokens
DEFAULT_K = 100  # passages searched: many more than fit, since documents have several and only some are shown


def queries_of(wanted: ContextRequest, config: Config) -> list[str]:
    """Raises InvalidInput or TooLarge unless there is one, or a bounded number of them."""
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
    """What a search would not notice. Raises InvalidInput or TooLarge naming the field."""
    if wanted.token_budget > config.limits.token_budget_max:
        raise TooLarge(f"token_budget must be at most {config.limits.token_budget_max}", param="token_budget")
    queries_of(wanted, config)
    check_template(wanted.template, config)
    dated = wanted.order in {"newest", "oldest"}
    if dated != (wanted.date_key is not None):
        raise InvalidInput("date_key and order newest or oldest need each other", param="date_key")


def search_requests(wanted: ContextRequest, config: Config) -> list[SearchRequest]:
    """The searches behind a context: more passages than will fit, since some repeat others."""
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
    """Never more than `wanted.token_budget` tokens; a passage that does not fit makes room for a smaller one.

    `found` has an answer for each query. `similarity_floor` is the model's, for requests and settings that name none.
    `on_step` is called between its steps, and `starts_of` should do the same in long texts.
    """
    usual = config.context.min_similarity
    floor = similarity_floor if usual == "model" else usual
    together = joined(found, floor if wanted.min_similarity is None else wanted.min_similarity)
    distinct, repeats = without_repetition(together.relevant, on_step)
    framing = Framing(wanted, fence_for(distinct))
    packer = Packer(wanted, framing, starts_of, on_step)
    pages = pack(distinct, wanted, packer, config)
    whole = packer.rendered(pages)
    while whole.tokens > wanted.token_budget:
        # Together, texts may need some tokens more than one by one. Counting all of them takes long, so as many
        # documents leave at once as have to.
        counted = dict(zip(map(id, whole.blocks), whole.of_blocks, strict=True))
        beyond = whole.tokens - wanted.token_budget
        while beyond > 0:
            beyond -= max(sum(counted[id(block)] for block in pages.pop().blocks), 1)
        on_step()
        whole = packer.rendered(pages)
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
        passages=considered(
            together.hits, together.irrelevant, repeats, whole.blocks, per_document_of(wanted)
        )
        if wanted.explain
        else None,
    )


def hint(hits: list[Hit], packer: Packer, config: Config) -> str:
    """What the smallest of these passages needs."""
    excerpt_tokens = excerpt_tokens_of(packer.wanted, config)

    def needed(hit: Hit) -> int:
        packer.on_step()
        block = packer.whole(hit)
        if 0 < excerpt_tokens < block.tokens:
            block = packer.excerpt(hit, excerpt_tokens)
        estimate = packer.besides + packer.tokens(block)
        return max(estimate, packer.rendered([Page([block])]).tokens)

    shortest = heapq.nsmallest(HINTED, hits, key=lambda hit: len(hit.text) + len(hit.title))
    least = min(map(needed, shortest))
    return f"token_budget {packer.wanted.token_budget} is too small: the smallest passage found needs {least} tokens"


def considered(
    hits: Sequence[Hit],
    irrelevant: Sequence[Hit],
    repeats: dict[Key, Hit],
    blocks: Sequence[Block],
    per_document: int | None,
) -> list[Considered]:
    """What became of each."""
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

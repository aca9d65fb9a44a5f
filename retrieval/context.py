"""Context for a prompt: the passages of a search, without repetition, cut to an exact number of tokens, each cited.

    <passage number="1" title="Refunds > Deadlines">
    Refunds are paid within 14 days.
    </passage>

A budget goes to many documents before it goes to many passages of one: the right page is then more often among them
(docs/context.md has the measurements). In turn, as long as there is room,

1. the best passage of each document, whole for the first few, as a short excerpt for the others;
2. excerpts grow into whole passages, best first;
3. further passages, best first, at most `per_document` of one document.

Neighbouring passages of a document become one. A document's passages stand together, in the order of the document;
documents stand by their best passage.

Passages are untrusted text. They cannot close their own frame: anything in them that looks like one of our tags loses
its angle bracket. The budget counts everything, tags too, with the tokenizer of the collection's own model.
"""

from __future__ import annotations

import html
import itertools
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from indexes.lexical.analysis import terms
from retrieval.chunking import SENTENCE
from retrieval.outline import PATH_SEPARATOR
from retrieval.schemas import Citation, ContextAnswer, ContextRequest, Hit, SearchAnswer, SearchRequest
from retrieval.settings import Config

StartsOf = Callable[[str], Sequence[int]]  # where each token of a text begins

DEFAULT_K = 100  # passages searched: many more than fit, since documents have several and only some are shown
OVERLAP_MAX = 0.5  # of the shorter passage: beyond it, two passages of one document repeat each other
WHOLE_SHARE = 1 / 4  # of the budget, for the best passages of the first documents
LEAST_TOKENS = 24  # less room is not worth a frame
OWN_TAG = re.compile(r"<(?=\s*/?\s*passage\b)", re.IGNORECASE)
WORDS = re.compile(r"\w+")


def search_request(wanted: ContextRequest, config: Config) -> SearchRequest:
    """The search behind a context: more passages than will fit, since some repeat others."""
    return SearchRequest(
        query=wanted.query,
        k=min(DEFAULT_K, config.limits.k_max) if wanted.k is None else wanted.k,
        mode=wanted.mode,
        filter=wanted.filter,
        fusion=wanted.fusion,
        group_by_document=wanted.group_by_document,
        min_score=wanted.min_score,
        min_seq=wanted.min_seq,
        deadline_ms=wanted.deadline_ms,
        cache=wanted.cache,
    )


def build_context(
    found: SearchAnswer, wanted: ContextRequest, starts_of: StartsOf, config: Config
) -> ContextAnswer:
    """Never more than `wanted.token_budget` tokens; a passage that does not fit makes room for a smaller one."""
    floor = config.context.min_similarity if wanted.min_similarity is None else wanted.min_similarity
    relevant = relevant_of(found.hits, floor)
    distinct = without_repetition(relevant)
    pages = pack(distinct, wanted, starts_of, config)
    while True:
        blocks = [block for page in pages for block in page.blocks]
        frames = [framed(block, number) for number, block in enumerate(blocks, 1)]
        context = "\n\n".join(frames)
        tokens = len(starts_of(context))
        if tokens <= wanted.token_budget:
            break
        pages.pop()  # frames counted one by one may need a token less than side by side
    shown = sum(len(block.hits) for block in blocks)
    return ContextAnswer(
        context=context,
        citations=[
            cite(block, number, len(starts_of(frame)))
            for number, (block, frame) in enumerate(zip(blocks, frames, strict=True), 1)
        ],
        tokens=tokens,
        omitted=len(distinct) - shown,
        irrelevant=len(found.hits) - len(relevant),
        receipt=found.receipt,
        timings_ms=found.timings_ms,
    )


def relevant_of(hits: list[Hit], floor: float) -> list[Hit]:
    """Without those whose meaning is far from the query's, unless they hold its words about as well as any."""
    words = max((hit.scores.lexical or 0.0 for hit in hits), default=0.0) / 2
    return [
        hit
        for hit in hits
        if hit.scores.dense is None or hit.scores.dense >= floor or (hit.scores.lexical or 0.0) > words
    ]


@dataclass(frozen=True, slots=True)
class Block:
    """What one frame shows: a passage, neighbouring passages in the order of the document, or an excerpt of one.

    `text` is the document's from `start` to `end`, but for the white space between neighbours.
    """

    hits: tuple[Hit, ...]
    start: int
    end: int
    text: str
    excerpt: bool = False


@dataclass(slots=True)
class Page:
    """What is shown of one document, and the tokens that takes."""

    blocks: list[Block] = field(default_factory=list)
    tokens: int = 0

    @property
    def hits(self) -> list[Hit]:
        return [hit for block in self.blocks for hit in block.hits]


class Packer:
    """Takes what still fits."""

    def __init__(self, budget: int, starts_of: StartsOf) -> None:
        self.left = budget
        self._starts_of = starts_of

    def tokens(self, block: Block) -> int:
        return len(self._starts_of(framed(block, 10) + "\n\n"))

    def put(self, page: Page, blocks: list[Block]) -> bool:
        """Show these blocks of a document instead of the ones so far, if there is room."""
        tokens = sum(self.tokens(block) for block in blocks)
        if tokens - page.tokens > self.left:
            return False
        self.left -= tokens - page.tokens
        page.blocks, page.tokens = blocks, tokens
        return True


def pack(hits: list[Hit], wanted: ContextRequest, starts_of: StartsOf, config: Config) -> list[Page]:
    """The documents to show, best first."""
    excerpt_tokens = config.context.excerpt_tokens if wanted.excerpt_tokens is None else wanted.excerpt_tokens
    per_document = 1 if wanted.group_by_document else wanted.per_document
    packer = Packer(wanted.token_budget, starts_of)
    pages: dict[str, Page] = {}
    whole_left = WHOLE_SHARE * wanted.token_budget
    asked = frozenset(terms(wanted.query))
    for hit in hits:
        if packer.left < LEAST_TOKENS:
            break
        if hit.document_id in pages:
            continue
        page, block = Page(), whole(hit)
        short = excerpt(hit, asked, excerpt_tokens, starts_of) if excerpt_tokens else block
        if short.excerpt and pages and packer.tokens(block) > whole_left:
            fits = packer.put(page, [short])
        elif fits := packer.put(page, [block]):
            whole_left -= page.tokens if short.excerpt else 0
        else:
            fits = packer.put(page, [short])
        if fits:
            pages[hit.document_id] = page
    for page in pages.values():
        if page.blocks[0].excerpt:
            packer.put(page, [whole(page.hits[0])])
    for hit in hits:
        if packer.left < LEAST_TOKENS:
            break
        page = pages.setdefault(hit.document_id, Page())
        if hit not in page.hits and (per_document is None or len(page.hits) < per_document):
            packer.put(page, list(merged([*page.hits, hit])))
    return [page for page in pages.values() if page.blocks]


def whole(hit: Hit) -> Block:
    return Block((hit,), hit.start, hit.end, hit.text)


def merged(hits: Iterable[Hit]) -> Iterator[Block]:
    """Whole passages of one document, in its order, neighbours as one block."""
    block: Block | None = None
    for hit in sorted(hits, key=lambda hit: hit.start):
        if block and (hit.start <= block.end or hit.passage == block.hits[-1].passage + 1):
            shared = block.end - hit.start
            more = hit.text[shared:] if shared >= 0 else "\n\n" + hit.text
            block = Block((*block.hits, hit), block.start, max(block.end, hit.end), block.text + more)
            continue
        if block:
            yield block
        block = whole(hit)
    if block:
        yield block


def excerpt(hit: Hit, asked: frozenset[str], tokens_max: int, starts_of: StartsOf) -> Block:
    """The run of sentences with the most words of the query, the first among equals, in at most so many tokens.

    The whole passage, if that is no longer. A single sentence that is longer is cut after a word.
    """
    text = hit.text
    starts = starts_of(text)
    if len(starts) <= tokens_max:
        return whole(hit)
    bounds = sorted({0, *(match.end() for match in SENTENCE.finditer(text)), len(text)})
    sentences = [(start, end, frozenset(terms(text[start:end]))) for start, end in itertools.pairwise(bounds)]
    best, best_words = (0, bounds[1]), -1
    for first, (start, end, words) in enumerate(sentences):
        limit, stop, found = after_tokens(text, starts, start, tokens_max), end, words & asked
        for _, further, more in sentences[first + 1 :]:
            if further > limit:
                break
            stop, found = further, found | (more & asked)
        if len(found) > best_words:
            best, best_words = (start, min(stop, limit)), len(found)
    start, end = best
    cut = text[start:end].rstrip()
    return Block((hit,), hit.start + start, hit.start + start + len(cut), cut, excerpt=True)


def after_tokens(text: str, starts: Sequence[int], begin: int, tokens: int) -> int:
    """Where so many tokens from `begin` end: at the last white space before the next one, if there is any."""
    next_token = bisect_right(starts, begin - 1) + tokens
    if next_token >= len(starts):
        return len(text)
    end = starts[next_token]
    return next((at for at in range(end, begin, -1) if text[at - 1].isspace()), end)


def without_repetition(hits: list[Hit]) -> list[Hit]:
    """The first of passages that say the same: equal words, or mostly the same stretch of one document."""
    kept: list[Hit] = []
    by_document: dict[str, list[Hit]] = {}
    seen: set[str] = set()
    for hit in hits:
        words = " ".join(WORDS.findall(unicodedata.normalize("NFKC", hit.text).casefold()))
        others = by_document.setdefault(hit.document_id, [])
        if words in seen or any(overlapping(hit, other) for other in others):
            continue
        seen.add(words)
        others.append(hit)
        kept.append(hit)
    return kept


def overlapping(hit: Hit, other: Hit) -> bool:
    """Whether two passages of one document are mostly the same."""
    shared = min(hit.end, other.end) - max(hit.start, other.start)
    return shared > OVERLAP_MAX * min(hit.end - hit.start, other.end - other.start)


def framed(block: Block, number: int) -> str:
    first = block.hits[0]
    # An excerpt is short: the path to its section would take as many tokens again.
    parts = (first.title or first.document_id, "" if block.excerpt else first.heading)
    title = PATH_SEPARATOR.join(part for part in parts if part)
    text = OWN_TAG.sub("&lt;", block.text.strip())
    return f'<passage number="{number}" title="{html.escape(title)}">\n{text}\n</passage>'


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
        excerpt=block.excerpt,
        tokens=tokens,
    )

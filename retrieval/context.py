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
import re
import unicodedata
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from indexes import GoOn, nobody_waits, query_terms, terms
from retrieval.chunking import SENTENCE
from retrieval.outline import PATH_SEPARATOR
from retrieval.schemas import (
    Citation,
    ContextAnswer,
    ContextRequest,
    Hit,
    SearchAnswer,
    SearchOptions,
    SearchRequest,
)
from retrieval.settings import Config

StartsOf = Callable[[str], Sequence[int]]  # where each token of a text begins

DEFAULT_K = 100  # passages searched: many more than fit, since documents have several and only some are shown
OVERLAP_MAX = 0.5  # of the shorter passage: beyond it, two passages of one document repeat each other
WHOLE_SHARE = 1 / 4  # of the budget, for the best passages of the first documents
CUT_MARK = " …"  # after an excerpt
LEAST_TOKENS = 24  # less room is not worth a frame
OWN_TAG = re.compile(r"<(?=\s*/?\s*passage\b)", re.IGNORECASE)
WORDS = re.compile(r"\w+")


def search_request(wanted: ContextRequest, config: Config) -> SearchRequest:
    """The search behind a context: more passages than will fit, since some repeat others."""
    options = {name: getattr(wanted, name) for name in SearchOptions.__struct_fields__}
    k = min(DEFAULT_K, config.limits.k_max) if wanted.k is None else wanted.k
    return SearchRequest(query=wanted.query, **{**options, "k": k})


def build_context(
    found: SearchAnswer,
    wanted: ContextRequest,
    starts_of: StartsOf,
    config: Config,
    go_on: GoOn = nobody_waits,
    *,
    similarity_floor: float,
) -> ContextAnswer:
    """Never more than `wanted.token_budget` tokens; a passage that does not fit makes room for a smaller one.

    `similarity_floor` is the model's, for requests and settings that name none.

    `go_on` is called between its steps, and `starts_of` should do the same in long texts.
    """
    usual = config.context.min_similarity
    floor = similarity_floor if usual == "model" else usual
    relevant = relevant_of(found.hits, floor if wanted.min_similarity is None else wanted.min_similarity)
    distinct = without_repetition(relevant, go_on)
    packer = Packer(wanted.token_budget, starts_of, go_on)
    pages = pack(distinct, wanted, packer, config)
    while True:
        blocks = [block for page in pages for block in page.blocks]
        context = "\n\n".join(framed(block, number) for number, block in enumerate(blocks, 1))
        tokens = len(starts_of(context))
        if tokens <= wanted.token_budget:
            break
        pages.pop()  # side by side, or with a tag disarmed, texts may need a token more than one by one
    return ContextAnswer(
        context=context,
        citations=[cite(block, number, packer.tokens(block)) for number, block in enumerate(blocks, 1)],
        tokens=tokens,
        omitted=len(distinct) - sum(len(block.hits) for block in blocks),
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

    `text`, of so many `tokens`, is the document's from `start` to `end`, but for the white space between neighbours.
    """

    hits: tuple[Hit, ...]
    start: int
    end: int
    text: str
    tokens: int
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
    """Takes what still fits. Texts are tokenised as seldom as can be: a passage brings its number of tokens."""

    def __init__(self, budget: int, starts_of: StartsOf, go_on: GoOn) -> None:
        self.left = budget
        self.starts_of = starts_of
        self.go_on = go_on
        self._frames: dict[str, int] = {}  # tokens of a frame by its title

    def tokens(self, block: Block) -> int:
        title = title_of(block)
        if title not in self._frames:
            self._frames[title] = len(self.starts_of(frame(title, "", 10) + "\n\n"))
        return self._frames[title] + block.tokens

    def put(self, page: Page, blocks: list[Block]) -> bool:
        """Show these blocks of a document instead of the ones so far, if there is room."""
        tokens = sum(self.tokens(block) for block in blocks)
        if tokens - page.tokens > self.left:
            return False
        self.left -= tokens - page.tokens
        page.blocks, page.tokens = blocks, tokens
        return True

    def whole(self, hit: Hit) -> Block:
        tokens = hit.tokens or len(self.starts_of(hit.text))
        return Block((hit,), hit.start, hit.end, hit.text, tokens)

    def merged(self, hits: Iterable[Hit]) -> Iterator[Block]:
        """Whole passages of one document, in its order, neighbours as one block."""
        before: Block | None = None
        for hit in sorted(hits, key=lambda hit: hit.start):
            block = self.whole(hit)
            if before and (hit.start <= before.end or hit.passage == before.hits[-1].passage + 1):
                shared = max(before.end - hit.start, 0)
                more = hit.text[shared:] if hit.start <= before.end else "\n\n" + hit.text
                tokens = block.tokens - (len(self.starts_of(hit.text[:shared])) if shared else 0)
                block = Block(
                    (*before.hits, hit),
                    before.start,
                    max(before.end, hit.end),
                    before.text + more,
                    before.tokens + tokens,
                )
            elif before:
                yield before
            before = block
        if before:
            yield before


def pack(hits: list[Hit], wanted: ContextRequest, packer: Packer, config: Config) -> list[Page]:
    """The documents to show, best first."""
    excerpt_tokens = config.context.excerpt_tokens if wanted.excerpt_tokens is None else wanted.excerpt_tokens
    per_document = 1 if wanted.group_by_document else wanted.per_document
    pages: dict[str, Page] = {}
    whole_left = WHOLE_SHARE * wanted.token_budget
    for hit in hits:
        packer.go_on()
        if packer.left < LEAST_TOKENS:
            break
        if hit.document_id in pages:
            continue
        page, block = Page(), packer.whole(hit)
        long = bool(excerpt_tokens) and block.tokens > excerpt_tokens
        fits = False
        if not (long and pages and packer.tokens(block) > whole_left) and (fits := packer.put(page, [block])):
            whole_left -= page.tokens if long else 0
        if fits or (
            long
            and packer.put(page, [excerpt(hit, wanted.query, excerpt_tokens, packer.starts_of, packer.go_on)])
        ):
            pages[hit.document_id] = page
    for page in pages.values():
        if page.blocks[0].excerpt:
            packer.put(page, [packer.whole(page.hits[0])])
    for hit in hits:
        packer.go_on()
        if packer.left < LEAST_TOKENS:
            break
        if hit.tokens > packer.left:
            continue
        page = pages.setdefault(hit.document_id, Page())
        if hit not in page.hits and (per_document is None or len(page.hits) < per_document):
            packer.put(page, list(packer.merged([*page.hits, hit])))
    return [page for page in pages.values() if page.blocks]


def excerpt(hit: Hit, query: str, tokens_max: int, starts_of: StartsOf, go_on: GoOn = nobody_waits) -> Block:
    """Of a longer passage: the run of sentences with the most words of the query, the first among equals.

    At most `tokens_max` tokens. A single sentence that is longer is cut after a word.
    """
    text = hit.text
    asked = frozenset(query_terms(query, hit.language))
    starts = starts_of(text)
    bounds = sorted({0, *(match.end() for match in SENTENCE.finditer(text)), len(text)})
    sentences = []
    for start, end in pairwise(bounds):
        go_on()
        sentences.append((start, end, frozenset(terms(text[start:end], hit.language))))
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
    tokens = bisect_left(starts, end) - bisect_left(starts, start) + len(starts_of(CUT_MARK))
    return Block((hit,), hit.start + start, hit.start + start + len(cut), cut, tokens, excerpt=True)


def after_tokens(text: str, starts: Sequence[int], begin: int, tokens: int) -> int:
    """Where so many tokens from `begin` end: at the last white space before the next one, if there is any."""
    next_token = bisect_left(starts, begin) + tokens
    if next_token >= len(starts):
        return len(text)
    end = starts[next_token]
    return next((at for at in range(end, begin, -1) if text[at - 1].isspace()), end)


def without_repetition(hits: list[Hit], go_on: GoOn = nobody_waits) -> list[Hit]:
    """The first of passages that say the same: equal words, or mostly the same stretch of one document."""
    kept: list[Hit] = []
    by_document: dict[str, list[Hit]] = {}
    seen: set[str] = set()
    for hit in hits:
        go_on()
        shown = hit.text or hit.title  # a document may have a title alone
        words = " ".join(WORDS.findall(unicodedata.normalize("NFKC", shown).casefold()))
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


def title_of(block: Block) -> str:
    first = block.hits[0]
    title, heading = first.title or first.document_id, first.heading
    # An excerpt is short: the path to its section would take as many tokens again.
    if block.excerpt or not heading or heading == title:
        return title
    if heading.startswith(title + PATH_SEPARATOR):  # the page's own heading is its title
        return heading
    return title + PATH_SEPARATOR + heading


def framed(block: Block, number: int) -> str:
    text = OWN_TAG.sub("&lt;", block.text.strip()) + (CUT_MARK if block.excerpt else "")
    return frame(title_of(block), text, number)


def frame(title: str, text: str, number: int) -> str:
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
        relevance=max((hit.relevance for hit in block.hits if hit.relevance is not None), default=None),
        excerpt=block.excerpt,
        tokens=tokens,
    )

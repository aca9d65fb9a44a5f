"""Decides which passages fit into a token budget, whole, as excerpts, or merged with neighbors, and counts their
tokens."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from indexes.base.model import Scalar
from indexes.base.paths import values_at
from indexes.base.work import OnStep, do_nothing
from indexes.lexical.analysis import query_terms, terms
from retrieval.base.settings import Config
from retrieval.context.framing import BETWEEN, FrameContent, Framing
from retrieval.context.joining import Key, key_of
from retrieval.documents.chunking import SENTENCE
from retrieval.documents.metadata import instant_at
from retrieval.documents.outline import PATH_SEPARATOR
from retrieval.wire.message import Message
from retrieval.wire.search import ContextRequest, Hit

StartsOf = Callable[[str], Sequence[int]]  # where each token of a text begins

WHOLE_SHARE = 1 / 4  # of the budget, spent on whole best passages of the first documents
CUT_MARK = " …"  # after an excerpt
LEAST_TOKENS = 24  # less room than this is not worth another frame
MISSES_MAX = 100  # stop after this many passages in a row that did not fit
STEM_CHARS = 5  # a word and its stem nearly always share as many: "happy" becomes "happi"
NOT_SPACE = re.compile(r"\S+")
SPACES = str.maketrans(dict.fromkeys("\t\n\r\v\f\x1c\x1d\x1e\x1f", " "))
USUAL_TOKEN_CHARS = 4  # for passages without a token count
SAMPLE_CHARS = 5_000  # the beginning of a passage, from which its tokens are estimated
FAR_MORE = 1.25  # times the room left: if a passage seems to take so much, the estimate is enough
FRAMED_CHARS = 50_000  # of frames whose tokens are counted; those of all others are estimated from these
COUNTED_CHARS = 250_000  # of passages without a token count; those of all others are estimated from these
EXCERPT_CHARS = 10_000  # the beginning of a passage, from which its excerpt is taken
USUAL_NUMBER = 10  # a frame number that takes as many tokens as most


@dataclass(frozen=True, slots=True)
class Block:
    """The content of one frame: a passage, neighboring passages in document order, or an excerpt of a passage.

    `text` takes `tokens` tokens and is the document's text from `start` to `end`, except for white space between
    neighbors.
    """

    hits: tuple[Hit, ...]
    start: int
    end: int
    text: str
    tokens: int
    excerpt: bool = False


@dataclass(slots=True)
class Page:
    """What is shown of one document, and the tokens it takes."""

    blocks: list[Block] = field(default_factory=list)
    tokens: int = 0

    @property
    def hits(self) -> list[Hit]:
        return [hit for block in self.blocks for hit in block.hits]


@dataclass(frozen=True, slots=True)
class Whole:
    """A context as it is sent, with the tokens of the whole and of each frame."""

    context: str
    messages: list[Message]
    blocks: list[Block]
    tokens: int
    of_blocks: list[int]


class Packer:
    """Packs blocks while they fit. Texts are tokenized as rarely as possible: passages come with their token counts."""

    def __init__(
        self, wanted: ContextRequest, framing: Framing, starts_of: StartsOf, on_step: OnStep = do_nothing
    ) -> None:
        self.wanted = wanted
        self.queries = wanted.queries or [wanted.query or ""]
        self.framing = framing
        self.starts_of = starts_of
        self.on_step = on_step
        self.besides = sum(map(self.count, [framing.tail, *self._contents("")]))
        self.left = wanted.token_budget - self.besides
        self._asked: dict[str, QueryTerms] = {}
        self._counted: dict[Key, int] = {}
        self._shared: dict[tuple[Key, int], int] = {}  # tokens that a passage shares with the one before
        self._counted_chars, self._counted_tokens = 0, 0
        self._frames: dict[str, int] = {}  # tokens of a frame without its text
        self._framed_chars, self._framed_tokens = 0, 0
        self._between, self._mark = self.count(BETWEEN), self.count(CUT_MARK)

    def count(self, text: str) -> int:
        return len(self.starts_of(text)) if text else 0

    def tokens(self, block: Block) -> int:
        frame = self.framing.frame(content_of(block, text="."), USUAL_NUMBER)
        if frame not in self._frames:
            self._frames[frame] = self._frame_tokens(frame)
        return self._frames[frame] + block.tokens

    def _frame_tokens(self, frame: str) -> int:
        # An id may have hundreds of characters, and many documents be tried that find no room.
        if self._framed_chars >= FRAMED_CHARS:
            return len(frame) * self._framed_tokens // self._framed_chars
        tokens = self.count(frame + BETWEEN) - 1
        self._framed_chars += len(frame)
        self._framed_tokens += tokens
        return tokens

    def render(self, pages: Sequence[Page]) -> Whole:
        """Render these pages in the requested order, with exact token counts."""
        blocks = [block for page in sort_pages(pages, self.wanted) for block in page.blocks]
        frames = [self.framing.frame(content_of(block), number) for number, block in enumerate(blocks, 1)]
        context = self.framing.join(frames)
        messages = self._messages(context) if frames else []
        # The last message begins with the context.
        *before, last = [message.content for message in messages] or [context]
        starts = self.starts_of(last) if last else ()
        begins = accumulate((len(frame) + len(BETWEEN) for frame in frames), initial=0)
        counts = [
            bisect_left(starts, begin + len(frame)) - bisect_left(starts, begin)
            for begin, frame in zip(begins, frames)
        ]
        return Whole(context, messages, blocks, sum(map(self.count, before)) + len(starts), counts)

    def most_tokens(self, pages: Sequence[Page]) -> int:
        """How many tokens these pages may need: numbers of fences differ in theirs."""
        whole, fence = self.render(pages), self.framing.fence
        shown = "".join([message.content for message in whole.messages] or [whole.context])
        return whole.tokens + shown.count(fence) * (len(fence) - self.count(fence))

    def _messages(self, context: str) -> list[Message]:
        return self.framing.messages(context, self.queries) if self.wanted.format == "messages" else []

    def _contents(self, context: str) -> list[str]:
        return [message.content for message in self._messages(context)]

    def put(self, page: Page, blocks: list[Block]) -> bool:
        """Replace the blocks shown of a document by these, if there is room."""
        tokens = sum(self.tokens(block) for block in blocks)
        if tokens - page.tokens > self.left:
            return False
        self.left -= tokens - page.tokens
        page.blocks, page.tokens = blocks, tokens
        return True

    def at_least(self, hit: Hit) -> int:
        """Return an approximate lower bound on the tokens of a hit, without counting."""
        return hit.tokens if self.wanted.tokenizer is None else hit.tokens // 2

    def size(self, hit: Hit) -> int:
        """Return the tokens of a hit. Of a long one without a token count it is an estimate if it takes far more than
        the room left, judging by its beginning, or if COUNTED_CHARS were counted before it."""
        if self.wanted.tokenizer is None and hit.tokens:
            return hit.tokens
        key = key_of(hit)
        if key not in self._counted:
            self._counted[key] = self._count_or_estimate(hit.text)
        return self._counted[key]

    def _count_or_estimate(self, text: str) -> int:
        if self._counted_chars < COUNTED_CHARS:
            tokens = self._count_noted(text[:SAMPLE_CHARS])
            if len(text) <= SAMPLE_CHARS:
                return tokens
            estimate = tokens * len(text) // SAMPLE_CHARS
            if estimate > FAR_MORE * self.left or self._counted_chars + len(text) > COUNTED_CHARS:
                return estimate
            return self._count_noted(text)
        return max(1, len(text) * self._counted_tokens // self._counted_chars)

    def _count_noted(self, text: str) -> int:
        tokens = self.count(text)
        self._counted_chars += len(text)
        self._counted_tokens += tokens
        return tokens

    def whole(self, hit: Hit) -> Block:
        return Block((hit,), hit.start, hit.end, hit.text, self.size(hit))

    def excerpt(self, hit: Hit, tokens_max: int) -> Block:
        asked = self._asked.get(hit.language)
        if asked is None:
            asked = self._asked[hit.language] = QueryTerms(" ".join(self.queries), hit.language)
        return excerpt(hit, asked, tokens_max, self.starts_of, self.on_step, mark_tokens=self._mark)

    def merge(self, hits: Iterable[Hit]) -> Iterator[Block]:
        """Yield whole passages of one document in document order, with neighbors merged into one block."""
        before: Block | None = None
        for hit in sorted(hits, key=lambda hit: hit.start):
            block = self.whole(hit)
            if before and (hit.start <= before.end or hit.passage == before.hits[-1].passage + 1):
                shared = max(before.end - hit.start, 0)
                more = hit.text[shared:] if hit.start <= before.end else BETWEEN + hit.text
                apart = self._between if hit.start > before.end else 0
                tokens = block.tokens + apart - self._shared_tokens(hit, shared)
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

    def shrink(self, page: Page, rank_of: Mapping[Key, int]) -> int:
        """Leave out the worst passage of a document, and return how many tokens that frees, at least one."""
        *kept, _ = sorted(page.hits, key=lambda hit: rank_of[key_of(hit)])
        before, page.blocks = page.tokens, list(self.merge(kept))
        page.tokens = sum(self.tokens(block) for block in page.blocks)
        return max(before - page.tokens, 1)

    def _shared_tokens(self, hit: Hit, chars: int) -> int:
        key = key_of(hit), chars
        if key not in self._shared:
            self._shared[key] = self.count(hit.text[:chars])
        return self._shared[key]


def excerpt_tokens_of(wanted: ContextRequest, config: Config) -> int:
    return config.context.excerpt_tokens if wanted.excerpt_tokens is None else wanted.excerpt_tokens


def per_document_of(wanted: ContextRequest) -> int | None:
    return 1 if wanted.group_by_document else wanted.per_document


def pack(hits: list[Hit], wanted: ContextRequest, packer: Packer, config: Config) -> list[Page]:
    """Return the documents to show, best first."""
    excerpt_tokens, per_document = excerpt_tokens_of(wanted, config), per_document_of(wanted)
    pages: dict[str, Page] = {}
    whole_left, misses = WHOLE_SHARE * wanted.token_budget, 0
    for hit in hits:
        packer.on_step()
        if packer.left < (LEAST_TOKENS if pages else 1) or misses >= MISSES_MAX:
            break
        if hit.document_id in pages:
            continue
        page, block = Page(), packer.whole(hit)
        long = bool(excerpt_tokens) and block.tokens > excerpt_tokens
        fits = False
        if not (long and pages and packer.tokens(block) > whole_left) and (fits := packer.put(page, [block])):
            whole_left -= page.tokens if long else 0
        if fits or (long and packer.put(page, [packer.excerpt(hit, excerpt_tokens)])):
            pages[hit.document_id] = page
            misses = 0
        else:
            misses += 1
    misses = 0
    for page in pages.values():
        if page.blocks[0].excerpt:
            packer.put(page, [packer.whole(page.hits[0])])
    for hit in hits:
        packer.on_step()
        if packer.left < LEAST_TOKENS or misses >= MISSES_MAX:
            break
        if packer.at_least(hit) > packer.left:
            continue
        page = pages.setdefault(hit.document_id, Page())
        if hit not in page.hits and (per_document is None or len(page.hits) < per_document):
            misses = 0 if packer.put(page, list(packer.merge([*page.hits, hit]))) else misses + 1
    return [page for page in pages.values() if page.blocks]


def sort_pages(pages: Sequence[Page], wanted: ContextRequest) -> list[Page]:
    """Return the pages in the requested order; documents without a date come last."""
    if wanted.order == "relevance":
        return list(pages)
    if wanted.order == "position":
        return sorted(pages, key=lambda page: page.hits[0].document_id)
    sign = -1 if wanted.order == "newest" else 1
    dates = [(page, newest_of(values_at(page.hits[0].metadata, wanted.date_key or ""))) for page in pages]
    dated = sorted(((page, at) for page, at in dates if at is not None), key=lambda one: sign * one[1])
    return [page for page, _ in dated] + [page for page, at in dates if at is None]


def newest_of(values: Sequence[Scalar]) -> int | None:
    """Return the newest date among these values, or None without dates."""
    instants = map(instant_at, values)
    return max((one for one in instants if one is not None), default=None)


class QueryTerms:
    """The terms of a query in one language, for searching many texts."""

    def __init__(self, query: str, language: str) -> None:
        self._language = language
        self._terms = frozenset(query_terms(query, language))
        self._known: dict[str, frozenset[str]] = {}
        self._beginnings = {term[: max(2, min(len(term) - 1, STEM_CHARS))] for term in self._terms}
        self._ascii = all(map(str.isascii, self._terms))

    def places(self, text: str) -> list[tuple[int, frozenset[str]]]:
        """Return where words with terms of the query begin, and which terms they have."""
        lowered = text.lower()
        if not (self._ascii and lowered.isascii()):
            words = ((match.start(), self._of(match[0])) for match in NOT_SPACE.finditer(text))
            return [(at, some) for at, some in words if some]
        # A word contains the beginning of its stem, even inside an identifier, so only words that do are stemmed.
        spaced, found = lowered.translate(SPACES), dict[int, frozenset[str]]()
        for beginning in self._beginnings:
            at = spaced.find(beginning)
            while at >= 0:
                start, end = spaced.rfind(" ", 0, at) + 1, spaced.find(" ", at)
                end = end if end >= 0 else len(text)
                if some := self._of(text[start:end]):
                    found[start] = some
                at = spaced.find(beginning, end)
        return list(found.items())

    def _of(self, word: str) -> frozenset[str]:
        some = self._known.get(word)
        if some is None:
            some = self._known[word] = self._terms.intersection(terms(word, self._language))
        return some


def excerpt(
    hit: Hit,
    asked: QueryTerms,
    tokens_max: int,
    starts_of: StartsOf,
    on_step: OnStep = do_nothing,
    mark_tokens: int = 1,
) -> Block:
    """Cut a longer passage to the first run of sentences with the most query words.

    The excerpt has at most `tokens_max` tokens. A single longer sentence is cut after a word. The best run is chosen
    by characters; only its tokens are counted.
    """
    text = hit.text[:EXCERPT_CHARS]
    room = len(hit.text) * tokens_max // hit.tokens if hit.tokens else tokens_max * USUAL_TOKEN_CHARS
    bounds = [0, *(match.end() for match in SENTENCE.finditer(text))]
    ends = [*bounds[1:], len(text)]
    words: list[set[str]] = [set() for _ in bounds]
    for at, some in asked.places(text):
        words[bisect_right(bounds, at) - 1] |= some
    best, best_words = 0, -1
    on_step()
    for first, start in enumerate(bounds):
        if not words[first] and best_words >= 0:
            continue
        last = max(first + 1, bisect_right(ends, start + room))
        count = len(words[first].union(*words[first + 1 : last]))
        if count > best_words:
            best, best_words = first, count
    start = bounds[best]
    piece = text[start : start + 2 * room]
    starts = starts_of(piece)
    limit = start + after_tokens(piece, starts, 0, tokens_max)
    whole = bisect_right(ends, limit)
    cut = text[start : ends[whole - 1] if whole > best else limit].rstrip()
    tokens = bisect_left(starts, len(cut)) + mark_tokens
    return Block((hit,), hit.start + start, hit.start + start + len(cut), cut, tokens, excerpt=True)


def after_tokens(text: str, starts: Sequence[int], begin: int, tokens: int) -> int:
    """Return the end of `tokens` tokens from `begin`, moved back to the last white space if there is any."""
    next_token = bisect_left(starts, begin) + tokens
    if next_token >= len(starts):
        return len(text)
    end = starts[next_token]
    return next((at for at in range(end, begin, -1) if text[at - 1].isspace()), end)


def title_of(block: Block) -> str:
    first = block.hits[0]
    title, heading = first.title or first.document_id, first.heading
    # The path to its section would take as many tokens as a short excerpt itself.
    if block.excerpt or not heading or heading == title:
        return title
    if heading.startswith(title + PATH_SEPARATOR):  # the top heading is the page title
        return heading
    return title + PATH_SEPARATOR + heading


def content_of(block: Block, text: str | None = None) -> FrameContent:
    """Return the content of the block's frame; pass `text` to measure the frame without the block's own text."""
    first = block.hits[0]
    if text is None:
        text = block.text + (CUT_MARK if block.excerpt else "")
    return FrameContent(
        title_of(block),
        first.heading,
        first.document_id,
        text,
        block.start,
        block.end,
        max(hit.score for hit in block.hits),
    )

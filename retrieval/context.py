"""Context for a prompt: the passages of a search, without repetition, cut to an exact number of tokens, each cited.

    <passage number="1" document="refunds.md" title="Refunds">
    Refunds are paid within 14 days.
    </passage>

Passages are untrusted text. They cannot close their own frame: anything in them that looks like one of our tags loses
its angle bracket. The budget counts everything, tags too, with the tokenizer of the collection's own model.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Callable

from retrieval.schemas import Citation, ContextAnswer, ContextRequest, Hit, SearchAnswer, SearchRequest
from retrieval.settings import Config

Counter = Callable[[str], int]

DEFAULT_K = 40
OVERLAP_MAX = (
    0.5  # of the shorter passage's characters: beyond it, two passages of one document repeat each other
)
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
        min_score=wanted.min_score,
        min_seq=wanted.min_seq,
        deadline_ms=wanted.deadline_ms,
    )


def build_context(found: SearchAnswer, token_budget: int, count: Counter) -> ContextAnswer:
    """Best passages first, each whole, as many as fit. One that does not fit is left out, a later one may still fit."""
    frames: list[str] = []
    citations: list[Citation] = []
    tokens = 0
    distinct = without_repetition(found.hits)
    for hit in distinct:
        frame = framed(hit, len(citations) + 1)
        # Counted together, not summed: what two frames need side by side is the tokenizer's business.
        needed = count("\n\n".join([*frames, frame]))
        if needed > token_budget:
            continue
        frames.append(frame)
        citations.append(cite(hit, len(citations) + 1, needed - tokens))
        tokens = needed
    return ContextAnswer(
        context="\n\n".join(frames),
        citations=citations,
        tokens=tokens,
        omitted=len(distinct) - len(citations),
        receipt=found.receipt,
        timings_ms=found.timings_ms,
    )


def without_repetition(hits: list[Hit]) -> list[Hit]:
    """The first of passages that say the same: equal words, or mostly the same stretch of one document."""
    kept: list[Hit] = []
    seen: set[str] = set()
    for hit in hits:
        words = " ".join(WORDS.findall(unicodedata.normalize("NFKC", hit.text).casefold()))
        if words in seen or any(overlapping(hit, other) for other in kept):
            continue
        seen.add(words)
        kept.append(hit)
    return kept


def overlapping(hit: Hit, other: Hit) -> bool:
    if hit.document_id != other.document_id:
        return False
    shared = min(hit.end, other.end) - max(hit.start, other.start)
    return shared > OVERLAP_MAX * min(hit.end - hit.start, other.end - other.start)


def framed(hit: Hit, number: int) -> str:
    title = f' title="{html.escape(hit.title)}"' if hit.title else ""
    text = OWN_TAG.sub("&lt;", hit.text.strip())
    return f'<passage number="{number}" document="{html.escape(hit.document_id)}"{title}>\n{text}\n</passage>'


def cite(hit: Hit, number: int, tokens: int) -> Citation:
    return Citation(
        number=number,
        document_id=hit.document_id,
        passage=hit.passage,
        start=hit.start,
        end=hit.end,
        title=hit.title,
        score=hit.score,
        tokens=tokens,
    )

"""From a context to an answer that can be checked: the prompt, the citations in the model's text, and its words.

    [system]  what to do, and how to cite
    [user]    the context, then the question

Two things are checked: that each cited number belongs to a passage in the prompt, and how many of a sentence's words
occur in the cited passages. That is no proof: a sentence may use all words of a passage and say the opposite.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from itertools import pairwise
from typing import Literal

from indexes.lexical.analysis import query_terms, terms
from retrieval.context.framing import Framing
from retrieval.context.llm import LanguageModel
from retrieval.documents.chunking import SENTENCE
from retrieval.search.stopwatch import elapsed_ms
from retrieval.wire.answer import Answer, AnswerRequest, AnswerSentence
from retrieval.wire.message import Message
from retrieval.wire.search import Citation, ContextAnswer

DECLINED = "Not in the documents."
INSTRUCTION = (
    "Answer the question from the passages in the user's message and from nothing else, in the language of the "
    f"question, in a few sentences. If the passages do not answer it, reply exactly: {DECLINED}"
)
RULES = (
    "After each sentence cite the passages it is taken from by their numbers in brackets, as [1] or [2, 3]."
)
CITED = re.compile(r" ?\[(\d{1,99}(?: ?[,;\u2013-] ?\d{1,99})*)\]")
NUMBER_MAX = 10**18 - 1  # larger ones are reported as this one: JSON's integers have 64 bits
# In "It takes 14 days. [1]" the citation belongs to the sentence before it.
AFTER_MARK = re.compile(r"([.!?…。！？])((?: ?\[\d[\d,;\u2013 -]*\])+)")
# The end of the received text, if it may be the beginning of a citation.
OPEN = re.compile(r" ?\[[\d,;\u2013 -]{0,255}$| $")
TICKS = re.compile(r"(`+|\n)")
FENCE_TICKS = 3
RANGE_MAX = 100  # passages in one range, as in [2-4]
CHARS_PER_TOKEN_MAX = 64  # of an answer, for servers that do not mind `max_tokens`


class Asking:
    """One question to the model and its answer. Consume `pieces` to the end before calling `answer`."""

    def __init__(
        self,
        wanted: AnswerRequest,
        context: ContextAnswer,
        model: LanguageModel,
        passages: Callable[[Sequence[Citation]], Awaitable[Mapping[int, tuple[str, str]]]],
    ) -> None:
        self._context = context
        self._model = model
        self._passages = passages
        self._messages: list[Message] = messages_for(wanted, context)
        self._asks = model.configured and bool(context.citations)
        self._citations = Citations(len(context.citations))
        self._said: list[str] = []
        self._finish: str | None = None
        self._model_ms = 0.0

    async def pieces(self) -> AsyncGenerator[str, None]:
        """Yield the model's text without citations of passages it was not shown; nothing if the model is not called."""
        if not self._asks:
            return
        started = time.perf_counter()
        async with aclosing(self._model.answer(self._messages)) as pieces:
            left = CHARS_PER_TOKEN_MAX * self._model.max_tokens
            async for piece in pieces:
                self._finish, more = piece.finish, piece.text[:left]
                left -= len(more)
                if text := self._citations.feed(more):
                    self._said.append(text)
                    yield text
                if len(more) < len(piece.text):  # the server does not mind `max_tokens`
                    self._finish = "length"
                    break
        if text := self._citations.end():
            self._said.append(text)
            yield text
        self._model_ms = elapsed_ms(started)

    async def answer(self) -> Answer:
        context = self._context
        said = "".join(self._said).strip() if self._asks else None
        reason: Literal["no_model", "not_in_documents", "declined", "empty"] | None = None
        if not context.citations:
            reason = "not_in_documents"
        elif not self._model.configured:
            reason = "no_model"
        if said is not None and declines(said) and not self._citations.cited:
            reason = "declined"
        elif said == "":
            reason = "empty"
        checked = []
        if said and reason is None:
            passages = await self._passages(context.citations)
            checked = await asyncio.to_thread(check_sentences, said, passages)
        return Answer(
            answer=said,
            reason=reason,
            evidence=context.receipt.evidence,
            citations=context.citations,
            cited=self._citations.cited,
            unknown_citations=self._citations.unknown,
            sentences=checked,
            messages=None if self._model.configured else self._messages,
            model=self._model.name if self._asks else None,
            finish_reason=self._finish,
            tokens=context.tokens,
            model_ms=self._model_ms,
            receipt=context.receipt,
            timings_ms=context.timings_ms,
        )


def messages_for(wanted: AnswerRequest, context: ContextAnswer) -> list[Message]:
    """Build the prompt. The caller's `instruction` replaces ours; the rules on citations and quoted passages always
    apply."""
    guard = Framing(wanted, context.fence).guard
    return [
        Message("system", f"{wanted.instruction or INSTRUCTION}\n\n{RULES} {guard}"),
        Message("user", f"{context.context}\n\nQuestion: {wanted.query}"),
    ]


class Citations:
    """Removes citations of unknown passages from a streamed answer. `cited` and `unknown` are in order of
    appearance."""

    def __init__(self, passages: int) -> None:
        self._passages = passages
        self._held = ""
        self._ticks = 0  # of the code that is open
        self._cited: dict[int, None] = {}
        self._unknown: dict[int, None] = {}

    @property
    def cited(self) -> list[int]:
        return [*self._cited]

    @property
    def unknown(self) -> list[int]:
        return [*self._unknown]

    def feed(self, text: str) -> str:
        """Return the text that can be shown so far: everything except a possible beginning of a citation."""
        if not text.strip("`"):  # perhaps a part of a run of them, whose length counts
            self._held += text
            return ""
        text = self._held + text
        start = found.start() if (found := OPEN.search(text)) else len(text.rstrip("`"))
        self._held = text[start:]
        return self._checked(text[:start])

    def end(self) -> str:
        """Return the rest of the text."""
        rest, self._held = self._checked(self._held), ""
        return rest

    def _checked(self, text: str) -> str:
        """Return the text without citations of unknown passages. Code stays as it is: `a[0]` cites nothing."""
        shown = []
        for part, ticks, is_code in parts_of(text, self._ticks):
            self._ticks = ticks
            shown.append(part if is_code else CITED.sub(self._keep_known, part))
        return "".join(shown)

    def _keep_known(self, found: re.Match[str]) -> str:
        numbers = numbers_in(found[1])
        known = [one for one in numbers if 1 <= one <= self._passages]
        for one in numbers:
            (self._cited if 1 <= one <= self._passages else self._unknown)[one] = None
        if len(known) == len(numbers):
            return found[0]
        space = " " if found[0].startswith(" ") else ""
        return f"{space}[{', '.join(map(str, known))}]" if known else ""


def parts_of(text: str, ticks: int = 0) -> Iterator[tuple[str, int, bool]]:
    """Yield the runs of backticks of a text, the ends of its lines and what is between: each with the number of
    backticks that opened the code it leaves open, 0 for none, and whether it is code. `ticks` is that number before the
    text. Code between fewer than three backticks ends with its line at the latest."""
    for part in TICKS.split(text):
        is_code = ticks > 0 and part != "\n"
        if part.startswith("`"):
            is_code, ticks = True, 0 if ticks == len(part) else ticks or len(part)
        elif part == "\n" and ticks < FENCE_TICKS:
            ticks = 0
        yield part, ticks, is_code


def without_code(text: str) -> str:
    """Return a text with as many zero characters in the place of its code."""
    return "".join("\0" * len(part) if is_code else part for part, _, is_code in parts_of(text))


def numbers_in(citation: str) -> list[int]:
    """Return the numbers of a citation such as "1, 3" or "1; 3-5", those within its ranges too."""
    numbers: list[int] = []
    for part in re.split("[,;]", citation):
        first, *last = (min(int(one), NUMBER_MAX) for one in re.split("[\u2013-]", part))
        within = len(last) == 1 and first < last[0] < first + RANGE_MAX
        numbers += range(first, last[0] + 1) if within else [first, *last]
    return numbers


def declines(answer: str) -> bool:
    """Whether the model says, in the prescribed words, that the passages do not answer the question."""
    return answer.strip(" \n\"'*[").casefold().startswith(DECLINED.rstrip(".").casefold())


def check_sentences(answer: str, passages: Mapping[int, tuple[str, str]]) -> list[AnswerSentence]:
    """Return each sentence with the share of its words that occur in the passages it cites. A sentence without
    citations is compared with all passages. `passages` has the text and language of each, by number."""
    words = {number: set(terms(text, language)) for number, (text, language) in passages.items()}
    words_of_all = set[str]().union(*words.values())
    language = next((language for _, language in passages.values()), "en")
    answer = AFTER_MARK.sub(r"\2\1", answer)
    bounds = [0, *(found.end() for found in SENTENCE.finditer(answer)), len(answer)]
    prose = without_code(answer)
    sentences = []
    for start, end in pairwise(bounds):
        found = list(CITED.finditer(prose, start, end))
        numbers = [one for cited in found for one in numbers_in(cited[1])]
        edges = [start, *(edge for cited in found for edge in cited.span()), end]
        text = "".join(answer[low:high] for low, high in zip(edges[::2], edges[1::2], strict=True)).strip()
        asked = set(query_terms(text, language))
        cited = [words[one] for one in dict.fromkeys(numbers) if one in words]
        known = set[str]().union(*cited) if numbers else words_of_all
        if text:
            share = round(len(asked & known) / len(asked), 2) if asked else None
            sentences.append(AnswerSentence(text, list(dict.fromkeys(numbers)), share))
    return sentences

"""The wire types of answers: a question with context options, and a language model's answer."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from retrieval.base.settings import Positive
from retrieval.wire.message import Message
from retrieval.wire.search import Citation, ContextRequest, Doc, Evidence, NonEmpty, Receipt, Timings


class AnswerRequest(ContextRequest, frozen=True, kw_only=True):
    """A question. The options of a context apply, except `queries`, `explain` and the format `messages`; the model
    reads that context."""

    query: Annotated[NonEmpty, Doc("The question")]
    token_budget: Annotated[Positive, Doc("Maximum tokens of the context, markup included")] = 1500
    instruction: Annotated[
        NonEmpty | None, Doc("What the model should do with the passages; replaces the built-in instruction")
    ] = None
    stream: Annotated[bool, Doc("Stream the answer as server-sent events")] = False


class AnswerSentence(msgspec.Struct):
    """One sentence of an answer and what could be checked of it: its words, not its truth."""

    text: Annotated[str, Doc("The sentence, without its citations")]
    citations: Annotated[list[int], Doc("Numbers of the passages it cites")]
    words_found: Annotated[
        float | None,
        Doc(
            "Share of its words, without stopwords, that its cited passages contain, or any passage if it cites none"
        ),
    ]


class Answer(msgspec.Struct):
    """An answer with its evidence."""

    answer: Annotated[str | None, Doc("The model's answer; null if it was not asked")]
    reason: Annotated[
        Literal["no_model", "not_in_documents", "declined", "empty"] | None,
        Doc(
            "Why there is no answer: no model is configured; no passage was found; the model says that the passages do "
            "not answer this; nothing is left of its text without citations of passages that it was not shown"
        ),
    ]
    evidence: Annotated[Evidence | None, Doc("As in the receipt: what speaks for an answer being here")]
    citations: Annotated[list[Citation], Doc("One for each numbered passage in the prompt")]
    cited: Annotated[list[int], Doc("Numbers of the passages that the answer cites, in order of appearance")]
    unknown_citations: Annotated[
        list[int],
        Doc("Numbers that the model cited but that are not in the prompt; removed from the answer"),
    ]
    sentences: Annotated[list[AnswerSentence], Doc("The sentences of the answer, each with its checks")]
    messages: Annotated[list[Message] | None, Doc("The prompt, if no model is configured")]
    model: Annotated[str | None, Doc("Name of the language model; null if it was not asked")]
    finish_reason: Annotated[
        str | None, Doc("Why the model stopped: `length` if `llm.max_tokens` cut it short")
    ]
    tokens: Annotated[int, Doc("Number of tokens of the context, by the collection's tokenizer")]
    model_ms: Annotated[float, Doc("Milliseconds until the model was done")]
    receipt: Annotated[Receipt, Doc("How the context was found")]
    timings_ms: Annotated[Timings, Doc("Milliseconds of each stage of the search")]


class AnswerPiece(msgspec.Struct):
    """The data of a `piece` event of a stream."""

    text: Annotated[str, Doc("The next characters of the answer")]

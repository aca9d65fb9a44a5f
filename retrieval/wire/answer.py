"""The wire types of answers: a question with its context's options, and what a language model made of it."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from retrieval.base.settings import Positive
from retrieval.wire.message import Message
from retrieval.wire.search import Citation, ContextRequest, Doc, NonEmpty, Receipt, Timings


class AnswerRequest(ContextRequest, frozen=True, kw_only=True):
    """A question. All options of a context apply: the context is what the model reads."""

    query: Annotated[NonEmpty, Doc("The question")]
    token_budget: Annotated[Positive, Doc("Most tokens of the context, markup included")] = 1500
    instruction: Annotated[
        NonEmpty | None, Doc("What the model is to do with the passages, instead of our own words")
    ] = None
    stream: Annotated[bool, Doc("Send the answer as it is made, as server-sent events")] = False
    ask_anyway: Annotated[
        bool, Doc("Ask the model also where the search says that the documents do not answer this")
    ] = False


class AnswerSentence(msgspec.Struct):
    """One sentence of an answer, with what could be checked of it: words, not truth."""

    text: Annotated[str, Doc("The sentence, without its citations")]
    citations: Annotated[list[int], Doc("Numbers of the passages it cites")]
    words_found: Annotated[
        float | None,
        Doc(
            "Share of its words, without stopwords, that the passages it cites have, or any where it cites none"
        ),
    ]


class Answer(msgspec.Struct):
    """An answer with its evidence."""

    answer: Annotated[str | None, Doc("What the model says; null where it was not asked")]
    reason: Annotated[
        Literal["no_model", "not_in_documents", "declined"] | None,
        Doc(
            "Why there is no answer: none is configured; nothing found supports one; the model says that the passages "
            "do not answer this"
        ),
    ]
    supported: Annotated[
        bool | None, Doc("As in the receipt: false where nothing found is about the question")
    ]
    citations: Annotated[list[Citation], Doc("One for each numbered passage that the model was shown")]
    cited: Annotated[list[int], Doc("Numbers of the passages that the answer cites, in its order")]
    unknown_citations: Annotated[
        list[int],
        Doc("Numbers that the model cited and that it was not shown; they were taken out of the answer"),
    ]
    sentences: Annotated[list[AnswerSentence], Doc("The answer by sentences, each with what was checked")]
    messages: Annotated[list[Message] | None, Doc("The prompt, where no model is configured")]
    model: Annotated[str | None, Doc("Name of the language model; null where it was not asked")]
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

"""Contexts for a prompt: the budget, breadth before depth, neighbours, excerpts, repetition, citations, frames."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from retrieval.context import build_context, excerpt, without_repetition
from retrieval.schemas import ContextAnswer, ContextRequest, Hit, Receipt, Scores, SearchAnswer, Timings
from retrieval.settings import Config

RECEIPT = Receipt("c", 1, 1, ["hot"], None, None, None, "miss", "m")


def hit(
    document: str,
    text: str,
    start: int = 0,
    passage: int = 0,
    title: str = "",
    heading: str = "",
    scores: Scores | None = None,
) -> Hit:
    return Hit(
        document,
        passage,
        start,
        start + len(text),
        text,
        title,
        {"of": document},
        0.5,
        scores or Scores(),
        "hot",
        heading=heading,
    )


def words(text: str) -> list[int]:
    """A tokenizer for tests: one token a word or mark."""
    return [match.start() for match in re.finditer(r"\w+|[^\w\s]", text)]


def context(*hits: Hit, budget: int, query: str = "asked", **options: Any) -> ContextAnswer:
    wanted = ContextRequest(query=query, token_budget=budget, **options)
    return build_context(SearchAnswer(list(hits), RECEIPT, Timings()), wanted, words, Config())


def shown(built: ContextAnswer) -> list[tuple[str, list[int]]]:
    return [(one.document_id, one.passages) for one in built.citations]


def pages(count: int, passages: int, size: int) -> list[Hit]:
    """The ranking of a search in which all passages of a page come before those of the next."""
    return [
        hit(f"page{page}", f"w{page}x{at} " * size, start=at * 1000, passage=2 * at)
        for page in range(count)
        for at in range(passages)
    ]


def test_repeated_text_is_left_out() -> None:
    """The same words in other case or spacing, or an overlapping stretch of one document, appear once."""
    hits = [
        hit("a", "One two three."),
        hit("b", "one  TWO three"),
        hit("c", "abcdefghij", start=0),
        hit("c", "defghijklm", start=3, passage=1),
        hit("c", "xyz", start=40, passage=2),
    ]
    assert [(one.document_id, one.passage) for one in without_repetition(hits)] == [
        ("a", 0),
        ("c", 0),
        ("c", 2),
    ]


def test_a_passage_that_does_not_fit_makes_room_for_a_smaller_one() -> None:
    """Without excerpts passages are whole; a long one is omitted and counted, a later short one still taken."""
    built = context(hit("long", "word " * 100), hit("short", "word"), budget=40, excerpt_tokens=0)
    assert shown(built) == [("short", [0])]
    assert built.omitted == 1
    assert built.citations[0].number == 1


def test_every_document_has_its_turn() -> None:
    """One page whose passages come first does not fill the context: each page is shown before any is shown twice."""
    built = context(*pages(8, 5, 30), budget=400, excerpt_tokens=0)
    assert [document for document, _ in shown(built)] == [f"page{at}" for at in range(8)]


def test_what_is_left_goes_to_further_passages() -> None:
    """Where all documents fit, the rest of the budget goes to their further passages, best first, as far as allowed."""
    hits = pages(2, 3, 30)
    assert sum(len(passages) for _, passages in shown(context(*hits, budget=1000))) == 6
    assert sum(len(passages) for _, passages in shown(context(*hits, budget=1000, per_document=2))) == 4
    assert shown(context(*hits, budget=1000, group_by_document=True)) == [("page0", [0]), ("page1", [0])]


def test_neighbours_become_one_in_the_order_of_the_document() -> None:
    """Passages that follow each other or overlap stand in one frame, in order, what they share once."""
    text = "Alpha beta gamma. Delta epsilon. Zeta eta theta. Iota kappa. Lambda mu."
    second = hit("a", text[18:48], start=18, passage=1)
    first = hit("a", text[:32], passage=0)
    third = hit("a", text[49:60], start=49, passage=2)
    apart = hit("a", "Somewhere else.", start=500, passage=9)
    built = context(second, apart, third, first, hit("b", "Other."), budget=400)
    assert shown(built) == [("a", [0, 1, 2]), ("a", [9]), ("b", [0])]
    frame = built.context.split("</passage>")[0]
    assert "Alpha beta gamma. Delta epsilon. Zeta eta theta.\n\nIota kappa." in frame
    assert (built.citations[0].start, built.citations[0].end) == (0, 60)


def test_later_documents_are_shown_as_excerpts() -> None:
    """Past a quarter of the budget a document gets the sentences that hold the query's words, exactly as they stand."""
    long = (
        "Nothing of note here. " * 6
        + "The answer is asked for here. "
        + "More of the rest. " * 5
        + "The end."
    )
    hits = [hit(f"d{at}", long.replace("Nothing", f"Nothing{at}"), start=7) for at in range(8)]
    built = context(*hits, budget=330, excerpt_tokens=20)
    first, *others = built.citations
    assert not first.excerpt
    assert len(others) >= 5
    assert all(one.excerpt for one in others)
    for one, source in zip(built.citations, hits):
        assert source.text[one.start - 7 : one.end - 7] in built.context
        assert "The answer is asked for here." in source.text[one.start - 7 : one.end - 7]


def test_excerpts_grow_where_there_is_room() -> None:
    """With a budget for all of it, nothing is an excerpt."""
    hits = [hit(f"d{at}", f"Some words of {at}. " * 20) for at in range(4)]
    built = context(*hits, budget=1000)
    assert len(built.citations) == 4
    assert not any(one.excerpt for one in built.citations)


@given(
    st.text(alphabet=st.sampled_from("ab asked.\n 。é漢"), min_size=1, max_size=300),
    st.integers(1, 30),
    st.data(),
)
def test_an_excerpt_is_a_piece_of_its_passage(text: str, more: int, data: st.DataObject) -> None:
    """It has at most the tokens asked for, and is the document's text from its start to its end."""
    text += "a " * more
    passage = hit("a", text, start=5)
    tokens_max = data.draw(st.integers(1, len(words(text))))
    piece = excerpt(passage, "asked", tokens_max, words)
    assert piece.text == passage.text[piece.start - 5 : piece.end - 5]
    assert piece.tokens - 1 == len(words(piece.text)) <= tokens_max


def test_what_is_far_from_the_query_is_left_out() -> None:
    """Passages below the floor of similarity are counted and not shown, unless they hold the query's words well."""
    hits = [
        hit("near", "near", scores=Scores(0.5, 0.0)),
        hit("far", "far", scores=Scores(0.1, 0.0)),
        hit("words", "exact part number", scores=Scores(0.1, 9.0)),
        hit("some", "some word", scores=Scores(0.1, 2.0)),
    ]
    built = context(*hits, budget=200)
    assert [document for document, _ in shown(built)] == ["near", "words"]
    assert built.irrelevant == 2
    assert len(context(*hits, budget=200, min_similarity=-1).citations) == 4


def test_citations_say_where_it_comes_from() -> None:
    """Title, headings and metadata are in the citation, title and headings in the frame."""
    built = context(hit("a", "text", title="Guide", heading="Install > Debian"), budget=100)
    assert '<passage number="1" title="Guide &gt; Install &gt; Debian">' in built.context
    own = context(hit("a", "text", title="Guide", heading="Guide > Install"), budget=100)
    assert '<passage number="1" title="Guide &gt; Install">' in own.context
    citation = built.citations[0]
    assert (citation.title, citation.heading, citation.metadata) == ("Guide", "Install > Debian", {"of": "a"})


def test_attributes_are_escaped() -> None:
    """Quotes and brackets in ids and titles cannot end an attribute."""
    built = context(hit('x" y="1', "text"), hit("b", "more", title="<b>&"), budget=100)
    assert 'title="x&quot; y=&quot;1"' in built.context
    assert 'title="&lt;b&gt;&amp;"' in built.context


TEXTS = st.text(alphabet=st.sampled_from("ab <>/\"'passage\n.é漢"), min_size=1, max_size=60)


@given(st.lists(st.tuples(TEXTS, st.integers(0, 3), st.integers(0, 5)), max_size=12), st.integers(1, 200))
def test_never_over_the_budget_never_out_of_the_frame(found: list[tuple[str, int, int]], budget: int) -> None:
    """Whatever the passages say: tokens counted on the whole context fit; frames equal citations; none comes twice."""
    hits = [
        hit(str(document), text, start=50 * passage, passage=passage) for text, document, passage in found
    ]
    built = context(*hits, budget=budget, excerpt_tokens=8)
    assert len(words(built.context)) == built.tokens <= budget
    assert sum(one.tokens for one in built.citations) == built.tokens
    assert built.context.lower().count("<passage") == len(built.citations)
    places = [(one.document_id, passage) for one in built.citations for passage in one.passages]
    assert len(places) + built.omitted == len(without_repetition(hits))

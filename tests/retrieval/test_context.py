"""Contexts for a prompt: the budget, repetition, citations, frames."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from retrieval.context import build_context, without_repetition
from retrieval.schemas import Hit, Receipt, Scores, SearchAnswer, Timings

RECEIPT = Receipt("c", 1, 1, ["hot"], None, "miss", "m")


def hit(document: str, text: str, start: int = 0, passage: int = 0, title: str = "") -> Hit:
    return Hit(document, passage, start, start + len(text), text, title, {}, 0.5, Scores(), "hot")


def answer(*hits: Hit) -> SearchAnswer:
    return SearchAnswer(list(hits), RECEIPT, Timings())


def words(text: str) -> int:
    """A tokenizer for tests: one token a word or mark."""
    import re

    return len(re.findall(r"\w+|[^\w\s]", text))


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
    """Whole passages only; a long one is omitted and counted, a later short one still taken."""
    built = build_context(answer(hit("long", "word " * 100), hit("short", "word")), 40, words)
    assert [one.document_id for one in built.citations] == ["short"]
    assert built.omitted == 1
    assert built.citations[0].number == 1


def test_attributes_are_escaped() -> None:
    """Quotes and brackets in ids and titles cannot end an attribute."""
    built = build_context(answer(hit('x" y="1', "text", title="<b>&")), 100, words)
    assert 'document="x&quot; y=&quot;1" title="&lt;b&gt;&amp;"' in built.context


TEXTS = st.text(alphabet=st.sampled_from("ab <>/\"'passage\n.é漢"), min_size=1, max_size=60)


@given(st.lists(TEXTS, max_size=8), st.integers(1, 120))
def test_never_over_the_budget_never_out_of_the_frame(texts: list[str], budget: int) -> None:
    """Whatever the passages say: tokens counted on the whole context fit, and frames equal citations."""
    hits = [hit(str(at), text) for at, text in enumerate(texts)]
    built = build_context(answer(*hits), budget, words)
    assert words(built.context) == built.tokens <= budget
    assert sum(one.tokens for one in built.citations) == built.tokens
    assert built.context.lower().count("<passage") == len(built.citations)
    assert len(built.citations) + built.omitted == len(without_repetition(hits))

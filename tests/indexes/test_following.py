"""A replica answers like the service that writes to its store, at the same operation, whatever happens to either."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from indexes.base.errors import Conflict, NotFound
from indexes.base.model import Delete, IndexOptions
from indexes.collection.collection import Collection
from indexes.directory.catalog import Catalog
from indexes.directory.marker import KEYS, is_locked
from indexes.parts.learned import SynonymSettings
from indexes.store import collection_log
from indexes.store import following as following_module
from indexes.store.following import Follower, promote
from indexes.store.objects import Bucket, Objects
from indexes.store.uploading import StoreOptions
from retrieval.access.key_file import KeyStore
from tests.indexes.test_store import state_of
from tests.indexes.test_uploading import (
    BUCKET,
    WAIT_S,
    WORLD,
    Service,
    away,
    damage_end,
    near,
    serving,
    wait_for,
)
from tests.support.object_stores import MemoryObjects
from tests.support.vectors import rebuild

POLL_S = 0.02


class Replica:
    """A catalog that follows a store, as a service with `--replica` has it."""

    def __init__(self, data: Path, objects: Objects, url: str = "memory:") -> None:
        self.follower = Follower(objects, url, data, POLL_S)
        options = IndexOptions(delta_passages_max=64, segments_max=0, replication=self.follower)
        self.catalog = Catalog(data, options, before_opening=lambda: self.follower.open(lambda *_: None))
        self.follower.start(self.catalog)

    def close(self) -> None:
        self.follower.close()
        self.catalog.close()

    def has(self, collection: Collection) -> bool:
        """Whether it has everything that the writer's collection has."""
        own = self.catalog.collections.get(collection.name)
        return own is not None and own.uid == collection.uid and own.snapshot.seq == collection.snapshot.seq


@contextlib.contextmanager
def following(data: Path, objects: MemoryObjects) -> Iterator[Replica]:
    replica = Replica(data, objects)
    try:
        yield replica
    finally:
        replica.close()


@pytest.fixture
def objects() -> MemoryObjects:
    return MemoryObjects()


@pytest.mark.parametrize("seed", range(3))
def test_it_answers_like_the_writer(
    seed: int, tmp_path: Path, objects: MemoryObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside random writes, deletions, rebuilds, checkpoints and restarts, the log is the same row by
    row, and hits and scores of the words and vectors are equal."""
    monkeypatch.setattr(collection_log, "SLOTS_BETWEEN", 9)
    draw = random.Random(seed)
    with serving(tmp_path / "a", objects) as writer:
        writer.create("docs")
        collection = writer.catalog.get("docs")
        writer.write("docs", *range(40)).result(WAIT_S)
        replica = Replica(tmp_path / "b", objects)
        try:
            for step in range(25):
                numbers = draw.sample(range(100), draw.randrange(1, 12))
                if draw.random() < 0.7:
                    writer.write("docs", *numbers, version=step).result(WAIT_S)
                else:
                    collection.write([Delete(f"d{one}") for one in numbers]).result(WAIT_S)
                if draw.random() < 0.1:
                    rebuild(collection)
                if draw.random() < 0.1:
                    replica.close()
                    replica = Replica(tmp_path / "b", objects)
                if draw.random() < 0.4:
                    compare(collection, replica)
            compare(collection, replica)
        finally:
            replica.close()


def compare(writer: Collection, follows: Replica) -> None:
    wait_for(lambda: follows.has(writer))
    replica = follows.catalog.get("docs")
    assert state_of(writer.folder) == state_of(replica.folder)
    assert writer.snapshot.content == replica.snapshot.content
    assert (writer.documents, writer.snapshot.live) == (replica.documents, replica.snapshot.live)
    for (ids, scores), (own_ids, own_scores) in zip(
        writer.exact(WORLD.queries(3), 10), replica.exact(WORLD.queries(3), 10), strict=True
    ):
        assert (ids.tolist(), scores.tolist()) == (own_ids.tolist(), own_scores.tolist())
    for number in range(3):
        found, own = (one.snapshot.lexical(WORLD.text(number, 0), 10) for one in (writer, replica))
        assert (found.ids.tolist(), found.scores.tolist()) == (own.ids.tolist(), own.scores.tolist())


def test_names_aliases_keys_and_settings_follow(tmp_path: Path, objects: MemoryObjects) -> None:
    with serving(tmp_path / "a", objects) as writer, contextlib.ExitStack() as stack:
        writer.create("docs")
        writer.write("docs", 1).result(WAIT_S)
        replica = stack.enter_context(following(tmp_path / "b", objects))
        writer.create("next")
        writer.write("next", 2).result(WAIT_S)
        writer.catalog.set_alias("live", "next")
        writer.catalog.get("next").synonyms.set(SynonymSettings.of([["car", "auto"]], 7))
        (tmp_path / "a" / KEYS).write_bytes(b'{"revision":1,"keys":[]}')
        wait_for(lambda: replica.catalog.aliases == {"live": "next"})
        wait_for(lambda: replica.has(writer.catalog.get("next")))
        wait_for(lambda: replica.catalog.get("next").synonyms.current is not None)
        wait_for(lambda: (tmp_path / "b" / KEYS).exists() and is_locked(tmp_path / "b"))
        writer.create("docs-2")
        for old, new in (("next", "other"), ("docs", "next"), ("other", "docs"), ("docs-2", "other")):
            writer.catalog.rename(old, new)
        writer.write("docs", 4).result(WAIT_S)
        wait_for(lambda: all(replica.has(one) for one in writer.catalog.collections.values()))
        wait_for(lambda: set(replica.catalog.collections) == {"docs", "next", "other"})
        writer.catalog.rename("docs", "later")
        writer.catalog.delete("next")
        writer.catalog.delete("other")
        writer.write("later", 3).result(WAIT_S)
        wait_for(lambda: set(replica.catalog.collections) == {"later"})
        wait_for(lambda: replica.has(writer.catalog.get("later")))
        assert replica.catalog.aliases == {"live": "later"}


def test_writes_are_refused(tmp_path: Path, objects: MemoryObjects) -> None:
    """Every change is refused with the name of the service that takes it."""
    with serving(tmp_path / "a", objects) as writer:
        writer.create("docs")
        writer.write("docs", 1).result(WAIT_S)
        with following(tmp_path / "b", objects) as replica:
            collection = replica.catalog.get("docs")
            for change in (
                lambda: collection.write([WORLD.document(2)]),
                lambda: collection.change("d1", lambda upsert: upsert),
                lambda: replica.catalog.create("new", collection.settings),
                lambda: replica.catalog.delete("docs"),
                lambda: replica.catalog.rename("docs", "other"),
                lambda: replica.catalog.set_alias("live", "docs"),
                lambda: replica.catalog.remove_alias("live"),
            ):
                with pytest.raises(Conflict, match="this service is a replica; writes go to "):
                    change()
            assert objects.held.keys() >= {"epoch/0000000001"}
            assert collection.log.document("d1") is not None


def test_a_store_that_is_away_leaves_it_serving(tmp_path: Path, objects: MemoryObjects) -> None:
    with serving(tmp_path / "a", objects) as writer:
        writer.create("docs")
        writer.write("docs", 1).result(WAIT_S)
        with following(tmp_path / "b", objects) as replica:
            objects.fault = away
            wait_for(lambda: replica.follower.error != "")
            assert replica.catalog.get("docs").document("d1").id == "d1"
            time.sleep(0.1)
            assert replica.follower.oldest_s > 0.05
            objects.fault = near
            wait_for(lambda: replica.follower.error == "" and replica.follower.oldest_s < 1)
            held, objects.held = objects.held, {}
            wait_for(lambda: "has lost what it held" in replica.follower.error)
            objects.held = held
            wait_for(lambda: replica.follower.error == "")


def test_a_replica_that_was_away_for_long_is_restored(
    tmp_path: Path, objects: MemoryObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it lacks is not in slots any more; and collections came and went."""
    monkeypatch.setattr(collection_log, "SLOTS_BETWEEN", 5)
    with serving(tmp_path / "a", objects) as writer:
        for name in ("docs", "gone"):
            writer.create(name)
            writer.write(name, 1).result(WAIT_S)
        with following(tmp_path / "b", objects):
            pass
        for version in range(20):
            writer.write("docs", 1, 2, version=version).result(WAIT_S)
        writer.catalog.delete("gone")
        writer.create("gone")
        writer.write("gone", 7).result(WAIT_S)
        with following(tmp_path / "b", objects) as replica:
            for name in ("docs", "gone"):
                assert replica.has(writer.catalog.get(name))
                assert state_of(tmp_path / "a" / name) == state_of(tmp_path / "b" / name)


def test_a_replica_that_paused_while_slots_were_dropped_is_restored(
    tmp_path: Path, objects: MemoryObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That the slot after its last one is not there does not mean that there is nothing new, as after an erasure. It is
    searched until it is whole again, and follows from there."""
    monkeypatch.setattr(collection_log, "SLOTS_BETWEEN", 5)
    monkeypatch.setattr(following_module, "PRESENT_S", 0.1)
    with serving(tmp_path / "a", objects) as writer:
        writer.create("docs")
        writer.write("docs", 1, 2, 3).result(WAIT_S)
        with following(tmp_path / "b", objects) as replica:
            collection = writer.catalog.get("docs")
            wait_for(lambda: replica.has(collection))
            with monkeypatch.context() as paused:
                paused.setattr(Follower, "_follow", lambda *_: None)
                time.sleep(5 * POLL_S)
                for version in range(20):
                    writer.write("docs", 1, 2, version=version).result(WAIT_S)
                collection.write([Delete("d3")]).result(WAIT_S)
            wait_for(lambda: replica.has(collection))
            assert replica.catalog.get("docs").log.document("d3") is None
            writer.write("docs", 4).result(WAIT_S)
            wait_for(lambda: replica.has(collection))
            compare(collection, replica)
            objects.calls.clear()
            wait_for(lambda: any(call == "exists" for call, _ in objects.calls))
            assert not [call for call in objects.calls if call[0] == "names"]  # which costs more
    assert not list((tmp_path / "b").glob(".removed-*"))


def test_a_promoted_replica_writes_and_the_old_writer_stops(tmp_path: Path, objects: MemoryObjects) -> None:
    """Nothing that was acknowledged is lost; neither side can be taken for the other by mistake."""
    with serving(tmp_path / "a", objects) as writer:
        writer.create("docs")
        writer.write("docs", 1).result(WAIT_S)
        with following(tmp_path / "b", objects):
            pass
        writer.write("docs", 2).result(WAIT_S)
    with pytest.raises(Conflict, match="it writes to memory: when"):
        promote(tmp_path / "a", objects, "memory:")
    for folder in (tmp_path / "none", empty := tmp_path / "empty"):
        empty.mkdir(exist_ok=True)
        with pytest.raises(Conflict, match="is no replica"):
            promote(folder, objects, "memory:")
    assert not list(empty.iterdir())
    with pytest.raises(Conflict, match="a replica of the store"):
        Service(tmp_path / "b", objects, BUCKET)
    with pytest.raises(Conflict, match="has written to a store"):
        Replica(tmp_path / "a", objects)
    promote(tmp_path / "b", objects, "memory:")
    with serving(tmp_path / "b", objects) as promoted:
        assert promoted.ids("docs") == {"d1", "d2"}
        promoted.write("docs", 3).result(WAIT_S)
    with pytest.raises(Conflict, match="another service has taken over"):
        Service(tmp_path / "a", objects, BUCKET)


def test_it_starts_while_the_store_is_away(tmp_path: Path, objects: MemoryObjects) -> None:
    """It serves what it has, and goes on when the store is back."""
    with serving(tmp_path / "a", objects) as writer:
        writer.create("docs")
        writer.write("docs", 1).result(WAIT_S)
        with following(tmp_path / "b", objects):
            pass
        objects.fault = away
        with following(tmp_path / "b", objects) as replica:
            assert replica.catalog.get("docs").document("d1").id == "d1"
            objects.fault = near
            writer.write("docs", 2).result(WAIT_S)
            writer.create("new")
            wait_for(lambda: replica.has(writer.catalog.get("docs")) and "new" in replica.catalog.collections)


def test_it_follows_a_store_without_collections(tmp_path: Path, objects: MemoryObjects) -> None:
    with serving(tmp_path / "a", objects) as writer, following(tmp_path / "b", objects) as replica:
        writer.create("docs")
        wait_for(lambda: "docs" in replica.catalog.collections)
        with pytest.raises(Conflict, match="is a replica's"):
            KeyStore(tmp_path / "b").open()
        with pytest.raises(Conflict, match="is a replica's"), KeyStore(tmp_path / "b")._edit_keys():
            pass


def test_an_empty_store_has_no_replicas(tmp_path: Path, objects: MemoryObjects) -> None:
    with pytest.raises(NotFound, match="is empty: start the service that writes to it first"):
        Replica(tmp_path / "b", objects)
    own = Catalog(tmp_path / "c", IndexOptions())
    with serving(tmp_path / "a", objects) as writer:
        writer.create("docs")
        own.create("own", writer.catalog.get("docs").settings)
        own.close()
        with pytest.raises(Conflict, match="has collections of its own"):
            Replica(tmp_path / "c", objects)


def test_what_is_damaged_in_the_store_keeps_nothing_else_away(tmp_path: Path, objects: MemoryObjects) -> None:
    """A new replica serves and follows what can be restored; what cannot goes when it goes from the store."""
    with serving(tmp_path / "a", objects) as writer:
        for name in ("docs", "other"):
            writer.create(name)
            writer.write(name, 1, 2).result(WAIT_S)
        damage_end(objects, writer.catalog.get("docs").uid)
        with following(tmp_path / "b", objects) as replica:
            assert set(replica.catalog.quarantined) == {"docs"}
            writer.write("other", 3).result(WAIT_S)
            wait_for(lambda: replica.has(writer.catalog.get("other")))
            writer.catalog.delete("docs")
            wait_for(lambda: not replica.catalog.quarantined)
            assert not replica.follower.error


def test_a_replica_keeps_what_it_has_of_what_is_damaged(tmp_path: Path, objects: MemoryObjects) -> None:
    """It is not served, because what comes next is not known, and goes on when the store is mended."""
    with serving(tmp_path / "a", objects) as writer:
        for name in ("docs", "other"):
            writer.create(name)
            writer.write(name, 1, 2).result(WAIT_S)
        docs = writer.catalog.get("docs")
        with following(tmp_path / "b", objects) as replica:
            wait_for(lambda: replica.has(docs))
        name, whole = damage_end(objects, docs.uid)
        with following(tmp_path / "b", objects) as replica:
            assert set(replica.catalog.quarantined) == {"docs"}
            assert replica.has(writer.catalog.get("other"))
        objects.held[name] = whole
        with following(tmp_path / "b", objects) as replica:
            wait_for(lambda: replica.has(docs))


def test_one_that_cannot_be_followed_holds_up_no_other(tmp_path: Path, objects: MemoryObjects) -> None:
    """What comes after a damaged object waits; the rest of another collection arrives, its indexes, too."""
    with serving(tmp_path / "a", objects) as writer:
        for name in ("docs", "other"):
            writer.create(name)
            writer.write(name, 1, 2).result(WAIT_S)
        docs, other = writer.catalog.get("docs"), writer.catalog.get("other")
        with following(tmp_path / "b", objects) as replica:
            wait_for(lambda: replica.has(docs) and replica.has(other))
            last = max(one for one in objects.held if docs.uid in one and "/log/" in one)
            folder, _, number = last.rpartition("/")
            objects.held[f"{folder}/{int(number) + 1:020}"] = b"no slot"
            wait_for(lambda: bool(replica.follower.error))
            writer.write("other", 3).result(WAIT_S)
            rebuild(other)
            wait_for(lambda: replica.has(other) and bool(replica.catalog.get("other").generation))


@pytest.mark.parametrize("is_mounted", [True, False])
def test_it_starts_while_a_folder_is_away(is_mounted: bool, tmp_path: Path) -> None:
    """As with a bucket: it serves what it has, and goes on when what it followed is back."""
    store = tmp_path / "store"
    options = StoreOptions(store.as_uri(), "bucket")
    with serving(tmp_path / "a", Bucket(options.url, makes_folder=True), options) as writer:
        writer.create("docs")
        writer.write("docs", 1).result(WAIT_S)
        with contextlib.closing(Replica(tmp_path / "b", Bucket(options.url), options.url)):
            pass
        writer.write("docs", 2).result(WAIT_S)
        docs = writer.catalog.get("docs")
    store.rename(tmp_path / "away")
    if is_mounted:
        store.mkdir()
    objects = Bucket(options.url, may_be_away=True)
    with contextlib.closing(Replica(tmp_path / "b", objects, options.url)) as replica:
        assert replica.catalog.get("docs").documents == 1
        wait_for(lambda: bool(replica.follower.error))
        if is_mounted:
            store.rmdir()
        (tmp_path / "away").rename(store)
        wait_for(lambda: replica.has(docs))

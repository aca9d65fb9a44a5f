"""A program that works on a data directory and says, on standard output, what it is about to do and what was done.

    python -m tests.support.workload FOLDER '{"story": "tour"}'

It is there to be killed. Whoever reads its output knows what must be on the disk afterwards (`oracle`). A line is one
JSON object: {"by", "n", "do": {fact: value}} before an attempt, which happens whole or not at all, then either
{"by", "n", "seq"} when it was acknowledged or {"by", "n", "error"}. Facts are those of `inspection.everything`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import apsw
import msgspec

from indexes.base import durable, failpoints
from indexes.base.durable import Disk
from indexes.base.errors import NearlineError, RecallTooLow
from indexes.base.model import Delete, IndexOptions, Operation, WriteResult
from indexes.collection.collection import Collection
from indexes.dense.cold import ColdSettings
from indexes.directory.backup.backup import back_up
from indexes.directory.catalog import Catalog
from indexes.filters.grammar import Comparison, Compound, Filter
from indexes.log import log, sqlite
from indexes.parts.manifest import read_manifest
from indexes.rebuild import builder
from indexes.rebuild.builder import Rebuild, build
from indexes.rebuild.chosen import TunedSettings
from indexes.rebuild.optimizer import Measured, choose_settings
from indexes.store import collection_log
from indexes.store.objects import Bucket
from indexes.store.uploading import StoreOptions, Uploader
from indexes.upkeep.erasing import Erasure
from tests.support.inspection import Value
from tests.support.power import Platter
from tests.support.vectors import settings
from tests.support.versions import OWNERS, document

MAIN = "main"
LOST = "lost"
BACKUPS = "backups"
TUNING = IndexOptions(delta_passages_max=32, segments_max=0, recall_target=0.9)
CHECKPOINT_PAGES = 30  # so that a short story has checkpoints too
SLOTS_BETWEEN = 20  # checkpoints in a store, for the same reason
STORM_NUMBERS = 400

NUMBERS_OF_ATTEMPTS = itertools.count(1)

Tell = Callable[[Mapping[str, object]], None]


class Options(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`seed` decides everything random; `round` numbers the runs on one folder, so that no version comes twice. A
    `short` tour has one rebuild instead of three. `children` is the share of builds and backups in own processes.

    With `lose_at_step` the power fails there (`Platter`): what is left lies in LOST beside the parent of FOLDER, which
    must exist. `unsynced` leaves syncs out, to show that this is noticed. With the URL of a `store`, nothing is
    acknowledged before that has it.
    """

    story: str
    seed: int = 0
    round: int = 0
    hot_capacity: int = 1000
    children: float = 0.3
    short: bool = False
    count: bool = False
    lose_at_step: int = 0
    unsynced: Literal["", "commits", "files"] = ""
    store: str = ""


class Actor:
    """Does one thing after the other and tells of each."""

    def __init__(self, name: str, catalog: Catalog, tell: Tell, uploader: Uploader | None = None) -> None:
        self.catalog = catalog
        self._uploader = uploader
        self._name = name
        self._tell = tell

    @property
    def main(self) -> Collection:
        return self.catalog.get(MAIN)

    def attempt(self, do: Mapping[str, Value], work: Callable[[], object]) -> object:
        """What `work` returned, or None if it failed."""
        about: dict[str, object] = {"by": self._name, "n": next(NUMBERS_OF_ATTEMPTS)}
        self._tell(about | {"do": do})
        try:
            result = work()
            if self._uploader is not None:
                self._uploader.directory_changed().result()
        except NearlineError as error:
            self._tell(about | {"error": type(error).__name__, "message": error.message})
            return None
        self._tell(about | {"seq": result.seq if isinstance(result, WriteResult) else 0})
        return True if result is None else result

    def write(self, versions: Mapping[int, int | None]) -> object:
        """One write of several documents: a version, or None to delete."""
        operations: list[Operation] = [
            Delete(f"d{number}") if version is None else document(number, version)
            for number, version in versions.items()
        ]
        facts: dict[str, Value] = {f"doc:{MAIN}:{number}": version for number, version in versions.items()}
        return self.attempt(facts, lambda: self.main.write(operations).result())

    def delete_topic(self, owner: int, topic: int, numbers: range) -> object:
        """Delete an owner's documents of one topic, by filter."""
        of_both = [number for number in numbers if number % OWNERS == owner and number % 7 == topic]
        condition = Compound(
            "and", [Comparison("eq", "owner", owner), Comparison("eq", "topic", f"t{topic}")]
        )
        facts: dict[str, Value] = {f"doc:{MAIN}:{number}": None for number in of_both}
        return self.attempt(facts, lambda: self._delete_matching(condition))

    def _delete_matching(self, condition: Filter) -> WriteResult:
        return self.main.delete_holding(self.main.snapshot.matching(condition)).result()

    def create(self, name: str, **changes: object) -> object:
        return self.attempt(
            {f"collection:{name}": True}, lambda: self.catalog.create(name, settings(**changes))
        )

    def delete(self, name: str) -> object:
        return self.attempt({f"collection:{name}": None}, lambda: self.catalog.delete(name))

    def rename(self, name: str, new_name: str) -> object:
        facts: dict[str, Value] = {f"collection:{name}": None, f"collection:{new_name}": True}
        facts |= {f"alias:{alias}": new_name for alias, to in self.catalog.aliases.items() if to == name}
        return self.attempt(facts, lambda: self.catalog.rename(name, new_name))

    def set_alias(self, alias: str, name: str) -> object:
        return self.attempt({f"alias:{alias}": name}, lambda: self.catalog.set_alias(alias, name))

    def remove_alias(self, alias: str) -> object:
        return self.attempt({f"alias:{alias}": None}, lambda: self.catalog.remove_alias(alias))

    def rebuild(self, *, in_child: bool) -> object:
        """Build a generation, in a process of its own or in this one, and adopt it."""

        def work() -> None:
            request = self.main.begin_build()
            assert request.number == number
            if in_child:
                Rebuild(request, timeout_s=60).run(lambda *_: None)
            else:
                build(request, lambda *_: None)
            self.main.adopt(number)

        if MAIN not in self.catalog.collections:
            return None
        number = self.main.shelf.next_number()
        return self.attempt({f"generation:{MAIN}": number}, work)

    def erase(self) -> object:
        """What was deleted, from every file, after a rebuild where one is needed."""
        if MAIN not in self.catalog.collections:
            return None
        erasure = Erasure(self.main)
        if erasure.needs_rebuild:
            self.rebuild(in_child=False)
        return self.attempt({}, lambda: erasure.run(lambda *_: None))

    def build_badly(self) -> object:
        """Build a generation that measures below the floor. It is not adopted."""

        def work() -> None:
            request = self.main.begin_build()
            with measuring_badly():
                build(request, lambda *_: None)
            try:
                self.main.adopt(request.number)
            except RecallTooLow:
                return
            raise AssertionError("a bad generation was adopted")

        return self.attempt({}, work)

    def tune(self) -> object:
        """Choose other search settings for the live generation."""

        def work() -> None:
            live = read_manifest(self.main.shelf.path(self.main.snapshot.generation))
            self.main.set_search(
                TunedSettings(
                    recall_target=0.95,
                    generation=live.number,
                    seal=live.sha256,
                    ef=200,
                    search=ColdSettings(2, 100),
                    recall={},
                    chosen_ms=0,
                )
            )

        return self.attempt({}, work)

    def back_up(self, target: Path, *, in_child: bool) -> object:
        """With the command `nearline backup`, or in this process."""

        def work() -> None:
            data = self.catalog.folder
            if not in_child:
                back_up(data, target, progress=lambda *_: None)
                return
            command = [sys.executable, "-m", "jobs.cli", "backup", "--data", str(data), "--to", str(target)]
            ended = subprocess.run(command, capture_output=True, text=True, check=False)
            if ended.returncode:
                raise NearlineError(ended.stderr)

        return self.attempt({}, work)

    def rollback(self) -> object:
        """To the generation before the live one, if there is one."""
        if MAIN not in self.catalog.collections:
            return None
        earlier = [one for one in self.main.shelf.numbers() if one < self.main.snapshot.generation]
        if not earlier:
            return None
        return self.attempt({f"generation:{MAIN}": earlier[-1]}, lambda: self.main.adopt(earlier[-1]))

    def settle(self) -> None:
        with contextlib.suppress(NearlineError):  # after a failure there may be nothing to settle
            self.main.settle()


def tour(folder: Path, tell: Tell, options: Options) -> None:
    """Everything a data directory goes through, once, in a fixed order, on one thread."""
    for life in (first_life, second_life):
        catalog = Catalog(folder, TUNING)
        life(Actor("tour", catalog, tell), options)
        catalog.close()


def first_life(actor: Actor, options: Options) -> None:
    actor.create(MAIN, hot_capacity=options.hot_capacity)
    for first in range(0, 80, 20):
        actor.write(dict.fromkeys(range(first, first + 20), 1))
    actor.settle()
    actor.set_alias("live", MAIN)
    actor.rebuild(in_child=False)
    actor.write({0: 2, 1: 2, 20: None, 21: None})
    if not options.short:
        actor.rebuild(in_child=False)
        actor.build_badly()
        actor.tune()
        actor.write({80: 1, 2: None})
        actor.rebuild(in_child=False)
        actor.rollback()
    actor.create("other")
    actor.set_alias("live", "other")
    actor.rename("other", "another")
    actor.set_alias("live", MAIN)
    actor.delete("another")
    actor.delete_topic(0, 4, range(100))
    actor.erase()
    actor.remove_alias("live")


@contextlib.contextmanager
def measuring_badly() -> Iterator[None]:
    def measure(*given: Any) -> Measured:
        measured = choose_settings(*given)
        return replace(measured, recall=dict.fromkeys(measured.recall, 0.5), evidence=None)

    vars(builder)["choose_settings"] = measure
    try:
        yield
    finally:
        vars(builder)["choose_settings"] = choose_settings


def second_life(actor: Actor, options: Options) -> None:
    actor.write({0: 3, 90: 1})


def storm(folder: Path, tell: Tell, options: Options) -> None:
    """Writes of two threads, and beside them whatever else may change a directory or read it. Endless."""
    catalog, uploader = (
        open_with_store(folder, options.store) if options.store else (Catalog(folder, TUNING), None)
    )
    start = Actor("start", catalog, tell, uploader)
    if MAIN not in catalog.collections:
        start.create(MAIN, hot_capacity=options.hot_capacity)
    for owner in range(OWNERS):
        actor = Actor(f"writer{owner}", catalog, tell, uploader)
        threading.Thread(target=write_on, args=(actor, owner, options), daemon=True).start()
    tell({"started": True})
    threading.Thread(
        target=back_up_on, args=(Actor("backup", catalog, tell, uploader), options), daemon=True
    ).start()
    change_on(Actor("admin", catalog, tell, uploader), options)


def open_with_store(folder: Path, url: str) -> tuple[Catalog, Uploader]:
    """Open a directory that acknowledges what its store has; an empty one gets what the store has."""
    uploader = Uploader(Bucket(url, makes_folder=True), StoreOptions(url, "bucket"), folder)
    tuning = replace(TUNING, replication=uploader)
    catalog = Catalog(folder, tuning, before_opening=lambda: uploader.open(lambda *_: None))
    uploader.start(catalog)
    return catalog, uploader


def write_on(actor: Actor, owner: int, options: Options) -> None:
    rng = random.Random(f"{options.seed} {owner}")
    own = range(owner, STORM_NUMBERS, OWNERS)
    version = options.round * 100_000
    while True:
        if rng.random() < 0.05:
            actor.delete_topic(owner, rng.randrange(7), range(STORM_NUMBERS))
            continue
        version += 1
        numbers = rng.sample(own, rng.randint(1, 8))
        actor.write({number: None if rng.random() < 0.25 else version for number in numbers})


def back_up_on(actor: Actor, options: Options) -> None:
    """One backup after the other into BACKUPS beside the data directory, named by round and number."""
    rng = random.Random(f"{options.seed} backups")
    for number in itertools.count():
        target = actor.catalog.folder.with_name(BACKUPS) / f"{options.round}-{number}"
        actor.back_up(target, in_child=rng.random() < options.children)
        time.sleep(rng.random() * 0.3)


def change_on(actor: Actor, options: Options) -> None:
    rng = random.Random(f"{options.seed} changes")
    while True:
        what = rng.random()
        if what < 0.4:
            actor.rebuild(in_child=rng.random() < options.children)
        elif what < 0.45:
            actor.erase()
        elif what < 0.5:
            actor.rollback()
        elif what < 0.7:
            actor.set_alias(rng.choice(("live", "next")), MAIN)
        elif what < 0.8:
            if "live" in actor.catalog.aliases:
                actor.remove_alias("live")
        elif "other" in actor.catalog.collections:
            actor.delete("other")
        else:
            actor.create("other")
        time.sleep(rng.random() * 0.02)


STORIES = {"tour": tour, "storm": storm}


def tell_on_standard_output(line: Mapping[str, object]) -> None:
    """In one call to the system: what was told before a kill is told, and lines of two threads do not mix."""
    os.write(1, json.dumps(line).encode() + b"\n")


def main(arguments: list[str]) -> None:
    folder, options = Path(arguments[0]), msgspec.json.decode(arguments[1], type=Options)
    sqlite.CHECKPOINT_PAGES = CHECKPOINT_PAGES
    collection_log.SLOTS_BETWEEN = SLOTS_BETWEEN
    visits: Counter[str] = Counter()
    if options.count:
        failpoints.reach = lambda name: visits.update([name])
    if options.unsynced == "commits":
        vars(log)["connect"] = connect_without_syncing
    platter = Platter(folder.parent) if options.lose_at_step or options.count else None
    if platter:
        platter.on_step = partial(lose_power, platter, options)
    with platter.installed() if platter else contextlib.nullcontext():
        if options.unsynced == "files":
            durable.disk = Disk()
        STORIES[options.story](folder, tell_on_standard_output, options)
    if options.count and platter:
        tell_on_standard_output({"visits": visits, "steps": platter.steps})


def lose_power(platter: Platter, options: Options, step: int) -> None:
    if step != options.lose_at_step:
        return
    platter.lose(platter.root.with_name(LOST), random.Random(options.seed))
    tell_on_standard_output({"lost": True})
    os._exit(0)


def connect_without_syncing(path: Path, **how: bool) -> apsw.Connection:
    db = sqlite.connect(path, **how)
    db.execute("PRAGMA synchronous = OFF")
    return db


if __name__ == "__main__":
    main(sys.argv[1:])

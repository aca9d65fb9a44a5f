"""Files of a collection removed, or taken from an earlier moment: it is whole or quarantined, and `verify` agrees."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from indexes.base.errors import Conflict
from indexes.base.model import Delete, IndexOptions
from indexes.collection.collection import Collection
from indexes.directory.backup import verifying
from indexes.directory.backup.restoring import accept, survey
from indexes.directory.backup.verifying import LoadRequest, load_and_compare, verify_data
from indexes.directory.catalog import Catalog
from indexes.log.mark import seq_alone
from tests.support.inspection import consistent
from tests.support.vectors import rebuild, settings
from tests.support.versions import document

OPTIONS = IndexOptions(delta_passages_max=4, segments_max=0)
NAME, OTHER = "docs", "other"
CASES_IN_CI = 60
Content = Mapping[int, tuple[int, int]]
Files = Mapping[str, Path]


@dataclass(frozen=True)
class Moment:
    """A copy of the data directory, what was acknowledged until then, and the last operation."""

    data: Path
    content: Content
    seq: int = 0

    @property
    def files(self) -> Files:
        """Everything the collection consists of, by name, also new kinds of files; a generation or segment is one
        piece."""
        folder, made = self.data / NAME, ("generations", "segments")
        paths = [path for path in folder.iterdir() if path.name not in made]
        paths += [path for one in made for path in folder.glob(f"{one}/*")]
        return {str(path.relative_to(folder)): path for path in paths}


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> list[Moment]:
    """Moments at which the service was killed or stopped: with writes in the WAL, after a checkpoint, after a build."""
    folder = tmp_path_factory.mktemp("life")
    data, moments = folder / "data", list[Moment]()

    def remember(collection: Collection) -> None:
        collection.settle()
        shutil.copytree(data, copy := folder / str(len(moments)))
        moments.append(Moment(copy, consistent(collection), collection.snapshot.seq))

    catalog = Catalog(data, OPTIONS)
    catalog.create(OTHER, settings()).write([document(1, 1)]).result()
    docs = catalog.create(NAME, settings(hot_capacity=100))
    docs.write([document(number, 1) for number in range(6)]).result()
    remember(docs)
    docs.write([document(2, 2), Delete("d3")]).result()
    remember(docs)
    docs.on_writer(lambda: docs.log._checkpoint_if(pages=1))
    remember(docs)
    docs.write([document(7, 1)]).result()
    docs.hits.count([1, 2])
    rebuild(docs)
    docs.write([document(1, 2)]).result()
    remember(docs)
    catalog.close()
    catalog = Catalog(data, OPTIONS)
    docs = catalog.get(NAME)
    remember(docs)
    docs.write([document(8, 1), Delete("d0")]).result()
    rebuild(docs)
    remember(docs)
    catalog.close()
    with closing(Catalog(data, OPTIONS)) as catalog:
        remember(catalog.get(NAME))
    return moments


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verify loads generations here: their checksums are right, and a child for each takes most of the time."""

    def load(request: LoadRequest) -> str:
        return load_and_compare(request, lambda *_: None)

    monkeypatch.setattr(verifying, "load_in_child", load)


Choice = tuple[tuple[str, str], ...]  # (file, "gone" or "older")


def choices(now: Moment, older: Moment, changed: int) -> Iterator[Choice]:
    names = sorted({*now.files, *older.files})
    for some in itertools.combinations(names, changed):
        for states in itertools.product(("gone", "older"), repeat=changed):
            yield tuple(zip(some, states, strict=True))


def compose(now: Moment, older: Moment, choice: Choice, data: Path) -> None:
    """The directory of now, some files of the collection gone or as they were; what was not there then is gone."""
    shutil.copytree(now.data, data)
    for name, state in choice:
        path = data / NAME / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        source = older.files.get(name)
        if state == "older" and source is not None:
            path.parent.mkdir(exist_ok=True)
            shutil.copytree(source, path) if source.is_dir() else shutil.copy2(source, path)


def content_of(moment: Moment, name: str) -> bytes | None:
    path = moment.files.get(name)
    return path.read_bytes() if path is not None else None


def end_of(log: Path) -> int:
    """The last operation in log.db alone."""
    return (seq_alone(log) or 0) if log.is_file() else 0


def check(now: Moment, older: Moment, choice: Choice, data: Path) -> str:
    """Opens what was made, and compares. Returns what became of it."""
    compose(now, older, choice, data)
    composed = Moment(data, {})
    there, marked, alone = (
        set(composed.files),
        content_of(composed, "log.mark"),
        end_of(data / NAME / "log.db"),
    )
    wrong = [one for one in verify_data(data, (), lambda *_: None) if not one.ok]
    with closing(Catalog(data, OPTIONS)) as catalog:
        assert len(consistent(catalog.get(OTHER))) == 1
        if NAME in catalog.quarantined:
            assert wrong, (choice, catalog.quarantined)
            assert {name for name in there if name.startswith("generations/")} <= set(composed.files), choice
            return "quarantined"
        if NAME not in catalog.collections:
            assert not any((data / NAME).rglob("*")) or set(composed.files) <= {"log.db-shm"}, choice
            return "nothing is left of it"
        assert not any(one.name.startswith("log") for one in wrong), (choice, wrong)
        content = consistent(catalog.get(NAME))
        if content == now.content:
            return "whole"
        # It is as it was at the earlier moment, and nothing that is left knows of a later one.
        assert content == older.content, (choice, content, now.content)
        assert marked == content_of(older, "log.mark"), choice
        assert alone <= older.seq, choice
        return "whole, as it was"


@pytest.mark.parametrize("changed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_every_file_and_every_two(life: list[Moment], memory_folder: Path, changed: int) -> None:
    """Of every moment and the one before: each file, and each two, gone or older."""
    rng, found = random.Random(changed), set[str]()
    cases = [
        (now, older, choice)
        for older, now in itertools.pairwise(life)
        for choice in choices(now, older, changed)
    ]
    for at, (now, older, choice) in enumerate(rng.sample(cases, min(CASES_IN_CI, len(cases)))):
        found.add(check(now, older, choice, memory_folder / str(at)))
        shutil.rmtree(memory_folder / str(at))
    assert {"whole", "quarantined"} <= found
    assert any(name.startswith("segments/") for now, _, _ in cases for name in now.files)


@pytest.mark.slow
def test_the_files_of_the_log(life: list[Moment], memory_folder: Path) -> None:
    """Log, WAL and mark, each as it is, gone or older, without the generations. A file that is older may be the same or
    not have been there: each case is tried once."""
    done = set[tuple[object, ...]]()
    for older, now in [*itertools.pairwise(life), *zip(life, life[2:])]:
        generations = [name for name in now.files if name.startswith(("generations/", "segments/"))]
        for states in itertools.product(("now", "gone", "older"), repeat=3):
            named = list(zip(("log.db", "log.db-wal", "log.mark"), states))
            case = (older.data, now.data, *(content_in(state, older, now, name) for name, state in named))
            if case in done:
                continue
            done.add(case)
            without = [(name, state) for name, state in named if state != "now"]
            without += [(name, "gone") for name in generations]
            check(now, older, tuple(without), data := memory_folder / str(len(done)))
            shutil.rmtree(data)
    assert len(done) > 100


def content_in(state: str, older: Moment, now: Moment, name: str) -> bytes | None:
    return None if state == "gone" else content_of(older if state == "older" else now, name)


def test_a_generation_that_knows_better_is_not_to_be_deleted(life: list[Moment], tmp_path: Path) -> None:
    """Where the log is whole but older, the advice for the generation is a restore, or to accept the loss."""
    now = next(one for one in life[1:] if any(name.startswith("generations/") for name in one.files))
    compose(
        now,
        life[0],
        (("log.db-wal", "older"), ("log.db", "older"), ("log.mark", "older")),
        data := tmp_path / "data",
    )
    wrong = [one for one in verify_data(data, (), lambda *_: None) if not one.ok and "generation" in one.name]
    assert wrong
    for one in wrong:
        assert "delete" not in one.advice.replace("then delete this one", ""), one
        assert f"nearline accept --data {data} -c {NAME}" in one.advice


def accepting(data: Path, answer: str) -> subprocess.CompletedProcess[str]:
    """The command, with an answer typed on a terminal if there is one."""
    typed, terminal = os.openpty()
    os.write(typed, answer.encode())
    command = [sys.executable, "-m", "jobs.cli", "accept", "--data", str(data), "-c", NAME]
    try:
        return subprocess.run(
            command,
            stdin=terminal if answer else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    finally:
        os.close(typed)
        os.close(terminal)


def test_what_is_left_can_be_accepted(life: list[Moment], tmp_path: Path) -> None:
    """On request: a log without its last writes is served as it is, without the generation that knew better. A
    log of which nothing is missing is refused, and stays as it is."""
    older, now = life[0], life[3]
    compose(
        now,
        older,
        (("log.db-wal", "gone"), ("log.db", "older"), ("log.mark", "gone")),
        data := tmp_path / "data",
    )
    checks = {one.name: one.advice for one in verify_data(data, (), lambda *_: None) if not one.ok}
    assert f"nearline accept --data {data} -c {NAME}" in checks["log"] + checks.get("generation 1", "")
    left = survey(data, NAME)
    for answer, said in (("", "--yes does it"), ("n\n", "nothing was changed"), ("y\n", "")):
        ended = accepting(data, answer)
        assert (left.reason in ended.stdout, "is given up" in ended.stdout) == (True, True), ended.stdout
        assert said in ended.stdout
        assert ended.returncode == (1 if said else 0)
    whole = (data / NAME / "log.db").read_bytes()
    with pytest.raises(Conflict, match="nothing of it is known to be missing"):
        accept(data, NAME)
    assert (data / NAME / "log.db").read_bytes() == whole
    assert all(one.ok for one in verify_data(data, (), lambda *_: None) if one.name != "CURRENT")
    with closing(Catalog(data, OPTIONS)) as catalog:
        docs = catalog.get(NAME)
        assert consistent(docs) == {}  # all that it had was in the WAL
        docs.write([document(1, 3)]).result()
        rebuild(docs)
        assert consistent(docs) == {1: (3, 1)}


@pytest.mark.torture
@pytest.mark.timeout(3600)
def test_many_files(life: list[Moment], tmp_path: Path) -> None:
    """Any number of files, of any two moments, NEARLINE_TORTURE_OLDER times (5,000)."""
    rng, done = random.Random(4), dict[str, int]()
    for at in range(int(os.environ.get("NEARLINE_TORTURE_OLDER", "5000"))):
        older, now = rng.choice(list(itertools.combinations(life, 2)))
        names = sorted({*now.files, *older.files})
        choice = tuple((name, rng.choice(("gone", "older"))) for name in names if rng.random() < rng.random())
        result = check(now, older, choice, tmp_path / str(at))
        done[result] = done.get(result, 0) + 1
        shutil.rmtree(tmp_path / str(at))
    assert {"quarantined", "whole"} <= done.keys()

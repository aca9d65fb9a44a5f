"""The recall gate: a generation that measures below the floor is not adopted, and nothing of it gets in the way."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from indexes.base.errors import Conflict, InvalidInput, RecallTooLow
from indexes.base.model import Floats, IndexOptions
from indexes.collection.collection import Collection
from indexes.directory.backup.backup import back_up
from indexes.directory.backup.verifying import verify_data
from indexes.directory.catalog import Catalog
from indexes.parts.manifest import FILTERED, SCANNED, RecallEvidence, read_manifest
from indexes.parts.shelf import Shelf
from indexes.rebuild import optimizer
from jobs.serving.process import serving
from retrieval.base.config import load_config
from retrieval.base.index_options import options_of
from retrieval.upkeep.tasks import Tasks
from retrieval.wire.collections import JobBody
from tests.support.http import Http
from tests.support.vectors import World, fill, rebuild, settings

ROOT = Path(__file__).parents[2]
PASSAGES = 1500


class Flat(World):
    """Vectors without clusters: a list holds few of the neighbours of what is in it."""

    def vector(self, *key: int) -> Floats:
        values = np.random.default_rng([self.seed, *key]).standard_normal(self.dimensions)
        unit: Floats = (values / np.linalg.norm(values)).astype(np.float32)
        return unit


WORLD = Flat()
TUNING = IndexOptions(delta_passages_max=256, segments_max=0)
LOOSE = replace(TUNING, recall_floor=0)

POOREST = {"EFS": (10,), "PROBED_64THS": (0,), "RESCORED": (1,), "REACHES": (0.0,)}
# Python runs this at the start of every process that finds it: builder and tuning then know the poorest settings only.
POOR_BUILDER = """
import sys
from pathlib import Path

if {{"indexes.rebuild.builder", "indexes.upkeep.tuner"}} & {{*sys.orig_argv}} and Path({marker!r}).exists():
    from indexes.rebuild import optimizer

    vars(optimizer).update({poorest!r})
"""


class Builders:
    """Whether builders are poor ones, here and in processes started from now on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._marker = folder / "poor"
        self._here = pytest.MonkeyPatch()
        (folder / "sitecustomize.py").write_text(
            POOR_BUILDER.format(marker=str(self._marker), poorest=POOREST)
        )

    @property
    def path(self) -> str:
        return os.pathsep.join([str(self.folder), str(ROOT)])

    def poor(self) -> None:
        self._marker.touch()
        for name, only in POOREST.items():
            self._here.setattr(optimizer, name, only)

    def good(self) -> None:
        self._marker.unlink(missing_ok=True)
        self._here.undo()


@pytest.fixture
def builders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Builders]:
    (tmp_path / "hook").mkdir()
    made = Builders(tmp_path / "hook")
    monkeypatch.setenv("PYTHONPATH", made.path)
    yield made
    made.good()


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A collection `c` of some passages in a directory of data, without a generation."""
    data = tmp_path_factory.mktemp("filled") / "data"
    with closing(Catalog(data, TUNING)) as opened:
        fill(opened.create("c", settings(hot_capacity=300)), WORLD, range(PASSAGES))
    return data


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, filled: Path) -> Path:
    """The same with a good first generation, in which most passages are cold."""
    data = shutil.copytree(filled, tmp_path_factory.mktemp("built") / "data")
    with closing(Catalog(data, TUNING)) as opened:
        rebuild(opened.get("c"))
    return data


@pytest.fixture
def catalog(tmp_path: Path, built: Path) -> Iterator[Catalog]:
    with closing(Catalog(shutil.copytree(built, tmp_path / "data"), TUNING)) as opened:
        yield opened


def refuse(collection: Collection) -> RecallTooLow:
    with pytest.raises(RecallTooLow) as caught:
        rebuild(collection)
    return caught.value


def test_a_bad_generation_is_refused_and_a_good_one_adopted(catalog: Catalog, builders: Builders) -> None:
    """The reason names cohort, recall and floor; the old generation goes on; the next good one takes its place."""
    collection = catalog.get("c")
    builders.poor()
    error = refuse(collection)
    aside = collection.shelf.aside()
    refused = read_manifest(aside[2])
    assert min(refused.recall.values()) < 0.9
    assert refused.evidence is not None
    for cohort, recall in refused.recall.items():
        low = refused.evidence.intervals.get(cohort, (recall, recall))[1] < 0.9
        assert (f"recall@10 {cohort} {recall:.4f}" in error.message) == low
    assert "below the floor of 0.9" in error.message
    assert (collection.snapshot.generation, collection.shelf.numbers()) == (1, [1])
    assert len(collection.snapshot.dense(WORLD.queries(1)[0], 10).ranking) == 10
    builders.good()
    assert rebuild(collection).number == 3, "a refused generation keeps its number"
    assert collection.snapshot.generation == 3
    assert collection.shelf.aside() == {}, "cleared away by the next that succeeds"


def test_a_recall_that_chance_may_explain_is_adopted(built: Path) -> None:
    """Below the floor is what has its whole interval there, or has none; the reason names the measured recall."""
    found = read_manifest(Shelf(built / "c").path(1))

    def reason(recall: float, *interval: float) -> str | None:
        intervals = {"cold": (interval[0], interval[1])} if interval else {}
        evidence = RecallEvidence("synthetic", 200, intervals)
        return msgspec.structs.replace(found, recall={"cold": recall}, evidence=evidence).below(0.9)

    assert reason(0.89, 0.85, 0.91) is None
    assert reason(0.89, 0.85, 0.895) == "recall@10 cold 0.8900, below the floor of 0.9"
    assert reason(0.89) is not None
    assert reason(0.9) is None
    assert (
        msgspec.structs.replace(found, recall={"cold": 0.89}, evidence=msgspec.UNSET).below(0.9) is not None
    )


@pytest.mark.slow
def test_only_the_newest_is_kept_aside(catalog: Catalog, builders: Builders) -> None:
    """A second refusal removes what the first one left."""
    collection = catalog.get("c")
    builders.poor()
    refuse(collection)
    refuse(collection)
    assert list(collection.shelf.aside()) == [3]


@pytest.mark.slow
def test_what_is_aside_is_nobody_s_generation(catalog: Catalog, builders: Builders, tmp_path: Path) -> None:
    """Rollback, verify, backup and opening anew take no notice of it."""
    collection = catalog.get("c")
    builders.poor()
    refuse(collection)
    with pytest.raises(Conflict):
        collection.rollback()
    assert collection.info().generations == [1]
    checks = list(verify_data(catalog.folder, [], lambda *_: None))
    assert all(check.ok for check in checks), checks
    assert not [check for check in checks if "2" in check.name and check.name.startswith("generation")]
    made = back_up(catalog.folder, tmp_path / "backup", progress=lambda *_: None)
    assert not [name for name in made.collections[0].files if "refused" in name]
    shutil.copytree(catalog.folder, tmp_path / "copy")
    opened = Catalog(tmp_path / "copy", TUNING)
    try:
        again = opened.get("c")
        assert (again.snapshot.generation, list(again.shelf.aside())) == (1, [2])
        assert again.shelf.next_number() == 3
    finally:
        opened.close()


@pytest.mark.slow
def test_without_a_floor_everything_is_adopted(tmp_path: Path, filled: Path, builders: Builders) -> None:
    """`recall_floor` 0 turns the gate off; with a floor again, rollback passes over what lies below it and says so."""
    folder = shutil.copytree(filled / "c", tmp_path / "c")
    builders.poor()
    with closing(Collection(folder, LOOSE)) as collection:
        rebuild(collection)
        builders.good()
        rebuild(collection)
        assert collection.snapshot.generation == 2
    with closing(Collection(folder, TUNING)) as collection:
        with pytest.raises(Conflict, match=r"generation 1 has recall@10 .* below the floor of 0\.9"):
            collection.rollback()
        assert collection.shelf.numbers() == [1, 2]
    with closing(Collection(folder, LOOSE)) as collection:
        assert collection.rollback().number == 1


def test_the_floor_is_never_above_what_builds_aim_for() -> None:
    """A library user who wants little recall is not refused what was asked for."""
    assert IndexOptions(recall_target=0.8).floor == 0.8
    assert IndexOptions(recall_target=0.99, recall_floor=0.95).floor == 0.95


def test_a_floor_above_the_target_is_refused() -> None:
    """A configuration whose builds would aim below what is adopted stops the start, naming both keys."""
    with pytest.raises(
        InvalidInput, match=r"index\.recall_floor: expected at most index\.recall_target"
    ) as caught:
        load_config(None, {"NEARLINE_INDEX_RECALL_TARGET": "0.85"})
    assert caught.value.param == "index.recall_floor"
    config = load_config(None, {"NEARLINE_INDEX_RECALL_TARGET": "0.85", "NEARLINE_INDEX_RECALL_FLOOR": "0.8"})
    assert options_of(config).floor == 0.8


@pytest.mark.slow
def test_a_refused_job_says_so_and_the_next_rebuild_waits(
    tmp_path: Path, filled: Path, builders: Builders
) -> None:
    """Status "refused" with the reason; automatic rebuilds pause as after a failure; one by hand is taken."""
    options = IndexOptions(delta_passages_max=64, segments_max=1)
    collection = Collection(shutil.copytree(filled / "c", tmp_path / "c"), options)
    collection.settle()

    async def story() -> None:
        finished: list[JobBody] = []
        tasks = Tasks(finished.append)

        async def ended(job: JobBody) -> JobBody:
            while job.status in ("queued", "running"):  # noqa: ASYNC110 - as a client would: jobs are polled
                await asyncio.sleep(0.02)
            return job

        builders.poor()
        tasks.reindex_if_due("c", collection)
        job = await ended(tasks.all()[0])
        assert job.status == "refused"
        assert "below the floor of 0.9" in (job.error or "")
        tasks.reindex_if_due("c", collection)
        assert len(tasks.all()) == 1
        builders.good()
        assert (await ended(tasks.reindex("c", collection))).status == "succeeded"
        assert finished == list(reversed(tasks.all()))
        await tasks.close()

    asyncio.run(story())
    assert collection.snapshot.generation == 2
    collection.close()


@pytest.mark.slow
def test_a_target_that_no_settings_reach_changes_nothing(
    tmp_path: Path, filled: Path, builders: Builders
) -> None:
    """A tuning ends refused, says how far it came and keeps what it measured; the settings are as before."""
    collection = Collection(shutil.copytree(filled / "c", tmp_path / "c"), LOOSE)
    builders.poor()
    rebuild(collection)
    before = collection.info()

    async def story() -> JobBody:
        tasks = Tasks(lambda job: None)
        job = tasks.tune("c", collection, 0.95)
        while job.status in ("queued", "running"):  # noqa: ASYNC110 - jobs are polled
            await asyncio.sleep(0.02)
        await tasks.close()
        return job

    job = asyncio.run(story())
    assert job.status == "refused"
    assert "no settings reach a recall of 0.95" in (job.error or "")
    assert (job.result["met"], job.result["applied"]) == (False, False)
    assert job.result["tuning"]["recall"] < 0.95
    after = collection.info()
    assert (after.search, after.recall_target) == (before.search, before.recall_target)
    assert not (collection.folder / "search.json").exists()
    collection.close()


@pytest.mark.slow
@pytest.mark.model
def test_a_real_service_refuses_and_goes_on(tmp_path: Path, model_folder: Path, builders: Builders) -> None:
    """Over HTTP: a good rebuild is adopted, a bad one refused and counted, searches answer from the old one."""
    rng = np.random.default_rng(3)
    vectors = rng.standard_normal((1000, 384)).round(3).tolist()
    documents = [{"id": f"d{at}", "text": f"text {at}", "vector": one} for at, one in enumerate(vectors)]
    environ = {"NEARLINE_MODELS_FOLDER": str(model_folder.parent), "PYTHONPATH": builders.path}
    with serving(tmp_path / "data", environ) as server:
        http = Http(server.url)
        name = http.new_collection(hot_capacity=200)
        for at in range(0, len(documents), 500):
            http.write(name, *documents[at : at + 500])
        assert http.reindex(name)["status"] == "succeeded"
        builders.poor()
        job = http.reindex(name)
        assert job["status"] == "refused"
        assert "recall@10 cold" in job["error"]
        assert http.search(name, query="text 7", k=3)["receipt"]["generation"] == 1
        assert http.ok("GET", f"/v1/collections/{name}")["generations"] == [1]
        counted = http.ok("GET", "/metrics")
        assert f'nearline_generations_refused_total{{collection="{name}"}} 1.0' in counted
        assert 'nearline_jobs_total{kind="reindex",status="refused"} 1.0' in counted
        builders.good()
        assert http.reindex(name)["result"]["generation"] == 3
    log = (tmp_path / "data.server.log").read_text()
    assert f"reindex of {name} refused: generation 2 is not adopted" in log


def test_recall_with_a_filter_counts_where_a_search_does_not_scan_it_all(tmp_path: Path) -> None:
    """Of few cold passages, the filter of the measurement keeps no more than a search scans exactly."""
    with closing(Collection.create(tmp_path / "c", settings(hot_capacity=100), LOOSE)) as collection:
        fill(collection, WORLD, range(300))
        manifest = rebuild(collection).manifest
    low = msgspec.structs.replace(manifest, recall={"all": 1.0, FILTERED: 0.5}, evidence=None)
    assert msgspec.structs.replace(low, cold=SCANNED).below(0.9) is None
    assert FILTERED in str(msgspec.structs.replace(low, cold=SCANNED + 1).below(0.9))
    poor = msgspec.structs.replace(low, cold=SCANNED, recall={"all": 0.5, FILTERED: 1.0})
    assert "all" in str(poor.below(0.9))

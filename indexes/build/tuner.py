"""Runs `tuning` in a child process, and turns its outcome into settings. Blocking: for a thread of the service."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np

from indexes.build.chosen import Chosen
from indexes.build.rebuild import child_environment
from indexes.build.tuning import Tuned, TuneRequest, check_number
from indexes.collection import Collection
from indexes.errors import Conflict, InvalidInput, NotReady, StorageError
from indexes.model import Floats

Progress = Callable[[str, int, int], None]


class Tuner:
    """One tuning under way. `run` waits for it; `cancel`, from any thread, ends the child."""

    def __init__(self, collection: Collection, recall_target: float, queries: Floats | None) -> None:
        """`queries` float32 unit vectors [n, dimensions]; None lets queries be made of stored vectors.

        Raises Conflict if there is no generation, InvalidInput for a target below the recall floor or too few queries.
        """
        check_target(collection, recall_target)
        if queries is not None:
            check_number(len(queries))
        self._collection = collection
        self._target = recall_target
        self._queries = queries
        self._child: subprocess.Popen[str] | None = None
        self._cancelled = threading.Event()

    def run(self, progress: Progress) -> Tuned:
        """Raises StorageError with the child's own last words. The live generation is searched as before."""
        with tempfile.TemporaryDirectory(prefix="nearline-tune-") as folder:
            path = Path(folder) / "queries.npy"
            if self._queries is not None:
                np.save(path, self._queries)
            request = TuneRequest(
                collection=str(self._collection.folder),
                number=self._collection.snapshot.generation,
                queries=str(path) if self._queries is not None else "",
                recall_target=self._target,
                recall_floor=self._collection.tuning.floor,
            )
            return self._run(request, progress)

    def _run(self, request: TuneRequest, progress: Progress) -> Tuned:
        if self._cancelled.is_set():
            raise NotReady("tuning was cancelled")
        command = [sys.executable, "-m", "indexes.build.tuning", msgspec.json.encode(request).decode()]
        with tempfile.TemporaryFile("w+") as errors:
            child = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True, env=child_environment()
            )
            self._child = child
            if self._cancelled.is_set():  # while the child was being started
                child.kill()
            timer = threading.Timer(self._collection.tuning.build_timeout_s, child.kill)
            timer.start()
            try:
                last = follow(child, progress)
                status = child.wait()
            finally:
                timer.cancel()
                child.kill()
                child.wait()
            if self._cancelled.is_set():
                raise NotReady("tuning was cancelled")
            if status != 0 or "tuned" not in last:
                errors.seek(0)
                said = errors.read().strip().splitlines()[-1:]
                reason = last.get("error") or (said[0] if said else f"exit status {status}")
                raise StorageError(f"tuning of generation {request.number} failed: {reason}")
        return msgspec.convert(last["tuned"], Tuned)

    def cancel(self) -> None:
        self._cancelled.set()
        if self._child is not None:
            self._child.kill()


def check_target(collection: Collection, recall_target: float) -> None:
    """Raises Conflict if there is no generation to tune, InvalidInput for a target below the recall floor."""
    if not collection.snapshot.generation:
        raise Conflict("there is no generation to tune; nearline reindex builds one", param="collection")
    floor = collection.tuning.floor
    if recall_target < floor:
        raise InvalidInput(
            f"recall_target must be at least the recall floor, {floor:g}, found {recall_target:g}",
            param="recall_target",
        )


def follow(child: subprocess.Popen[str], progress: Progress) -> dict[str, object]:
    """What the child said last, once it has said everything."""
    last: dict[str, object] = {}
    for line in child.stdout or ():
        try:
            last = json.loads(line)
        except json.JSONDecodeError:
            continue  # a library's own chatter
        if "stage" in last:
            progress(str(last["stage"]), int(str(last["done"])), int(str(last["total"])))
    return last


def chosen_from(tuned: Tuned) -> Chosen:
    """The outcome as settings for `Collection.set_search`."""
    recall = {"overall": tuned.validation.recall, **tuned.validation.tiers}
    if tuned.filtered:
        recall["cold_filtered"] = tuned.filtered["validation"]
    return Chosen(
        recall_target=tuned.recall_target,
        generation=tuned.generation,
        seal=tuned.seal,
        ef=tuned.ef,
        search=tuned.search,
        recall=recall,
        queries=tuned.tuning.queries + tuned.validation.queries,
        chosen_ms=time.time_ns() // 1_000_000,
    )

"""Runs `tuning` in a child process, and turns its outcome into settings. Blocking: for a thread of the service."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np

from indexes.build.chosen import Chosen
from indexes.build.tuning import Tuned, TuneRequest, check_number
from indexes.child import Child
from indexes.collection import Collection
from indexes.errors import Conflict, InvalidInput
from indexes.model import Floats, Progress


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
        what = f"tuning of generation {collection.snapshot.generation}"
        timeout_s = collection.tuning.build_timeout_s
        self._child = Child("indexes.build.tuning", Tuned, what=what, timeout_s=timeout_s)

    def run(self, progress: Progress) -> Tuned:
        """Raises as `Child.run` does. The live generation is searched as before."""
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
            return self._child.run(request, progress)

    def cancel(self) -> None:
        self._child.cancel()


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


def why_unmet(tuned: Tuned) -> str:
    """For whoever wanted a recall that no settings reach."""
    return (
        f"no settings reach a recall of {tuned.recall_target:g} on {tuned.tuning.queries} queries; "
        f"the best found {tuned.tuning.recall:.4f}; nothing was changed"
    )


def chosen_from(tuned: Tuned) -> Chosen:
    """The outcome as settings for `Collection.set_search`."""
    recall = dict(tuned.validation.tiers)
    if tuned.filtered:
        recall["cold_filtered"] = tuned.filtered["validation"]
    return Chosen(
        recall_target=tuned.recall_target,
        generation=tuned.generation,
        seal=tuned.seal,
        ef=tuned.ef,
        search=tuned.search,
        recall=recall,
        chosen_ms=time.time_ns() // 1_000_000,
    )

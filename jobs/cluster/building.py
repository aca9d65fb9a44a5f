"""Rebuilds of shards on whatever machine has room: a task of Ray for each. Needs the extra `cluster`.

A task builds from the store of a node and leaves the result there, as `nearline reindex --on-this-machine` does, so
that the service of the node only loads it. A machine takes one at a time. One whose machine is lost begins again
elsewhere.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import ray
from ray.exceptions import RayError

from indexes.base.errors import Unavailable
from indexes.store.objects import first_line
from jobs.cluster.machine import BUILDS, FOLDER, read_machine
from jobs.cluster.moving import ShardBuild
from jobs.cluster.services import without_ray

NICE = 10  # services on the machine come first


class BuildOutcome(msgspec.Struct, frozen=True):
    """What the command said as JSON, or why it failed, and the machine that it ran on."""

    machine: str
    result: dict[str, Any] | None
    error: str = ""


def build(collection: str, store: str) -> bytes:
    """Build a collection of a store on this machine, which Ray has chosen."""
    machine = read_machine(Path(os.environ[FOLDER]))
    assert machine is not None
    os.setpriority(os.PRIO_PROCESS, 0, NICE)
    options = ["--config", machine.configuration] if machine.configuration else []
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "jobs.cli", "reindex", "--json", *options),
            *("--collection", collection, "--on-this-machine", store),
        ],
        env=without_ray(os.environ),
        capture_output=True,
        text=True,
        check=False,
    )
    result = json.loads(ended.stdout) if ended.stdout else None
    error = "" if ended.returncode == 0 else why_failed(ended, result or {})
    return msgspec.msgpack.encode(BuildOutcome(machine.name, result, error))


def why_failed(ended: subprocess.CompletedProcess[str], result: dict[str, Any]) -> str:
    said = ended.stderr.strip().splitlines()
    return str(result.get("refusal") or (said[-1] if said else f"it ended with {ended.returncode}"))


def build_all(builds: Sequence[ShardBuild]) -> Iterator[tuple[ShardBuild, BuildOutcome]]:
    """Build each on a machine, and yield the outcomes as they come. This process is connected to Ray; the builds end
    with it. Raises Unavailable."""
    task = ray.remote(build).options(num_cpus=0, resources={BUILDS: 1}, scheduling_strategy="SPREAD")
    waiting: dict[Any, ShardBuild] = {task.remote(one.collection, one.store): one for one in builds}
    while waiting:
        [ended, *_], _ = ray.wait(list(waiting))
        try:
            outcome = msgspec.msgpack.decode(ray.get(ended), type=BuildOutcome)
        except RayError as error:
            raise Unavailable(f"a build was lost: {first_line(error)}") from None
        yield waiting.pop(ended), outcome

"""Nodes of a cluster are cut from each other beside writes, searches and moving shards; clients reach all of them.

Each service is on a machine of its own (`tests/support/networks.py`), and nothing tells it of a cut: what is sent
vanishes. A long form runs NEARLINE_TORTURE_KILLS / 4 times (`make torture`).
"""

from __future__ import annotations

import itertools
import logging
import os
import random
import time
from pathlib import Path

import pytest

from tests.faults.test_cluster_kills import SERVICES, Cluster, at_work, pass_time
from tests.support.networks import network_of

logger = logging.getLogger(__name__)

CUTS_IN_CI = 3
CUT_S_MAX = 12.0


def cut_nodes(folder: Path, cuts: int, seed: int) -> None:
    draw = random.Random(seed)
    pairs = list(itertools.combinations(SERVICES, 2))
    draw.shuffle(pairs)
    with (
        network_of(SERVICES) as network,
        (cluster := Cluster(folder, network)).running(),
        at_work(cluster, draw, seed) as clients,
    ):
        for number, pair in zip(range(cuts), itertools.cycle(pairs)):
            pass_time(cluster, draw, number)
            before = sum(one.acknowledged for one in clients)
            network.cut(*pair)
            time.sleep(draw.uniform(0.5, CUT_S_MAX))
            done = sum(one.acknowledged for one in clients) - before
            network.heal(*pair)
            begun = time.monotonic()
            cluster.wait()
            whole_s = time.monotonic() - begun
            logger.warning(
                "%s was cut from %s: %d writes beside it, whole %.1f s after it", *pair, done, whole_s
            )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_nodes_are_cut_from_each_other(tmp_path: Path) -> None:
    """Nothing acknowledged is lost, nothing deleted is back, and no search misses what was written before it."""
    cut_nodes(tmp_path, CUTS_IN_CI, seed=2)


@pytest.mark.torture
@pytest.mark.timeout(7200)
def test_many_cuts(tmp_path: Path) -> None:
    cuts = int(os.environ.get("NEARLINE_TORTURE_KILLS", "200")) // 4
    cut_nodes(tmp_path, cuts, seed=cuts)

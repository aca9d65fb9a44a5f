"""Nodes of a cluster are cut from each other beside writes, searches and moving shards; clients reach all of them.

Each service is on a machine of its own (`tests/support/networks.py`), and nothing tells it of a cut: what is sent
vanishes. A long form runs NEARLINE_TORTURE_KILLS / 4 times (`make torture`).
"""

from __future__ import annotations

import itertools
import logging
import os
import random
import threading
import time
from pathlib import Path

import pytest

from tests.faults.test_cluster_kills import CLIENTS, SERVICES, Client, Cluster, check, move
from tests.support.networks import network_of

logger = logging.getLogger(__name__)

CUTS_IN_CI = 3
CUT_S_MAX = 12.0


def cut_nodes(folder: Path, cuts: int, seed: int) -> None:
    draw, stop = random.Random(seed), threading.Event()
    pairs = list(itertools.combinations(SERVICES, 2))
    draw.shuffle(pairs)
    with network_of(SERVICES) as network, (cluster := Cluster(folder, network)).running():
        clients = [Client(cluster, number, random.Random(seed + 1 + number)) for number in range(CLIENTS)]
        cluster.at("a").ok("POST", "/v1/collections", {"name": "docs", "shards": 5, "dimensions": 4})
        threads = [threading.Thread(target=one.run, args=(stop,)) for one in clients]
        for one in threads:
            one.start()
        try:
            for number, pair in zip(range(cuts), itertools.cycle(pairs)):
                time.sleep(draw.uniform(0.0, 1.5))
                if number % 2:
                    move(cluster, draw)
                    time.sleep(draw.uniform(0.0, 0.3))
                before = sum(one.acknowledged for one in clients)
                network.cut(*pair)
                time.sleep(draw.uniform(0.5, CUT_S_MAX))
                done = sum(one.acknowledged for one in clients) - before
                network.heal(*pair)
                begun = time.monotonic()
                cluster.wait()
                logger.warning(
                    "%s was cut from %s: %d writes beside it, whole %.1f s after it",
                    *pair,
                    done,
                    time.monotonic() - begun,
                )
        finally:
            stop.set()
            for one in threads:
                one.join()
        assert not [wrong for one in clients for wrong in one.wrong]
        check(cluster, clients, draw)


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

"""Nodes of a cluster are killed beside writes, searches and moving shards, and start again.

Node `a` has a replica, which follows it through a store; `b` and `c` have one service each. A long form runs
NEARLINE_TORTURE_KILLS times (`make torture`).
"""

from __future__ import annotations

import http.client
import json
import logging
import os
import random
import threading
import time
import urllib.error
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from jobs.serving.process import ServerProcess
from tests.support.http import Http, Reply
from tests.support.networks import Network
from tests.support.redis_server import free_port

logger = logging.getLogger(__name__)

KILLS_IN_CI = 4
CLIENTS = 3
IDS = 40  # of each client
UP_S = 120.0  # until everything answers again on a machine with much else to do
NODES = {"a": ["a", "copy"], "b": ["b"], "c": ["c"]}
SERVICES = [one for services in NODES.values() for one in services]
AWAY = (OSError, http.client.HTTPException)


class Cluster:
    """Its services are on this machine, or on those of a network."""

    def __init__(self, folder: Path, network: Network | None = None) -> None:
        self.folder, self.network = folder, network
        self.services: dict[str, ServerProcess] = {}
        hosts = network.hosts if network else dict.fromkeys(SERVICES, "127.0.0.1")
        self.ports = {name: free_port() for name in SERVICES}
        self.urls = {name: f"http://{hosts[name]}:{self.ports[name]}" for name in SERVICES}
        nodes = {name: [self.urls[one] for one in services] for name, services in NODES.items()}
        self.environ = {
            "NEARLINE_CLUSTER_NODES": json.dumps(nodes),
            "NEARLINE_SERVER_INSECURE": json.dumps(network is not None),
            "NEARLINE_SERVER_SEARCH_PROCESSES": "0",
            "NEARLINE_INDEX_SEGMENTS_MAX": "2",
        }

    def start(self, name: str) -> None:
        store = {
            "NEARLINE_STORE_URL": (self.folder / "store").as_uri(),
            "NEARLINE_STORE_ACKNOWLEDGE": "bucket",  # so that the replica can have all that was acknowledged
        }
        replica = {"NEARLINE_STORE_REPLICA": "true"} if name == "copy" else {}
        self.services[name] = ServerProcess(
            self.folder / name,
            {**self.environ, **(store if name in NODES["a"] else {}), **replica, **self._host_of(name)},
            port=self.ports[name],
            run_by=self.network.command_at(name) if self.network else (),
        )

    def _host_of(self, name: str) -> dict[str, str]:
        return {"NEARLINE_SERVER_HOST": self.network.hosts[name]} if self.network else {}

    def kill(self, name: str) -> None:
        self.services.pop(name).kill()

    def at(self, name: str) -> Http:
        return Http(self.urls[name])

    def ask(self, draw: random.Random, method: str, path: str, body: object = None) -> Reply:
        """Ask any service that is ready, as behind a load balancer."""
        while True:
            name = draw.choice(["a", "b", "c"])  # a replica takes no writes
            try:
                reply = self.at(name).call(method, path, body)
                if reply.status != 503 or "is starting" not in reply.body["error"]["message"]:
                    return reply
            except urllib.error.URLError as error:
                if not isinstance(error.reason, ConnectionRefusedError):
                    raise
                time.sleep(0.02)

    def wait(self) -> None:
        """Wait until every service sees all others."""
        late = time.monotonic() + UP_S
        while time.monotonic() < late:
            if all(self._sees_all(name) for name in SERVICES):
                return
            time.sleep(0.1)
        raise AssertionError(f"not all are up within {UP_S} s")

    def _sees_all(self, name: str) -> bool:
        try:
            return all(one["up"] for one in self.at(name).ok("GET", "/v1/cluster")["services"])
        except (*AWAY, AssertionError):
            return False

    @contextmanager
    def running(self) -> Iterator[None]:
        try:
            for name in SERVICES:
                self.start(name)
            self.wait()
            yield
        finally:
            for one in self.services.values():
                one.stop()


@dataclass
class Client:
    """Writes, replaces and deletes its own documents, and looks for each after it was acknowledged.

    `possible` are the texts that a document may have: one once an answer came, None for none. `refused` are the times
    at which a search had no answer.
    """

    cluster: Cluster
    number: int
    draw: random.Random
    possible: dict[str, set[str | None]] = field(default_factory=dict)
    acknowledged: int = 0
    searched: int = 0
    refused: list[float] = field(default_factory=list)
    wrong: list[Any] = field(default_factory=list)

    def run(self, stop: threading.Event) -> None:
        step = 0
        while not stop.is_set():
            step += 1
            document = f"c{self.number}-{self.draw.randrange(IDS)}"
            text = None if self.draw.random() < 0.2 else f"t{self.number}x{step} is the text of a garden"
            before = self.possible.setdefault(document, {None})
            self.possible[document] = before | {text}
            if (seq := self.write(document, text)) is not None:
                self.possible[document] = {text}
                self.acknowledged += 1
                self.look(document, text, seq)

    def write(self, document: str, text: str | None) -> str | None:
        if text is None:
            body: dict[str, Any] = {"ids": [document]}
            path = "/v1/collections/docs/documents/delete"
        else:
            body = {"documents": [{"id": document, "text": text, "vector": [1.0, 0.0, 0.0, 0.0]}]}
            path = "/v1/collections/docs/documents"
        try:
            reply = self.cluster.ask(self.draw, "POST", path, body)
        except AWAY:
            return None
        if reply.status != 200:
            if reply.status != 503:
                self.wrong.append(reply)
            return None
        seq: str = reply.body["seq"]
        return seq

    def look(self, document: str, text: str | None, seq: str) -> None:
        query = "garden" if text is None else text.split()[0]
        body = {"query": query, "mode": "lexical", "k": 1000, "min_seq": seq, "deadline_ms": 30_000}
        try:
            reply = self.cluster.ask(self.draw, "POST", "/v1/collections/docs/search", body)
        except AWAY:
            return  # the service that was asked was killed
        if reply.status == 200:
            self.searched += 1
            found = {hit["document_id"]: hit["text"] for hit in reply.body["hits"]}
            if found.get(document) != text:
                self.wrong.append((document, text, found.get(document)))
        elif reply.status == 503:
            self.refused.append(time.monotonic())
        else:
            self.wrong.append(reply)


@contextmanager
def at_work(cluster: Cluster, draw: random.Random, seed: int) -> Iterator[list[Client]]:
    """Clients that write and search for the duration of a with-block, and are right in the end."""
    clients = [Client(cluster, number, random.Random(seed + 1 + number)) for number in range(CLIENTS)]
    cluster.at("a").ok("POST", "/v1/collections", {"name": "docs", "shards": 5, "dimensions": 4})
    stop = threading.Event()
    threads = [threading.Thread(target=one.run, args=(stop,)) for one in clients]
    for one in threads:
        one.start()
    try:
        yield clients
    finally:
        stop.set()
        for one in threads:
            one.join()
    assert not [wrong for one in clients for wrong in one.wrong]
    check(cluster, clients, draw)


def kill_nodes(folder: Path, kills: int, seed: int) -> None:
    draw, cluster = random.Random(seed), Cluster(folder)
    with cluster.running(), at_work(cluster, draw, seed) as clients:
        for kill in range(kills):
            pass_time(cluster, draw, kill)
            name = SERVICES[kill % len(SERVICES)]
            begun = time.monotonic()
            cluster.kill(name)
            cluster.start(name)
            cluster.wait()
            refused = [at for one in clients for at in one.refused if at >= begun]
            away_s = max(refused) - min(refused) if refused else 0.0
            logger.warning("%s was killed: searches were refused for %.1f s", name, away_s)
            if name in NODES["a"]:  # the other one answers
                assert not refused


def pass_time(cluster: Cluster, draw: random.Random, fault: int) -> None:
    """Wait for a while before the next fault; every other time a shard begins to move."""
    time.sleep(draw.uniform(0.0, 1.5))
    if fault % 2:
        move(cluster, draw)
        time.sleep(draw.uniform(0.0, 0.3))


def move(cluster: Cluster, draw: random.Random) -> None:
    """Begin to move a shard. It may be where it shall go, or another move may be under way."""
    wanted = {"shard": f"docs~{draw.randrange(5)}of5", "to": draw.choice(list(NODES))}
    assert cluster.ask(draw, "POST", "/v1/cluster/moves", wanted).status in (202, 409, 503)


def check(cluster: Cluster, clients: list[Client], draw: random.Random) -> None:
    """Every shard has one writer in the end, and every document is as it was acknowledged."""
    late = time.monotonic() + UP_S
    while True:
        services = cluster.at("c").ok("GET", "/v1/cluster")["services"]
        writers = [name for one in services if one["writes"] for name in one["shards"]]
        if sorted(writers) == [f"docs~{number}of5" for number in range(5)] or time.monotonic() > late:
            break
        time.sleep(0.1)
    assert sorted(writers) == [f"docs~{number}of5" for number in range(5)], services
    assert sum(one.acknowledged for one in clients) > 0
    assert sum(one.searched for one in clients) > 0
    for client in clients:
        for document, possible in client.possible.items():
            reply = cluster.ask(draw, "GET", f"/v1/collections/docs/documents/{document}")
            assert reply.status in (200, 404), reply
            assert (reply.body["text"] if reply.status == 200 else None) in possible, document


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_nodes_die_under_load(tmp_path: Path) -> None:
    """Nothing acknowledged is lost, nothing deleted is back, and no search misses what was written before it."""
    kill_nodes(tmp_path, KILLS_IN_CI, seed=1)


@pytest.mark.torture
@pytest.mark.timeout(7200)
def test_many_nodes_die(tmp_path: Path) -> None:
    kills = int(os.environ.get("NEARLINE_TORTURE_KILLS", "200"))
    kill_nodes(tmp_path, kills, seed=kills)

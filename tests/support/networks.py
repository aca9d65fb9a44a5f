"""Machines with networks of their own, which can be cut from each other: network namespaces on one bridge."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

ABSENT = "02:00:00:00:ff:ff"  # no machine has it: what is sent there vanishes, as in a network that is cut


class Network:
    """`hosts` are the addresses of the machines, by name. This process reaches all of them, all the time."""

    def __init__(self, names: Sequence[str]) -> None:
        self._id = f"nl{os.getpid()}"
        self._subnet = f"198.18.{os.getpid() % 250}"  # set apart for such tests
        self.hosts = {name: f"{self._subnet}.{number}" for number, name in enumerate(names, 2)}

    def command_at(self, name: str) -> list[str]:
        """What a command begins with that runs on a machine."""
        return ["ip", "netns", "exec", self._name_of(name)]

    def cut(self, one: str, other: str) -> None:
        """Let nothing pass between two machines, in either direction; neither is told."""
        for at, to in ((one, other), (other, one)):
            self._ip_at(at, f"neigh replace {self.hosts[to]} lladdr {ABSENT} dev eth0 nud permanent")

    def heal(self, one: str, other: str) -> None:
        for at, to in ((one, other), (other, one)):
            self._ip_at(at, f"neigh del {self.hosts[to]} dev eth0")

    def _name_of(self, name: str) -> str:
        return f"{self._id}-{name}"

    def _ip_at(self, name: str, line: str) -> None:
        ip(f"-n {self._name_of(name)} {line}")

    def _build(self) -> None:
        ip(f"link add {self._id} type bridge")
        ip(f"addr add {self._subnet}.1/24 dev {self._id}")
        ip(f"link set {self._id} up")
        for number, (name, host) in enumerate(self.hosts.items()):
            ip(f"netns add {self._name_of(name)}")
            ip(f"link add {self._id}v{number} type veth peer name eth0 netns {self._name_of(name)}")
            ip(f"link set {self._id}v{number} master {self._id} up")
            self._ip_at(name, f"addr add {host}/24 dev eth0")
            self._ip_at(name, "link set eth0 up")
            self._ip_at(name, "link set lo up")

    def _remove(self) -> None:
        for name in self.hosts:
            subprocess.run(["ip", "netns", "del", self._name_of(name)], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", self._id], capture_output=True, check=False)


def ip(line: str) -> None:
    subprocess.run(["ip", *line.split()], check=True, capture_output=True)


@contextmanager
def network_of(names: Sequence[str]) -> Iterator[Network]:
    """Skips the test where namespaces cannot be made."""
    made = Network(names)
    try:
        if shutil.which("ip") is None:
            pytest.skip("there is no ip command")
        try:
            made._build()
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces cannot be made here: {error.stderr.decode().strip()}")
        yield made
    finally:
        made._remove()

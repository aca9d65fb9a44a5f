"""Object stores for tests: one in memory that can fail in every way a network can, with the lock that moto lacks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

from indexes.base.errors import NotFound, Unavailable

Fault = Literal["", "before", "after"]  # the call fails, and the object was not created, or it was


@dataclass
class MemoryObjects:
    """`fault` is asked before each call, with the operation and the name; `calls` counts them."""

    held: dict[str, bytes] = field(default_factory=dict)
    fault: Callable[[str, str], Fault] = lambda operation, name: ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def _call(self, operation: str, name: str) -> Fault:
        self.calls.append((operation, name))
        fault = self.fault(operation, name)
        if fault == "before":
            raise Unavailable("the store is away")
        return fault

    def create(self, name: str, content: bytes) -> bool:
        fault = self._call("create", name)
        with self.lock:
            created = name not in self.held
            if created:
                self.held[name] = content
        if fault:
            raise Unavailable("the answer was lost")
        return created

    def exists(self, name: str) -> bool:
        self._call("exists", name)
        return name in self.held

    def read(self, name: str) -> bytes:
        self._call("read", name)
        try:
            return self.held[name]
        except KeyError:
            raise NotFound(f"the store has no {name}") from None

    def names(self, folder: str, after: str = "") -> list[str]:
        self._call("names", folder)
        found = (name[len(folder) + 1 :] for name in list(self.held) if name.startswith(f"{folder}/"))
        return sorted(one for one in found if "/" not in one and one > after)

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            self._call("remove", name)
            self.held.pop(name, None)

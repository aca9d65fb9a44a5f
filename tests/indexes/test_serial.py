"""Threads that end when there is nothing to do."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path

import pytest

from indexes.base.errors import Unavailable
from indexes.base.model import IndexOptions
from indexes.base.serial import SerialWork
from indexes.directory.catalog import Catalog
from tests.support.vectors import World, fill, settings


def wait_for_threads(most: int) -> None:
    until = time.monotonic() + 10
    while threading.active_count() > most:
        assert time.monotonic() < until, threading.enumerate()
        time.sleep(0.01)


def test_work_is_done_in_order_and_the_thread_ends() -> None:
    before, begun = threading.active_count(), []
    work = SerialWork("work", lambda: begun.append(threading.get_ident()))
    found: list[int] = []
    for round_ in range(3):
        done = [work.submit(lambda one=one: found.append(one)) for one in range(100)]  # type: ignore[misc]
        failing = work.submit(lambda: 1 // 0)
        assert isinstance(failing.exception(10), ZeroDivisionError)
        assert all(one.done() for one in done)
        wait_for_threads(before)
        assert found == [*range(100)] * (round_ + 1)
    assert 3 <= len(begun) <= 303
    work.close()


def test_closing_drops_what_waits() -> None:
    work, go_on, begun = SerialWork("work"), threading.Event(), threading.Event()

    def long() -> str:
        begun.set()
        go_on.wait(10)
        return "whole"

    first, second = work.submit(long), work.submit(long)
    begun.wait(10)
    work.stop()
    assert second.cancelled()
    with pytest.raises(RuntimeError):
        work.submit(long)
    go_on.set()
    work.close()
    assert first.result(0) == "whole"


def test_no_more_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says which limit it is, and the next call tries again."""

    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    work = SerialWork("work")
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fail)
        with pytest.raises(Unavailable, match="TasksMax"):
            work.submit(lambda: 1)
    assert work.submit(lambda: 1).result(10) == 1
    work.close()


def test_collections_at_rest_have_no_threads(tmp_path: Path) -> None:
    """Whether they were just opened, or written, sealed and searched."""
    before, options = threading.active_count(), IndexOptions(delta_passages_max=32, segments_max=0)
    with contextlib.closing(Catalog(tmp_path / "data", options)) as catalog:
        for number in range(20):
            fill(catalog.create(f"c{number}", settings()), World(), range(100), batch=20)
            catalog.get(f"c{number}").settle()
        wait_for_threads(before)
    saved = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("hits.msgpack")}
    with contextlib.closing(Catalog(tmp_path / "data", options)):
        wait_for_threads(before)
    assert saved == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("hits.msgpack")}

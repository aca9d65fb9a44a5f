"""Writers give way to searches, and only for so long."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from indexes.courtesy import give_way, searching

LONG_S = 60.0


class Search:
    """A search on a thread of its own that goes on until it is told to end."""

    def __init__(self) -> None:
        self._begun, self._end = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._search, daemon=True)
        self._thread.start()
        assert self._begun.wait(LONG_S)

    @searching
    def _search(self) -> None:
        self._begun.set()
        self._end.wait(LONG_S)

    def end(self) -> None:
        self._end.set()
        self._thread.join()


@pytest.fixture
def search() -> Iterator[Search]:
    search = Search()
    yield search
    search.end()


def gives_way() -> threading.Thread:
    """A writer that waits as long as it must."""
    writer = threading.Thread(target=give_way, args=(LONG_S,), daemon=True)
    writer.start()
    return writer


def test_a_writer_waits_for_the_search_to_end(search: Search) -> None:
    """It goes on when the search has ended, not before."""
    writer = gives_way()
    writer.join(0.05)
    assert writer.is_alive()
    search.end()
    writer.join(LONG_S / 2)
    assert not writer.is_alive()


def test_a_writer_waits_for_all_searches(search: Search) -> None:
    """One of two that ends is not enough."""
    other = Search()
    writer = gives_way()
    other.end()
    writer.join(0.05)
    assert writer.is_alive()
    search.end()
    writer.join(LONG_S / 2)
    assert not writer.is_alive()


def test_a_search_without_end_does_not_stop_a_writer(search: Search) -> None:
    """Each step waits for a bounded time."""
    for _ in range(5):
        give_way(0.001)


def test_a_search_that_fails_is_over() -> None:
    """Nobody waits for it, and the error reaches whoever searched."""

    @searching
    def fail() -> None:
        raise ValueError("no such thing")

    with pytest.raises(ValueError, match="no such thing"):
        fail()
    writer = gives_way()
    writer.join(LONG_S / 2)
    assert not writer.is_alive()

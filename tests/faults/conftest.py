"""For all fault tests: one thread for faiss, as in the service. Its idle ones spin, and children need the cores.
Services search in two processes."""

from __future__ import annotations

from collections.abc import Iterator

import faiss
import pytest

from tests.support.processes import with_search_processes


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    faiss.omp_set_num_threads(1)


@pytest.fixture(scope="module", autouse=True)
def search_processes() -> Iterator[None]:
    with with_search_processes():
        yield

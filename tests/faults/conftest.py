"""For all fault tests: one thread for faiss, as in the service. Its idle ones spin, and children need the cores."""

from __future__ import annotations

import faiss
import pytest


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    faiss.omp_set_num_threads(1)

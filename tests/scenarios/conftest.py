"""For all scenarios: services search in two processes, unless a test asks for another number."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.processes import with_search_processes


@pytest.fixture(scope="module", autouse=True)
def search_processes() -> Iterator[None]:
    with with_search_processes():
        yield

"""How many search processes the services of tests have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

NAME = "NEARLINE_SERVER_SEARCH_PROCESSES"


@contextmanager
def with_search_processes(count: int | None = 2) -> Iterator[None]:
    """Services that start within this block have as many search processes, or as many as by default."""
    with pytest.MonkeyPatch.context() as patch:
        if count is None:
            patch.delenv(NAME)
        else:
            patch.setenv(NAME, str(count))
        yield

"""nearline explain, as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jobs.serving.process import ServerProcess
from tests.support.commands import nearline
from tests.support.http import Http

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.model


def test_a_page_that_says_why(service: ServerProcess, http: Http) -> None:
    """The cause in words, the change with its rank, what each passage has; `--json` prints the answer itself."""
    name = http.new_collection()
    http.write(
        name,
        {"id": "soup", "text": "Lemongrass goes into the soup.", "metadata": {"lang": "en"}},
        {"id": "tea", "text": "Mint goes into the tea.", "metadata": {"lang": "de"}},
    )
    asked = ("explain", "--url", service.url, "-c", name, "what goes into the soup?", "--document", "soup")
    found = nearline(*asked)
    assert found.returncode == 0, found.stderr
    assert found.stdout.startswith("found at rank 1\n")
    assert "soup" in found.stdout.splitlines()[1]

    german = ("--filter", '{"type": "eq", "key": "lang", "value": "de"}')
    missed = nearline(*asked, *german)
    assert missed.stdout.startswith("not found: filtered\n")
    assert 'lang eq "de", the document has "en"' in missed.stdout
    assert 'change {"filter":null}: rank 1, verified' in missed.stdout

    answer = json.loads(nearline(*asked, "-k", "1", "--options", '{"min_score": 3}', "--json").stdout)
    assert answer["cause"]["kind"] == "below_floor"
    assert answer["change"]["verified_rank"] == 1

    refused = nearline(*asked, "--options", "[]")
    assert refused.returncode == 2
    assert "--options" in refused.stderr
    for own in ("query", "k", "document_id", "filter"):
        refused = nearline(*asked, "--options", json.dumps({own: "x"}))
        assert (refused.returncode, f"'{own}' has an argument" in refused.stderr) == (2, True)

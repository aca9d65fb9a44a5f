"""What the documents show is run against a real service: every curl command, and the code in docs/integrations.md."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from jobs.commands.mcp import command as mcp_command
from jobs.serving.process import ServerProcess, serving

ROOT = Path(__file__).parent.parent
# In the order of a first use: the guide makes the collection `docs`.
PAGES = [ROOT / "README.md", ROOT / "docs" / "guide.md"]
PAGES += sorted(set((ROOT / "docs").glob("*.md")) - set(PAGES))
INTEGRATIONS = (ROOT / "docs" / "integrations.md").read_text()
BLOCK = re.compile(r"(?:^ {4}.*\n|(?<=\n)\n(?= {4}))+", re.MULTILINE)
PARAGRAPH = re.compile(r"(?:^ {4}.*\n)+", re.MULTILINE)
SHOWN_URL = "http://127.0.0.1:8080"
# Commands that a service needs more for than the documents above, by a part of them, with the reason.
NEED_MORE: dict[str, str] = {
    "docs/answer -d": "a language model",
    "docs/watch -d": "a client that leaves",
    "changes/assess -d": "a collection of past changes",
}


@pytest.fixture(scope="module")
def prepared(
    tmp_path_factory: pytest.TempPathFactory, rerank_environ: dict[str, str]
) -> Iterator[tuple[ServerProcess, Path]]:
    """A service with the collection `shop`, as the README makes it, and a folder with a file to upload."""
    folder = tmp_path_factory.mktemp("shown")
    (folder / "refunds.md").write_text("You get your money back within fourteen days.")
    table = re.search(r"<<END\n(.*?)^ +END", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    assert table
    (folder / "products.csv").write_text("".join(f"{line.strip()}\n" for line in table[1].splitlines()))
    with serving(folder / "data", rerank_environ) as server:
        words = "-c shop --create products.csv --id-field sku --text-field description"
        command = [sys.executable, "-m", "jobs.cli", "ingest", "--url", server.url, *words.split()]
        subprocess.run(command, cwd=folder, env=environ(), check=True, capture_output=True)
        yield server, folder


def environ(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), **more}


def blocks_of(page: str, pattern: re.Pattern[str] = BLOCK) -> list[str]:
    """Indented blocks of code, without their indentation; with PARAGRAPH an empty line ends one."""
    return [re.sub(r"^ {4}", "", found, flags=re.MULTILINE) for found in pattern.findall(page)]


def curls_of(page: str) -> Iterator[tuple[str, Any]]:
    """Each curl command, with the JSON in the next block if that shows some, else None."""
    blocks = [*blocks_of(page, PARAGRAPH), ""]
    for block, following in pairwise(blocks):
        lines = iter(block.splitlines())
        found = []
        for line in lines:
            if line.startswith("curl "):
                command = line
                while not is_whole(command):
                    command += "\n" + next(lines)
                found.append(command)
        for command in found:
            last = command == found[-1] and following.startswith(("{", "["))
            yield command, json.loads(without_dots(following)) if last else None


def is_whole(command: str) -> bool:
    """Whether all quotes are closed, and no line continues."""
    try:
        shlex.split(command)
    except ValueError:
        return False
    return not command.endswith("\\")


def without_dots(shown: str) -> str:
    """JSON in which `...` stands for what is left out."""
    return re.sub(r"\.\.\.(?=[}\]])", "", re.sub(r",\s*\.\.\.", "", shown))


def differences(shown: Any, actual: Any, place: str = "") -> list[str]:
    """Where what is shown is not in the answer: a field is missing, or of another type. A null may be anything."""
    if isinstance(shown, dict) and isinstance(actual, dict):
        return [
            fault
            for key, value in shown.items()
            for fault in (
                differences(value, actual[key], f"{place}.{key}") if key in actual else [f"no {place}.{key}"]
            )
        ]
    if isinstance(shown, list) and isinstance(actual, list):
        if len(shown) > len(actual):
            return [f"{len(actual)} of {len(shown)} in {place}"]
        return [fault for one, other in zip(shown, actual) for fault in differences(one, other, f"{place}[]")]
    numbers = isinstance(shown, int | float) and isinstance(actual, int | float)
    same = shown is None or actual is None or numbers or type(shown) is type(actual)
    return [] if same else [f"{place} is {actual!r}, shown is {shown!r}"]


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_every_curl_command_runs(prepared: tuple[ServerProcess, Path]) -> None:
    """Each is answered with 2xx, and has in its answer all that the document shows of it."""
    server, folder = prepared
    faults, ran, compared = [], 0, 0
    for page in PAGES:
        for command, shown in curls_of(page.read_text()):
            if any(part in command for part in NEED_MORE):
                continue
            line = command.replace(SHOWN_URL, server.url).replace("curl ", "curl -sS --fail-with-body ", 1)
            ended = subprocess.run(
                ["bash", "-c", line], cwd=folder, capture_output=True, text=True, check=False, timeout=60
            )
            ran += 1
            where = f"{page.name}: {command.splitlines()[0]}"
            if ended.returncode:
                faults.append(f"{where}: {ended.stdout} {ended.stderr}")
            elif shown is not None:
                compared += 1
                faults += [f"{where}: {fault}" for fault in differences(shown, json.loads(ended.stdout))]
    assert not faults, "\n".join(faults)
    assert (ran >= 10, compared >= 3) == (True, True)


def test_what_differs_is_noticed() -> None:
    """A missing field, another type and a hit too few each count; what dots leave out does not."""
    shown = json.loads(without_dots('{"a": [{"b": 1, ...}, {"c": "x", ...}], "d": null, "e": {...}, ...}'))
    assert differences(shown, {"a": [{"b": 0.5}, {"c": "y"}], "d": {}, "e": {"f": 1}, "g": 1}) == []
    assert len(differences(shown, {"a": [{"b": "1"}, {}], "d": 1})) == 3
    assert differences(shown, {"a": [], "d": 1, "e": {}}) == ["0 of 2 in .a"]


def snippet(*words: str) -> str:
    """The block of docs/integrations.md that has all these words."""
    (found,) = (block for block in blocks_of(INTEGRATIONS) if all(word in block for word in words))
    return found


def test_the_openai_snippet_runs(prepared: tuple[ServerProcess, Path]) -> None:
    """As it stands, but for the address."""
    server, folder = prepared
    code = snippet("from openai import OpenAI").replace(SHOWN_URL, server.url)
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True, timeout=120)


@pytest.mark.parametrize(
    ("module", "needs"),
    [("langchain", "langchain_core"), ("llamaindex", "llama_index"), ("haystack", "haystack")],
)
def test_the_snippets_for_frameworks_run(
    prepared: tuple[ServerProcess, Path], module: str, needs: str
) -> None:
    """As they stand, but for the address: what they show is in the collection that they make."""
    if find_spec(needs) is None:
        pytest.skip(f"{needs} is not installed; the extra frameworks has it")
    server, folder = prepared
    blocks = blocks_of(INTEGRATIONS)
    (code,) = (block for block in blocks if f"from nearline.{module} import" in block)
    subprocess.run(
        [sys.executable, "-c", code.replace(SHOWN_URL, server.url)],
        cwd=folder,
        env=environ(),
        check=True,
        timeout=120,
    )


@pytest.mark.parametrize(("key", "file"), [("mcpServers", "Claude Desktop"), ("servers", "VS Code")])
def test_the_configurations_for_assistants_are_right(key: str, file: str) -> None:
    """They are JSON, and their arguments are those of the command."""
    settings = json.loads(snippet(f'"{key}"'))[key]["nearline"]
    assert settings["args"][0] == "mcp", file
    context = mcp_command.make_context("mcp", settings["args"][1:])
    assert context.params["collections"] == ("docs",)


# --- LiteLLM ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def litellm() -> Path:
    """The Python that has LiteLLM: this one, or that of NEARLINE_TEST_LITELLM."""
    if python := os.environ.get("NEARLINE_TEST_LITELLM"):
        return Path(python)
    if find_spec("litellm") is None:
        pytest.skip("litellm is not installed (169 MB); NEARLINE_TEST_LITELLM names a Python that has it")
    return Path(sys.executable)


def test_the_litellm_snippet_runs(prepared: tuple[ServerProcess, Path], litellm: Path) -> None:
    """Embedding, reranking and the search of a vector store."""
    server, folder = prepared
    code = snippet("import litellm").replace(SHOWN_URL, server.url).replace("docs-reranker", "tiny")
    code = code.replace('vector_store_id="docs"', 'vector_store_id="shop"')
    for call in ("embedding", "rerank", "vector_stores.search"):
        assert f"litellm.{call}(" in code
    ended = subprocess.run(
        [litellm, "-c", code], cwd=folder, capture_output=True, text=True, check=False, timeout=240
    )
    assert ended.returncode == 0, ended.stderr


def test_the_litellm_proxy_runs(prepared: tuple[ServerProcess, Path], litellm: Path) -> None:
    """With the configuration shown it embeds and reranks."""
    server, folder = prepared
    config = snippet("model_list:").replace(SHOWN_URL, server.url).replace("docs-reranker", "tiny")
    (folder / "config.yaml").write_text(config)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [
        str(litellm.parent / "litellm"),
        "--config",
        "config.yaml",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as proxy:
        try:
            for _ in range(240):
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.5)
            vectors = posted(f"{url}/v1/embeddings", {"model": "minilm", "input": ["a", "b"]})
            assert [len(one["embedding"]) for one in vectors["data"]] == [384, 384]
            ranked = posted(f"{url}/rerank", {"model": "reranker", "query": "a", "documents": ["a", "b"]})
            assert {one["index"] for one in ranked["results"]} == {0, 1}
        finally:
            proxy.terminate()


def posted(url: str, body: object) -> Any:
    headers = {"Content-Type": "application/json", "Authorization": "Bearer sk-choose-your-own"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)

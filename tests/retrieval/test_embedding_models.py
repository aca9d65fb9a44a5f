"""Model folders: verified before use, found by name, told apart by fingerprint."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from indexes.base.errors import Damaged, InvalidInput, NotFound
from retrieval.embedding.models import (
    MANIFEST,
    MODEL,
    TOKENIZER,
    FileSeal,
    ModelManifest,
    find_models,
    fingerprint,
    load_model,
    read_manifest,
)


def manifest(**changes: object) -> ModelManifest:
    plain = ModelManifest(
        format_version=1,
        name="tiny",
        fingerprint="",
        dimensions=4,
        tokens_max=16,
        pooling="mean",
        normalise=True,
        query_prefix="",
        document_prefix="",
        quantisation="int8",
        files={MODEL: FileSeal("a", 1), TOKENIZER: FileSeal("b", 2)},
        known_answers=[],
        checks={},
        source="folder tiny",
        created_with={},
    )
    return msgspec.structs.replace(plain, **changes)


@pytest.fixture
def copied(model_folder: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "copied"
    shutil.copytree(model_folder, folder)
    return folder


@pytest.mark.model
def test_whole_model_loads(model_folder: Path) -> None:
    """An exported folder loads, and says what it is."""
    model = load_model(model_folder)
    assert (model.manifest.dimensions, model.manifest.tokens_max) == (384, 256)
    assert model.manifest.fingerprint == fingerprint(model.manifest)


@pytest.mark.model
@pytest.mark.parametrize("name", [MODEL, TOKENIZER])
def test_flipped_byte_is_refused(copied: Path, name: str) -> None:
    """One changed byte is Damaged, naming the file, what was expected and what was found."""
    content = bytearray((copied / name).read_bytes())
    content[len(content) // 2] ^= 1
    (copied / name).write_bytes(content)
    with pytest.raises(Damaged, match=r"SHA-256 [0-9a-f]{64}; expected [0-9a-f]{64}") as refusal:
        load_model(copied)
    assert name in refusal.value.message


@pytest.mark.model
def test_cut_file_is_refused(copied: Path) -> None:
    """A file cut short is Damaged, naming both sizes."""
    with (copied / MODEL).open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(Damaged, match="holds 1000 bytes; expected"):
        load_model(copied)


@pytest.mark.model
def test_edited_manifest_is_refused(copied: Path) -> None:
    """A manifest whose settings were edited no longer has the fingerprint it states."""
    edited = msgspec.structs.replace(read_manifest(copied), query_prefix="query: ")
    (copied / MANIFEST).write_bytes(msgspec.json.encode(edited))
    with pytest.raises(Damaged, match="fingerprint"):
        load_model(copied)


@pytest.mark.model
def test_missing_file_names_the_remedy(copied: Path) -> None:
    """A missing file, manifest or folder is NotFound with the command that creates it."""
    (copied / MODEL).unlink()
    with pytest.raises(NotFound, match="nearline export-model"):
        load_model(copied)
    with pytest.raises(NotFound, match="nearline export-model"):
        load_model(copied / "nowhere")


def test_other_formats_are_refused(tmp_path: Path) -> None:
    """A manifest of another format version is InvalidInput; one that is no JSON is Damaged."""
    (tmp_path / MANIFEST).write_text('{"format_version": 99}')
    with pytest.raises(InvalidInput, match="format 99"):
        load_model(tmp_path)
    (tmp_path / MANIFEST).write_text("{")
    with pytest.raises(Damaged, match="not a model manifest"):
        load_model(tmp_path)


def test_find_models(tmp_path: Path) -> None:
    """Models are found by the name of their folder; hidden folders, as of an export, and a missing root are none."""
    assert find_models(tmp_path / "nowhere") == {}
    for name in ("ready", ".ready.draft", ".ready.old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / MANIFEST).write_text("{}")
    (tmp_path / "empty").mkdir()
    assert find_models(tmp_path) == {"ready": tmp_path / "ready"}


@pytest.mark.parametrize(
    "changes",
    [
        {"files": {MODEL: FileSeal("other", 1), TOKENIZER: FileSeal("b", 2)}},
        {"files": {MODEL: FileSeal("a", 1), TOKENIZER: FileSeal("other", 2)}},
        {"quantisation": "fp32"},
        {"pooling": "cls"},
        {"normalise": False},
        {"query_prefix": "query: "},
        {"document_prefix": "passage: "},
        {"tokens_max": 17},
        {"dimensions": 5},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_fingerprint_sees(changes: dict[str, object]) -> None:
    """Whatever shapes a vector changes the fingerprint."""
    assert fingerprint(manifest(**changes)) != fingerprint(manifest())


def test_fingerprint_overlooks() -> None:
    """Origin, versions and measurements do not change the fingerprint."""
    other = manifest(name="x", source="elsewhere", created_with={"onnx": "9"}, checks={"cosine_min": 0.5})
    assert fingerprint(other) == fingerprint(manifest())

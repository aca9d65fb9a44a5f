"""Small encoders with random weights, laid out as sentence-transformers lays them out."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from jobs.models.export import texts

DIMENSIONS, LAYERS, HEADS, WIDE, VOCABULARY = 64, 2, 4, 128, 1200
START, PAD, END = "<s>", "<pad>", "</s>"

Floats = npt.NDArray[np.float32]


def write_tokenizer(folder: Path, *, at_the_end_only: bool = False) -> Tokenizer:
    """A byte-level tokenizer learnt from the bundled sentences; its padding has the id 1, as RoBERTa's.

    `at_the_end_only`: texts get no first special token, as those of decoders.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[START, PAD, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*texts.SENTENCES, *texts.PASSAGES], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {END}" if at_the_end_only else f"{START} $A {END}",
        pair=f"{START} $A {END} {END} $B {END}",
        special_tokens=[(START, 0), (END, 2)],
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    _write(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": START,
            "eos_token": END,
            "pad_token": PAD,
            "model_max_length": 128,
        },
    )
    return tokenizer


def write_modules(folder: Path, pooling: str, prompts: Mapping[str, str] | None = None) -> None:
    """The files that make sentence-transformers pool (`mean`, `cls` or `lasttoken`) and normalise."""
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    _write(
        folder / "modules.json",
        [
            {"idx": at, "name": str(at), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for at, (path, kind) in enumerate(kinds.items())
        ],
    )
    (folder / "1_Pooling").mkdir()
    (folder / "2_Normalize").mkdir()
    names = {"mean": "mean_tokens", "cls": "cls_token", "lasttoken": "lasttoken"}
    modes = {f"pooling_mode_{name}": key == pooling for key, name in names.items()}
    _write(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": DIMENSIONS, **modes})
    _write(folder / "config_sentence_transformers.json", {"prompts": dict(prompts or {})})


def write_decoder(folder: Path, **config: Any) -> Path:
    """A Llama of two layers, whose four query heads share two heads of keys and values; no PyTorch is needed."""
    folder.mkdir(parents=True, exist_ok=True)
    write_tokenizer(folder, at_the_end_only=True)
    write_modules(folder, "lasttoken")
    _write(
        folder / "config.json",
        {
            "architectures": ["LlamaModel"],
            "model_type": "llama",
            "hidden_size": DIMENSIONS,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "num_key_value_heads": 2,
            "intermediate_size": WIDE,
            "max_position_embeddings": 256,
            "vocab_size": VOCABULARY,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10_000.0,
            **config,
        },
    )
    write_safetensors(folder / "model.safetensors", decoder_tensors())
    return folder


def write_bert(folder: Path) -> Path:
    """A BERT of two layers with mean pooling; no PyTorch is needed."""
    folder.mkdir(parents=True, exist_ok=True)
    write_tokenizer(folder)
    write_modules(folder, "mean")
    sizes = {
        "hidden_size": DIMENSIONS, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "intermediate_size": WIDE, "max_position_embeddings": 256, "vocab_size": VOCABULARY, "pad_token_id": 1,
    }  # fmt: skip
    _write(folder / "config.json", {"model_type": "bert", "architectures": ["BertModel"], **sizes})
    write_safetensors(folder / "model.safetensors", bert_tensors())
    return folder


def write_reranker(folder: Path) -> Path:
    """A BERT of two layers that scores pairs, as a cross-encoder of any hub; no PyTorch is needed."""
    write_bert(folder)
    (folder / "modules.json").unlink()
    config = json.loads((folder / "config.json").read_text())
    head = {
        "architectures": ["BertForSequenceClassification"],
        "id2label": {"0": "LABEL_0"},
        "type_vocab_size": 2,
        "vocab_size": VOCABULARY + 2,
    }
    _write(folder / "config.json", {**config, **head})
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens(["[CLS]", "[SEP]"])
    start, separator = (tokenizer.token_to_id(name) for name in ("[CLS]", "[SEP]"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", start), ("[SEP]", separator)],
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    chance = np.random.default_rng(6)
    tensors = {f"bert.{name}": tensor for name, tensor in bert_tensors().items()}
    words = tensors["bert.embeddings.word_embeddings.weight"]
    tensors["bert.embeddings.word_embeddings.weight"] = np.concatenate([words, words[:2] + 1])
    for name, rows in {"bert.pooler.dense": DIMENSIONS, "classifier": 1}.items():
        tensors[f"{name}.weight"] = chance.normal(0, 0.05, (rows, DIMENSIONS)).astype(np.float32)
        tensors[f"{name}.bias"] = np.zeros(rows, np.float32)
    write_safetensors(folder / "model.safetensors", tensors)
    return folder


def bert_tensors(seed: int = 5) -> dict[str, Floats]:
    chance = np.random.default_rng(seed)

    def normal(*size: int, scale: float = 1.0) -> Floats:
        return (chance.normal(size=size) * scale).astype(np.float32)

    rows = {"word": VOCABULARY, "position": 256, "token_type": 2}
    tensors = {
        f"embeddings.{name}_embeddings.weight": normal(count, DIMENSIONS) for name, count in rows.items()
    }
    norms = ["embeddings.LayerNorm"]
    for layer in range(LAYERS):
        name = f"encoder.layer.{layer}"
        squares = [
            f"{name}.attention.{part}" for part in ("self.query", "self.key", "self.value", "output.dense")
        ]
        linear = dict.fromkeys(squares, (DIMENSIONS, DIMENSIONS))
        linear |= {
            f"{name}.intermediate.dense": (WIDE, DIMENSIONS),
            f"{name}.output.dense": (DIMENSIONS, WIDE),
        }
        for part, size in linear.items():
            tensors |= {
                f"{part}.weight": normal(*size, scale=0.15),
                f"{part}.bias": normal(size[0], scale=0.2),
            }
        norms += [f"{name}.attention.output.LayerNorm", f"{name}.output.LayerNorm"]
    for norm in norms:
        tensors |= {
            f"{norm}.weight": 1 + normal(DIMENSIONS, scale=0.2),
            f"{norm}.bias": normal(DIMENSIONS, scale=0.2),
        }
    tensors["encoder.layer.0.intermediate.dense.weight"][0, 0] = np.float32(3)  # an outlier
    return tensors


def decoder_tensors(seed: int = 5) -> dict[str, Floats]:
    """Random weights, large enough that attention and positions have a say in every vector."""
    chance = np.random.default_rng(seed)
    shared = DIMENSIONS // 2

    def matrix(rows: int, columns: int) -> Floats:
        return chance.normal(0, 1.5 / np.sqrt(columns), (rows, columns)).astype(np.float32)

    def gain() -> Floats:
        return chance.uniform(0.5, 1.5, DIMENSIONS).astype(np.float32)

    tensors = {
        "embed_tokens.weight": chance.normal(0, 1, (VOCABULARY, DIMENSIONS)).astype(np.float32),
        "norm.weight": gain(),
    }
    for layer in range(LAYERS):
        sizes = {
            "self_attn.q_proj": (DIMENSIONS, DIMENSIONS),
            "self_attn.k_proj": (shared, DIMENSIONS),
            "self_attn.v_proj": (shared, DIMENSIONS),
            "self_attn.o_proj": (DIMENSIONS, DIMENSIONS),
            "mlp.gate_proj": (WIDE, DIMENSIONS),
            "mlp.up_proj": (WIDE, DIMENSIONS),
            "mlp.down_proj": (DIMENSIONS, WIDE),
        }
        for name, size in sizes.items():
            tensors[f"layers.{layer}.{name}.weight"] = matrix(*size)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"layers.{layer}.{name}.weight"] = gain()
    return tensors


def write_safetensors(path: Path, tensors: Mapping[str, npt.NDArray[Any]], dtype: str = "F32") -> None:
    """The tensors in one file. As `BF16` they are cut to the upper halves of their bytes."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    content = bytearray()
    for name, tensor in tensors.items():
        values = np.ascontiguousarray(tensor, dtype=np.float16 if dtype == "F16" else np.float32)
        raw = (
            (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
            if dtype == "BF16"
            else values.tobytes()
        )
        header[name] = {
            "dtype": dtype,
            "shape": list(tensor.shape),
            "data_offsets": [len(content), len(content) + len(raw)],
        }
        content += raw
    encoded = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + content)


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content))

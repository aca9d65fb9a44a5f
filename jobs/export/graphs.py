"""One fused fp32 graph of an encoder: token ids in, one pooled (and normalised) vector a text out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from indexes.model import Floats
from jobs.export.decoders import decoder
from jobs.export.encoders import encoder
from jobs.export.mpnet import mpnet
from jobs.export.shapes import DECODERS, Shape
from jobs.export.sources import Source
from jobs.export.weights import WEIGHTS, WEIGHTS_INDEX, Weights
from retrieval.embedding.sessions import OUTPUT

if TYPE_CHECKING:
    import onnx

FUSED = frozenset({
    "Attention", "BiasGelu", "EmbedLayerNormalization", "FastGelu", "Gelu", "LayerNormalization",
    "MultiHeadAttention", "QuickGelu", "RotaryEmbedding", "SimplifiedLayerNormalization",
    "SkipLayerNormalization", "SkipSimplifiedLayerNormalization",
})  # fmt: skip


POOLING_MODES = {"mean": "mean", "cls": "cls", "last": "lasttoken"}  # sentence-transformers' names


@dataclass(frozen=True)
class Fused:
    """The fp32 graph, and how many fused operators of each kind are in it."""

    model: onnx.ModelProto
    operators: dict[str, int]


def fused(source: Source, shape: Shape, scratch: Path) -> Fused:
    """The encoder of `source`, as fast as fp32 gets here, with pooling and length 1 inside.

    Inputs `input_ids` and `attention_mask`, int64 [n, s]; output `embeddings`, float32 [n, dimensions]. Raises
    InvalidInput, naming the architecture, for one that is not known.
    """
    if shape.architecture in DECODERS:
        model = decoder(Weights(source.folder), shape)
    elif shape.architecture == "mpnet":
        model = mpnet(Weights(source.folder), shape)
    else:
        model = encoder(source, shape, scratch)
    add_head(model, shape)
    _forget_origin(model)
    counts = Counter(node.op_type for node in model.graph.node if node.op_type in FUSED)
    return Fused(model, dict(sorted(counts.items())))


def reference(
    source: Source, lines: Sequence[str], shape: Shape, *, own_pooling: bool = True
) -> Floats | None:
    """Vectors of `lines` by sentence-transformers itself, or None where it or the weights are not there.

    `own_pooling`: as the source says; otherwise as `shape` does, for a caller who overrode it.
    """
    if not any((source.folder / name).is_file() for name in (WEIGHTS, WEIGHTS_INDEX)):
        return None
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        return None
    loaded = SentenceTransformer(str(source.folder), device="cpu", local_files_only=True)
    if not own_pooling:
        from sentence_transformers.models import Pooling

        pooling = Pooling(shape.dimensions, pooling_mode=POOLING_MODES[shape.pooling])
        loaded = SentenceTransformer(modules=[loaded[0], pooling], device="cpu")
    loaded.max_seq_length = shape.tokens_max
    # An empty prompt: without one, a default of the source's would be put before these texts.
    vectors = loaded.float().encode(
        list(lines), prompt="", normalize_embeddings=shape.normalise, show_progress_bar=False
    )
    return np.asarray(vectors, dtype=np.float32)


def add_head(model: onnx.ModelProto, shape: Shape) -> None:
    """Pool the hidden states over real tokens, and scale to length 1 if the encoder does."""
    from onnx import TensorProto, helper

    graph, hidden = model.graph, model.graph.output[0].name
    pooled = "pooled" if shape.normalise else OUTPUT
    pool = {"mean": _mean, "cls": _first, "last": _last}[shape.pooling]
    graph.node.extend(pool(graph, hidden, pooled))
    if shape.normalise:
        graph.node.append(helper.make_node("LpNormalization", [pooled], [OUTPUT], axis=-1, p=2))
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, ["batch", shape.dimensions]))


def _mean(graph: onnx.GraphProto, hidden: str, pooled: str) -> list[onnx.NodeProto]:
    from onnx import TensorProto, helper, numpy_helper

    graph.initializer.append(numpy_helper.from_array(np.array([1]), "pool_axis"))
    return [
        helper.make_node("Cast", ["attention_mask"], ["pool_mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["pool_mask", "pool_axis"], ["pool_row"]),
        helper.make_node("MatMul", ["pool_row", hidden], ["pool_sums"]),
        helper.make_node("Squeeze", ["pool_sums", "pool_axis"], ["pool_sum"]),
        helper.make_node("ReduceSum", ["pool_mask", "pool_axis"], ["pool_count"], keepdims=1),
        helper.make_node("Div", ["pool_sum", "pool_count"], [pooled]),
    ]


def _first(graph: onnx.GraphProto, hidden: str, pooled: str) -> list[onnx.NodeProto]:
    from onnx import helper, numpy_helper

    graph.initializer.append(numpy_helper.from_array(np.array(0), "pool_first"))
    return [helper.make_node("Gather", [hidden, "pool_first"], [pooled], axis=1)]


def _last(graph: onnx.GraphProto, hidden: str, pooled: str) -> list[onnx.NodeProto]:
    """The last token whose mask is 1, on whichever side the padding is."""
    from onnx import helper, numpy_helper

    graph.initializer.append(numpy_helper.from_array(np.array([1]), "pool_axis"))
    return [
        helper.make_node(
            "ArgMax", ["attention_mask"], ["pool_last"], axis=1, keepdims=1, select_last_index=1
        ),
        helper.make_node("GatherND", [hidden, "pool_last"], [pooled], batch_dims=1),
    ]


def _forget_origin(model: onnx.ModelProto) -> None:
    """Names of tools, source files and stack traces would change the file's hash from machine to machine."""
    for text in ("producer_name", "producer_version", "doc_string", "domain"):
        model.ClearField(text)
    del model.metadata_props[:]
    model.graph.name = "encoder"
    model.graph.ClearField("doc_string")
    del model.graph.value_info[:]
    for node in model.graph.node:
        node.ClearField("doc_string")
        del node.metadata_props[:]

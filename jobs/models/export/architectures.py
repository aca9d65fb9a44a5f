"""Builds the graph of an encoder from its weights: token ids in, one pooled (and normalized) vector per text out.

    words + positions -> LayerNorm -> [ queries, keys, values -> attention -> add -> LayerNorm
                                        up -> GELU -> down -> add -> LayerNorm ] x layers -> token vectors -> pooling

is BERT and its relatives; Llama and its relatives are in `decoder`. Writing the graph instead of tracing it needs no
PyTorch, and uses ONNX Runtime's fused operators directly instead of relying on its optimizer to find them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from indexes.base.errors import InvalidInput
from jobs.models.export.decoder import decoder
from jobs.models.export.graph import Graph
from jobs.models.export.shapes import DECODERS, POSITIONS_AFTER_PADDING, Shape
from retrieval.embedding.sessions import OUTPUT

if TYPE_CHECKING:
    import onnx

MPNET_DISTANCE_MAX = 128  # longer distances share one bias
GELUS = {"gelu": "BiasGelu", "gelu_new": "FastGelu", "gelu_pytorch_tanh": "FastGelu", "gelu_fast": "FastGelu"}


def build(graph: Graph, shape: Shape) -> onnx.ModelProto:
    """Inputs `input_ids` and `attention_mask`, int64 [n, s]; output `embeddings`, float32 [n, dimensions].

    `graph` is empty but has its weights and precision. Raises InvalidInput for unsupported variations and missing
    tensors.
    """
    hidden = (decoder if shape.architecture in DECODERS else _bert)(graph, shape)
    pooled = {"mean": _mean, "cls": _first, "last": _last}[shape.pooling](graph, hidden)
    if shape.makes == "scores":
        pooled = _score(graph, pooled)
    if shape.normalise:
        pooled = graph.add("LpNormalization", pooled, axis=-1, p=2)
    return graph.model(pooled, OUTPUT, shape.dimensions)


# -- BERT and its relatives -------------------------------------------------------------------------------------------


def _bert(graph: Graph, shape: Shape) -> str:
    config = shape.config
    gelu = GELUS.get(activation := str(config.get("hidden_act") or config.get("activation") or "gelu"))
    if gelu is None:
        raise InvalidInput(f"cannot export {shape.architecture} with the activation {activation}")
    if (kind := config.get("position_embedding_type") or "absolute") != "absolute":
        raise InvalidInput(f"cannot export {shape.architecture} with {kind} positions")
    epsilon = float(config.get("layer_norm_eps", 1e-12))

    def normalized(value: str, name: str) -> str:
        gain, shift = graph.weight(f"{name}.weight"), graph.weight(f"{name}.bias")
        return graph.add("LayerNormalization", value, gain, shift, axis=-1, epsilon=epsilon)

    # Separate Add and LayerNormalization: the kernel of the fused SkipLayerNormalization is slower.
    mask = graph.add("Cast", "attention_mask", to=6)
    lengths = graph.add("ReduceSum", mask, graph.integers(1), keepdims=0)
    distances = _distance_biases(graph, shape) if shape.architecture == "mpnet" else ""
    stream = normalized(_embed(graph, shape), "embeddings.LayerNorm")
    if "embeddings_project.weight" in graph.weights:  # ELECTRA's embeddings may be narrower than its layers
        stream = graph.linear(stream, "embeddings_project")
    for number in range(shape.layers):
        name = f"encoder.layer.{number}"
        parts = (f"{name}.attention.self.{part}" for part in ("query", "key", "value"))
        mixed = graph.attention(stream, *parts, heads=shape.heads, mask=lengths, scores=distances)
        mixed = graph.linear(mixed, f"{name}.attention.output.dense")
        stream = normalized(graph.add("Add", mixed, stream), f"{name}.attention.output.LayerNorm")
        wide = graph.product(stream, f"{name}.intermediate.dense", part="up")
        wide = graph.fused(gelu, wide, graph.weight(f"{name}.intermediate.dense.bias"))
        narrow = graph.linear(wide, f"{name}.output.dense", part="down")
        stream = normalized(graph.add("Add", narrow, stream), f"{name}.output.LayerNorm")
    return stream


def _embed(graph: Graph, shape: Shape) -> str:
    """Words plus positions. Every text is a single segment, so its token type embedding is folded into positions."""
    words = graph.words("embeddings.word_embeddings.weight", "input_ids")
    table = graph.weights["embeddings.position_embeddings.weight"]
    if "embeddings.token_type_embeddings.weight" in graph.weights:
        table = table + graph.weights["embeddings.token_type_embeddings.weight"][0]
    positions = graph.constant("positions", table)
    if shape.separator is not None:
        words = graph.add("Add", words, _second_text(graph, shape.separator))
    if shape.architecture not in POSITIONS_AFTER_PADDING:
        length = graph.add("Shape", "input_ids", start=1, end=2)
        return graph.add(
            "Add", words, graph.add("Slice", positions, graph.integers(0), length, graph.integers(0))
        )
    # Positions count non-padding tokens, starting after padding's id.
    padding = int(shape.config.get("pad_token_id", 1))
    real = graph.add("Not", graph.add("Equal", "input_ids", graph.integers(padding)))
    real = graph.add("Cast", real, to=7)
    counted = graph.add("Mul", graph.add("CumSum", real, graph.integers(1)), real)
    places = graph.add("Add", counted, graph.integers(padding))
    return graph.add("Add", words, graph.add("Gather", positions, places))


def _second_text(graph: Graph, separator: int) -> str:
    """The token type embedding of a pair's second text: 0 up to and including the first separator, then the difference
    of both types, because the first text's is folded into the positions."""
    types = graph.weights["embeddings.token_type_embeddings.weight"]
    found = graph.add("Equal", "input_ids", graph.integers(separator))
    before = graph.add("CumSum", graph.add("Cast", found, to=7), graph.integers(1), exclusive=1)
    second = graph.add("Min", before, graph.integers(1))
    return graph.add(
        "Gather", graph.constant("second_text", np.stack([types[0] * 0, types[1] - types[0]])), second
    )


def _distance_biases(graph: Graph, shape: Shape) -> str:
    """MPNet's relative position biases [1, heads, s, s]."""
    table = graph.weights["encoder.relative_attention_bias.weight"]
    farthest = shape.tokens_max - 1
    by_distance = table[buckets(np.arange(-farthest, farthest + 1), len(table))]
    length = graph.add("Squeeze", graph.add("Shape", "input_ids", start=1, end=2), graph.integers(0))
    places = graph.add(
        "Range", graph.constant("zero", np.int64(0)), length, graph.constant("one", np.int64(1))
    )
    columns = graph.add("Unsqueeze", places, graph.integers(0))
    distances = graph.add("Sub", columns, graph.add("Unsqueeze", places, graph.integers(1)))
    row = graph.add("Add", distances, graph.integers(farthest))
    looked_up = graph.add("Gather", graph.constant("distance_biases", by_distance.T), row, axis=1)
    return graph.add("Unsqueeze", looked_up, graph.integers(0))


def buckets(distances: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.int64]:
    """The bucket of MPNet's `count` position biases for each distance (key position minus query position).

    Half the buckets are for positive distances, half for the others. Half of each cover one small distance apiece; the
    rest cover logarithmic ranges up to `MPNET_DISTANCE_MAX`.
    """
    half = count // 2
    single = half // 2
    far = np.abs(distances)
    growth = np.log(np.maximum(far, 1) / single, dtype=np.float32)
    growth /= np.float32(np.log(MPNET_DISTANCE_MAX / single))
    ranged = np.minimum(single + (growth * (half - single)).astype(np.int64), half - 1)
    return np.where(distances > 0, half, 0) + np.where(far < single, far, ranged)


# -- pooling ----------------------------------------------------------------------------------------------------------


def _mean(graph: Graph, hidden: str) -> str:
    """The mean over real tokens."""
    axis = graph.integers(1)
    mask = graph.add("Cast", "attention_mask", to=1)
    sums = graph.add("Squeeze", graph.add("MatMul", graph.add("Unsqueeze", mask, axis), hidden), axis)
    return graph.add("Div", sums, graph.add("ReduceSum", mask, axis, keepdims=1))


def _first(graph: Graph, hidden: str) -> str:
    return graph.add("Gather", hidden, graph.constant("zero", np.int64(0)), axis=1)


def _last(graph: Graph, hidden: str) -> str:
    """The last token whose mask is 1, with padding on either side."""
    last = graph.add("ArgMax", "attention_mask", axis=1, keepdims=1, select_last_index=1)
    return graph.add("GatherND", hidden, last, batch_dims=1)


def _score(graph: Graph, first: str) -> str:
    """A reranker's score of a pair [n, 1], from its first token. It is fp32: the head is small and decides the
    order."""
    if "classifier.out_proj.weight" in graph.weights:  # RoBERTa's head
        layers = ("classifier.dense", "classifier.out_proj")
    else:
        layers = ("pooler.dense", "classifier")
    for layer, last in zip(layers, (False, True), strict=True):
        first = graph.add(
            "Gemm", first, graph.weight(f"{layer}.weight"), graph.weight(f"{layer}.bias"), transB=1
        )
        first = first if last else graph.add("Tanh", first)
    return first

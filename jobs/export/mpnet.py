"""Build the graph of MPNet from its weights: BERT's layers, with one learnt bias on attention for each distance.

The runtime's optimiser does not know this attention. The fused operator does: it adds a table of biases, here
looked up once a run for all layers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from indexes.errors import InvalidInput
from jobs.export.building import Graph
from jobs.export.shapes import Shape
from jobs.export.weights import Weights

if TYPE_CHECKING:
    import onnx

PADDING = 1  # its id; the architecture has it built in
DISTANCE_MAX = 128  # beyond it all distances share a bias


def mpnet(weights: Weights, shape: Shape) -> onnx.ModelProto:
    """Token ids to token vectors [n, s, d]. Raises InvalidInput for a variation that is not known here."""
    return _MPNet(weights, shape).model()


class _MPNet:
    def __init__(self, weights: Weights, shape: Shape) -> None:
        if (activation := shape.config.get("hidden_act", "gelu")) != "gelu":
            raise InvalidInput(f"cannot export mpnet with the activation {activation}")
        self._graph = Graph(weights)
        self._shape = shape
        self._epsilon = float(shape.config.get("layer_norm_eps", 1e-12))

    def model(self) -> onnx.ModelProto:
        graph = self._graph
        self._mask = graph.add("Cast", "attention_mask", to=6)
        self._biases = self._distance_biases()
        stream = self._embedded()
        for layer in range(self._shape.layers):
            name = f"encoder.layer.{layer}"
            mixed = self._attention(stream, f"{name}.attention.attn")
            stream = self._add_and_normalise(mixed, stream, f"{name}.attention.attn.o", f"{name}.attention")
            wide = self._product(stream, f"{name}.intermediate.dense")
            wide = graph.fused("BiasGelu", wide, graph.weight(f"{name}.intermediate.dense.bias"))
            narrow = self._product(wide, f"{name}.output.dense")
            stream = self._add_and_normalise(narrow, stream, f"{name}.output.dense", f"{name}.output")
        return graph.model(stream, self._shape.dimensions)

    def _embedded(self) -> str:
        """Words and positions. Positions are counted over what is not padding, and begin after its id."""
        graph = self._graph
        padding = graph.add("Equal", "input_ids", graph.integers(PADDING))
        real = graph.add("Cast", graph.add("Not", padding), to=7)
        counted = graph.add("Mul", graph.add("CumSum", real, graph.integers(1)), real)
        places = graph.add("Add", counted, graph.integers(PADDING))
        words = graph.add("Gather", graph.weight("embeddings.word_embeddings.weight"), "input_ids")
        positions = graph.add("Gather", graph.weight("embeddings.position_embeddings.weight"), places)
        return graph.add(
            "LayerNormalization", graph.add("Add", words, positions),
            graph.weight("embeddings.LayerNorm.weight"), graph.weight("embeddings.LayerNorm.bias"),
            axis=-1, epsilon=self._epsilon,
        )  # fmt: skip

    def _distance_biases(self) -> str:
        """[1, heads, s, s]: for each pair of places, the bias of how far the second lies from the first."""
        graph = self._graph
        table = graph.weights["encoder.relative_attention_bias.weight"]
        farthest = self._shape.tokens_max - 1
        by_distance = table[buckets(np.arange(-farthest, farthest + 1), len(table))]
        length = graph.add("Squeeze", graph.add("Shape", "input_ids", start=1, end=2), graph.integers(0))
        zero, one = graph.constant("zero", np.int64(0)), graph.constant("one", np.int64(1))
        places = graph.add("Range", zero, length, one)
        distance = graph.add(
            "Sub",
            graph.add("Unsqueeze", places, graph.integers(0)),
            graph.add("Unsqueeze", places, graph.integers(1)),
        )
        row = graph.add("Add", distance, graph.integers(farthest))
        looked_up = graph.add("Gather", graph.constant("distance_biases", by_distance.T), row, axis=1)
        return graph.add("Unsqueeze", looked_up, graph.integers(0))

    def _attention(self, stream: str, name: str) -> str:
        graph = self._graph
        parts = [f"{name}.{part}" for part in "qkv"]
        matrix = np.concatenate([graph.weights[f"{part}.weight"] for part in parts]).T
        bias = np.concatenate([graph.weights[f"{part}.bias"] for part in parts])
        mixed = graph.fused(
            "Attention", stream, graph.constant(f"{name}.qkv.weight", matrix),
            graph.constant(f"{name}.qkv.bias", bias), self._mask, "", self._biases, num_heads=self._shape.heads,
        )  # fmt: skip
        return self._product(mixed, f"{name}.o")

    def _product(self, value: str, name: str) -> str:
        return self._graph.add(
            "MatMul", value, self._graph.constant(f"{name}.weight", self._graph.weights[f"{name}.weight"].T)
        )

    def _add_and_normalise(self, value: str, stream: str, layer: str, normal: str) -> str:
        graph = self._graph
        return graph.fused(
            "SkipLayerNormalization", value, stream, graph.weight(f"{normal}.LayerNorm.weight"),
            graph.weight(f"{normal}.LayerNorm.bias"), graph.weight(f"{layer}.bias"), epsilon=self._epsilon,
        )  # fmt: skip


def buckets(distances: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.int64]:
    """Which of `count` biases each distance (second place less first) has.

    Half of them are for places before, half for places after. A quarter are for one small distance each; the others
    cover ranges that grow by a constant factor up to `DISTANCE_MAX`.
    """
    half = count // 2
    single = half // 2
    far = np.abs(distances)
    growth = np.log(np.maximum(far, 1) / single, dtype=np.float32) / np.float32(np.log(DISTANCE_MAX / single))
    ranged = np.minimum(single + (growth * (half - single)).astype(np.int64), half - 1)
    return np.where(distances > 0, half, 0) + np.where(far < single, far, ranged)

"""Build the graph of a decoder used as an encoder (Llama, Mistral, Qwen2, Qwen3) from its weights.

    words -> [ RMSNorm -> queries, keys, values -> rotary positions -> causal attention -> add
               RMSNorm -> SiLU(gate) x up -> down -> add ] x layers -> RMSNorm -> token vectors

The graph is written with the runtime's fused operators, so there is nothing left for its optimiser to find. Positions
are counted over real tokens only, and padding is masked: a text may be padded on either side.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from indexes.errors import InvalidInput
from jobs.export.building import Graph
from jobs.export.shapes import Shape
from jobs.export.weights import Weights

if TYPE_CHECKING:
    import onnx

Doubles = npt.NDArray[np.float64]


def decoder(weights: Weights, shape: Shape) -> onnx.ModelProto:
    """Token ids to token vectors [n, s, d]. Raises InvalidInput for a variation that is not known here."""
    return _Decoder(weights, shape).model()


@dataclass(frozen=True)
class _Heads:
    """How attention is divided: several query heads may share one head of keys and values."""

    queries: int
    keys: int
    width: int

    @staticmethod
    def of(shape: Shape) -> _Heads:
        keys = int(shape.config.get("num_key_value_heads") or shape.heads)
        width = int(shape.config.get("head_dim") or shape.dimensions // shape.heads)
        return _Heads(shape.heads, keys, width)


class _Decoder:
    def __init__(self, weights: Weights, shape: Shape) -> None:
        config = shape.config
        if (activation := config.get("hidden_act", "silu")) != "silu":
            raise InvalidInput(f"cannot export {shape.architecture} with the activation {activation}")
        self._graph = Graph(weights)
        self._shape = shape
        self._heads = _Heads.of(shape)
        self._epsilon = float(config.get("rms_norm_eps", 1e-6))
        self._causal = int(config.get("is_causal") is not False)

    def model(self) -> onnx.ModelProto:
        graph = self._graph
        self._mask = graph.add("Cast", "attention_mask", to=6)
        self._positions = self._counted()
        self._cosines, self._sines = self._rotations()
        stream = graph.add("Gather", graph.weight("embed_tokens.weight"), "input_ids")
        normal = self._first_normal(stream, "layers.0.input_layernorm.weight")
        for layer in range(self._shape.layers):
            name = f"layers.{layer}"
            mixed = self._attention(normal, f"{name}.self_attn")
            normal, stream = self._add_and_normalise(mixed, stream, f"{name}.post_attention_layernorm.weight")
            fed = self._feed_forward(normal, f"{name}.mlp")
            following = f"layers.{layer + 1}.input_layernorm.weight"
            last = layer + 1 == self._shape.layers
            normal, stream = self._add_and_normalise(fed, stream, "norm.weight" if last else following)
        return graph.model(normal, self._shape.dimensions)

    def _counted(self) -> str:
        """Each token's place among the real ones of its text, from 0."""
        graph = self._graph
        places = graph.add("CumSum", "attention_mask", graph.integers(1))
        places = graph.add("Sub", places, graph.integers(1))
        return graph.add("Max", places, graph.integers(0))

    def _rotations(self) -> tuple[str, str]:
        angles = np.outer(
            np.arange(self._shape.tokens_max), frequencies(self._shape.config, self._heads.width)
        )
        return (
            self._graph.constant("rotary_cosines", np.cos(angles).astype(np.float32)),
            self._graph.constant("rotary_sines", np.sin(angles).astype(np.float32)),
        )

    def _attention(self, normal: str, name: str) -> str:
        graph, heads = self._graph, self._heads
        joined = graph.linear(normal, *(f"{name}.{part}_proj" for part in "qkv"))
        sizes = [heads.queries * heads.width, heads.keys * heads.width, heads.keys * heads.width]
        queries, keys, values = graph.split(joined, *sizes)
        if f"{name}.q_norm.weight" in graph.weights:
            queries = self._normal_by_head(queries, heads.queries, f"{name}.q_norm.weight")
            keys = self._normal_by_head(keys, heads.keys, f"{name}.k_norm.weight")
        queries, keys = self._rotated(queries), self._rotated(keys)
        keys, values = self._repeated(keys), self._repeated(values)
        mixed = graph.fused(
            "MultiHeadAttention", queries, keys, values, "", self._mask,
            num_heads=heads.queries, unidirectional=self._causal,
        )  # fmt: skip
        return graph.linear(mixed, f"{name}.o_proj")

    def _rotated(self, value: str) -> str:
        return self._graph.fused("RotaryEmbedding", value, self._positions, self._cosines, self._sines)

    def _normal_by_head(self, value: str, heads: int, weight: str) -> str:
        graph = self._graph
        parted = graph.add("Reshape", value, graph.integers(0, 0, heads, self._heads.width))
        normal = self._first_normal(parted, weight)
        return graph.add("Reshape", normal, graph.integers(0, 0, heads * self._heads.width))

    def _repeated(self, value: str) -> str:
        """Each head of keys or values, once for every query head that shares it."""
        graph, heads = self._graph, self._heads
        shared = heads.queries // heads.keys
        if shared == 1:
            return value
        parted = graph.add("Reshape", value, graph.integers(0, 0, heads.keys, 1, heads.width))
        times = graph.add("Expand", parted, graph.integers(1, 1, 1, shared, 1))
        return graph.add("Reshape", times, graph.integers(0, 0, heads.queries * heads.width))

    def _feed_forward(self, normal: str, name: str) -> str:
        graph = self._graph
        joined = graph.linear(normal, f"{name}.gate_proj", f"{name}.up_proj")
        width = len(graph.weights[f"{name}.gate_proj.weight"])
        gate, up = graph.split(joined, width, width)
        opened = graph.fused("QuickGelu", gate, alpha=1.0)  # with this alpha it is SiLU
        return graph.linear(graph.add("Mul", opened, up), f"{name}.down_proj")

    def _first_normal(self, value: str, weight: str) -> str:
        return self._graph.add(
            "SimplifiedLayerNormalization", value, self._graph.weight(weight), axis=-1, epsilon=self._epsilon
        )

    def _add_and_normalise(self, value: str, stream: str, weight: str) -> tuple[str, str]:
        """RMSNorm of the sum, and the sum."""
        name = self._graph.fused(
            "SkipSimplifiedLayerNormalization", value, stream, self._graph.weight(weight), outputs=4,
            epsilon=self._epsilon,
        )  # fmt: skip
        return name, f"{name}:3"


# -- rotary positions -------------------------------------------------------------------------------------------------


def frequencies(config: Mapping[str, Any], width: int) -> Doubles:
    """Radians a token by which each pair of a head's `width` values turns.

    Raises InvalidInput for a kind of scaling that is not known here.
    """
    rope = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
    theta = float(rope.get("rope_theta") or config.get("rope_theta") or 10_000.0)
    plain = theta ** -(np.arange(0, width, 2, dtype=np.float64) / width)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return plain
    if kind == "linear":
        return np.asarray(plain / float(rope["factor"]))
    if kind == "llama3":
        return _stretched(plain, rope)
    raise InvalidInput(f"cannot export positions of the kind {kind}; default, linear and llama3 are known")


def _stretched(plain: Doubles, rope: Mapping[str, Any]) -> Doubles:
    """Llama 3: slow turns are slowed by `factor`, quick ones kept, those between blended."""
    factor, low, high = (float(rope[name]) for name in ("factor", "low_freq_factor", "high_freq_factor"))
    turns = float(rope["original_max_position_embeddings"]) * plain / (2 * math.pi)
    kept = np.clip((turns - low) / (high - low), 0, 1)
    return np.asarray(plain * (kept + (1 - kept) / factor))

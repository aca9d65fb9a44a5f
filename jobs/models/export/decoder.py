"""The layers of a decoder used as an encoder: Llama, Mistral, Qwen2, Qwen3.

    words -> [ RMSNorm -> queries, keys, values -> rotary positions -> causal attention -> add
               RMSNorm -> SiLU(gate) x up -> down -> add ] x layers -> RMSNorm -> token vectors

Positions count real tokens only and padding is masked, so texts may be padded on either side.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from indexes.base.errors import InvalidInput
from jobs.models.export.graph import Graph
from jobs.models.export.shapes import Shape

Doubles = npt.NDArray[np.float64]


def decoder(graph: Graph, shape: Shape) -> str:
    """Token ids to token vectors [n, s, d]. Raises InvalidInput for unsupported variations."""
    config = shape.config
    if (activation := config.get("hidden_act", "silu")) != "silu":
        raise InvalidInput(f"cannot export {shape.architecture} with the activation {activation}")
    epsilon = float(config.get("rms_norm_eps", 1e-6))
    attention = _Attention(graph, shape, epsilon)

    def add_and_normalize(value: str, stream: str, weight: str) -> tuple[str, str]:
        """RMSNorm of the sum, and the sum itself."""
        name = graph.fused(
            "SkipSimplifiedLayerNormalization",
            value,
            stream,
            graph.weight(weight),
            outputs=4,
            epsilon=epsilon,
        )
        return name, f"{name}:3"

    stream = graph.words("embed_tokens.weight", "input_ids")
    normal = rms_norm(graph, stream, "layers.0.input_layernorm.weight", epsilon)
    for layer in range(shape.layers):
        name = f"layers.{layer}"
        mixed = attention(normal, f"{name}.self_attn")
        normal, stream = add_and_normalize(mixed, stream, f"{name}.post_attention_layernorm.weight")
        fed = _feed_forward(graph, normal, f"{name}.mlp")
        last = layer + 1 == shape.layers
        following = "norm.weight" if last else f"layers.{layer + 1}.input_layernorm.weight"
        normal, stream = add_and_normalize(fed, stream, following)
    return normal


def rms_norm(graph: Graph, value: str, weight: str, epsilon: float) -> str:
    return graph.add("SimplifiedLayerNormalization", value, graph.weight(weight), axis=-1, epsilon=epsilon)


def _feed_forward(graph: Graph, normal: str, name: str) -> str:
    joined = graph.linear(normal, f"{name}.gate_proj", f"{name}.up_proj", part="up")
    width = len(graph.weights[f"{name}.gate_proj.weight"])
    gate, up = graph.split(joined, width, width)
    opened = graph.fused("QuickGelu", gate, alpha=1.0)  # alpha 1 makes it SiLU
    return graph.linear(graph.add("Mul", opened, up), f"{name}.down_proj", part="down")


class _Attention:
    """Causal attention with rotary position embeddings and grouped-query attention."""

    def __init__(self, graph: Graph, shape: Shape, epsilon: float) -> None:
        config = shape.config
        self._graph, self._epsilon = graph, epsilon
        self._heads = shape.heads
        self._key_heads = int(config.get("num_key_value_heads") or shape.heads)
        self._width = int(config.get("head_dim") or shape.dimensions // shape.heads)
        self._causal = int(config.get("is_causal") is not False)
        self._mask = graph.add("Cast", "attention_mask", to=6)
        places = graph.add("Sub", graph.add("CumSum", "attention_mask", graph.integers(1)), graph.integers(1))
        self._positions = graph.add("Max", places, graph.integers(0))
        angles = np.outer(np.arange(shape.tokens_max), frequencies(config, self._width))
        self._cosines = graph.constant("rotary_cosines", np.cos(angles).astype(np.float32))
        self._sines = graph.constant("rotary_sines", np.sin(angles).astype(np.float32))

    def __call__(self, normal: str, name: str) -> str:
        graph, queries_width, keys_width = (
            self._graph,
            self._heads * self._width,
            self._key_heads * self._width,
        )
        joined = graph.linear(normal, *(f"{name}.{part}_proj" for part in "qkv"))
        queries, keys, values = graph.split(joined, queries_width, keys_width, keys_width)
        if f"{name}.q_norm.weight" in graph.weights:
            queries = self._normal_by_head(queries, self._heads, f"{name}.q_norm.weight")
            keys = self._normal_by_head(keys, self._key_heads, f"{name}.k_norm.weight")
        queries, keys = self._rotate(queries), self._rotate(keys)
        mixed = graph.fused(
            "MultiHeadAttention", queries, self._repeat_heads(keys), self._repeat_heads(values), "", self._mask,
            num_heads=self._heads, unidirectional=self._causal,
        )  # fmt: skip
        return graph.linear(mixed, f"{name}.o_proj")

    def _rotate(self, value: str) -> str:
        return self._graph.fused("RotaryEmbedding", value, self._positions, self._cosines, self._sines)

    def _normal_by_head(self, value: str, heads: int, weight: str) -> str:
        graph = self._graph
        parted = graph.add("Reshape", value, graph.integers(0, 0, heads, self._width))
        normal = rms_norm(graph, parted, weight, self._epsilon)
        return graph.add("Reshape", normal, graph.integers(0, 0, heads * self._width))

    def _repeat_heads(self, value: str) -> str:
        """Each key or value head, repeated for every query head that shares it."""
        graph, shared = self._graph, self._heads // self._key_heads
        if shared == 1:
            return value
        parted = graph.add("Reshape", value, graph.integers(0, 0, self._key_heads, 1, self._width))
        times = graph.add("Expand", parted, graph.integers(1, 1, 1, shared, 1))
        return graph.add("Reshape", times, graph.integers(0, 0, self._heads * self._width))


# -- rotary position embeddings ---------------------------------------------------------------------------------------


def frequencies(config: Mapping[str, Any], width: int) -> Doubles:
    """Rotation in radians per token of each pair of a head's `width` values.

    Raises InvalidInput for unsupported scaling.
    """
    rope = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
    theta = float(rope.get("rope_theta") or config.get("rope_theta") or 10_000.0)
    plain = theta ** -(np.arange(0, width, 2, dtype=np.float64) / width)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return plain
    if kind == "linear":
        return np.asarray(plain / float(rope["factor"]))
    if kind == "llama3":  # low frequencies are divided by `factor`, high ones kept, the rest interpolated
        factor, low, high = (float(rope[name]) for name in ("factor", "low_freq_factor", "high_freq_factor"))
        turns = float(rope["original_max_position_embeddings"]) * plain / (2 * math.pi)
        kept = np.clip((turns - low) / (high - low), 0, 1)
        return np.asarray(plain * (kept + (1 - kept) / factor))
    raise InvalidInput(f"cannot export positions of the kind {kind}; default, linear and llama3 are known")

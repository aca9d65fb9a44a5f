"""Turn a fused fp32 encoder graph into an int8 one, with a choice of where the scales of activations come from.

    fixed    uint8, one scale a tensor, found beforehand from calibration texts
    token    uint8, one scale a token: its largest value
    batch    uint8, one scale a tensor, found while it runs, over whatever shares the run

Plain dynamic int8 is `batch`: a text's vector moves with its neighbours (onnxruntime #10111). With the other two it
does not. Fixed scales cost least; a token's own fit better where outliers live, as after GELU.

Weights are int8 of 7 bits, one scale a column. Sums leave the integer kernel as fp32 (MatMulIntegerToFloat,
QAttention); softmax, normalisation, GELU and the residual stream stay fp32 throughout. Weights keep 7 bits because
AVX2 and AVX-512 without VNNI saturate when they add two products of uint8 and full int8 (onnxruntime #6004): with 7
bits every CPU computes the same integers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from indexes.model import Floats
from jobs.export.rewriting import (
    CONTRIB,
    Products,
    after_activation,
    attention_attributes,
    is_target,
    matrices_of,
    prefix_of,
)
from jobs.export.running import Feed, save, session

if TYPE_CHECKING:
    import onnx

WEIGHT_MAX = 63  # 7 bits: 255 * 63 * 2 stays below the int16 at which VPMADDUBSW saturates

Scale = Literal["fixed", "token", "batch"]


@dataclass
class Extremes:
    """Smallest and largest value of one activation over all calibration tokens."""

    low: float = 0.0
    high: float = 0.0

    def widen(self, values: Floats) -> None:
        self.low, self.high = min(self.low, float(values.min())), max(self.high, float(values.max()))


def quantise(
    model: onnx.ModelProto,
    extremes: Mapping[str, Extremes],
    *,
    usual: Scale,
    activated: Scale,
) -> onnx.ModelProto:
    """An int8 copy of `model`: each MatMul with constant weights and each fused Attention is replaced.

    `activated`: where the scales of what leaves GELU, or its like, come from; `usual`: those of all other inputs.
    `extremes`, from `observe`, must hold every input that gets fixed ones.
    """
    return _Integers(model, extremes, usual, activated).applied()


def observe(model: onnx.ModelProto, feeds: Iterable[Feed], scratch: Path) -> dict[str, Extremes]:
    """Run `model` over `feeds` and return the extremes of every activation that meets constant weights.

    Values at padding are not looked at. `scratch`: a folder for the graph that is run.
    """
    import onnx

    matrices = matrices_of(model)
    names = list(dict.fromkeys(node.input[0] for node in model.graph.node if is_target(node, matrices)))
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    known = {output.name for output in probe.graph.output}
    probe.graph.output.extend(
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
        for name in names
        if name not in known
    )
    running = session(save(probe, scratch / "probe.onnx"))
    extremes: dict[str, Extremes] = {}
    for feed in feeds:
        real = feed["attention_mask"].astype(bool)
        for name, values in zip(names, running.run(names, feed)):
            extremes.setdefault(name, Extremes()).widen(values[real])
    return extremes


@dataclass(frozen=True)
class _Codes:
    """Names of an activation's codes, their scale and zero point, and what a product is multiplied with after."""

    codes: str
    scale: str
    zero: str
    largest: str | None = None


class _Integers(Products):
    def __init__(
        self, model: onnx.ModelProto, extremes: Mapping[str, Extremes], usual: Scale, activated: Scale
    ) -> None:
        super().__init__(model)
        self._extremes = extremes
        self._usual = usual
        self._activated = activated
        self._after_activation = after_activation(model.graph.node)
        self._codes: dict[str, _Codes] = {}

    def product(self, prefix: str, activation: str, weights: Floats, output: str) -> None:
        codes = self._coded(prefix, activation)
        weight, weight_scale = self._integers(prefix, weights)
        inputs = [codes.codes, weight, codes.scale, weight_scale, codes.zero]
        if codes.largest is None:
            self.add("MatMulIntegerToFloat", inputs, output, domain=CONTRIB)
        else:
            self.add("MatMulIntegerToFloat", inputs, f"{prefix}_product", domain=CONTRIB)
            self.add("Mul", [f"{prefix}_product", codes.largest], output)

    def attention(self, node: onnx.NodeProto) -> None:
        """One fused node where it can take the scale: of a whole tensor, and without a bias on the scores."""
        if self._usual == "token" or len(node.input) > 4:
            super().attention(node)
            return
        prefix = prefix_of(node)
        weights = self.array(node.input[1])
        codes = self._coded(prefix, node.input[0])
        weight, weight_scale = self._integers(prefix, weights)
        weight_zero = self.constant(f"{weight}_zero", np.zeros(weights.shape[1], dtype=np.int8))
        inputs = [
            codes.codes, weight, node.input[2], codes.scale, weight_scale, node.input[3], codes.zero, weight_zero,
        ]  # fmt: skip
        self.add("QAttention", inputs, node.output[0], domain=CONTRIB, **attention_attributes(node))

    def _coded(self, prefix: str, activation: str) -> _Codes:
        """Codes of an activation, made once for all products that read it."""
        if activation not in self._codes:
            after = activation in self._after_activation
            make = {"fixed": self._fixed, "token": self._by_token, "batch": self._by_batch}
            self._codes[activation] = make[self._activated if after else self._usual](prefix, activation)
        return self._codes[activation]

    def _fixed(self, _: str, activation: str) -> _Codes:
        step, zero_point = affine(self._extremes[activation])
        scale = self.constant(f"{activation}_scale", np.float32(step))
        zero = self.constant(f"{activation}_zero", np.uint8(zero_point))
        self.add("QuantizeLinear", [activation, scale, zero], f"{activation}_codes")
        return _Codes(f"{activation}_codes", scale, zero)

    def _by_token(self, prefix: str, activation: str) -> _Codes:
        """x = largest * (x / largest): the quotient lies in -1 to 1, so one constant scale serves every token.

        Of a token of zeros the quotient is no number, its codes are anything, and the product with `largest` is zero.
        """
        self.add("Abs", [activation], f"{prefix}_abs")
        self._largest(f"{prefix}_abs", f"{prefix}_largest")
        self.add("Div", [activation, f"{prefix}_largest"], f"{prefix}_quotient")
        scale = self.constant(f"{prefix}_scale", np.float32(1 / 127))
        zero = self.constant(f"{prefix}_zero", np.uint8(128))
        self.add("QuantizeLinear", [f"{prefix}_quotient", scale, zero], f"{prefix}_codes")
        return _Codes(f"{prefix}_codes", scale, zero, f"{prefix}_largest")

    def _largest(self, magnitudes: str, output: str) -> None:
        if self.opset >= 18:
            axes = self.constant(f"{output}_axes", np.array([-1], dtype=np.int64))
            self.add("ReduceMax", [magnitudes, axes], output, keepdims=1)
        else:
            self.add("ReduceMax", [magnitudes], output, axes=[-1], keepdims=1)

    def _by_batch(self, _: str, activation: str) -> _Codes:
        names = [f"{activation}_{part}" for part in ("codes", "scale", "zero")]
        self.add("DynamicQuantizeLinear", [activation], names)
        return _Codes(*names)

    def _integers(self, prefix: str, weights: Floats) -> tuple[str, str]:
        """Names of the weights' codes and of their scales, one a column."""
        codes, steps = columns_int8(weights)
        return self.constant(f"{prefix}_weight", codes), self.constant(f"{prefix}_weight_scale", steps)


def affine(seen: Extremes) -> tuple[float, int]:
    """Step and zero point of uint8 codes that reach from the smallest to the largest value, and hold 0 exactly.

    The step is rounded up to a power of 2 ** (1/32), so that nothing is cut off and the last bits of another CPU's
    arithmetic do not change the model.
    """
    bottom, top = min(float(seen.low), 0.0), max(float(seen.high), 0.0)
    step = float(np.exp2(np.ceil(np.log2((top - bottom) / 255 or 1.0) * 32) / 32))
    return step, int(np.clip(round(-bottom / step), 0, 255))


def columns_int8(weights: Floats, largest: int = WEIGHT_MAX) -> tuple[npt.NDArray[np.int8], Floats]:
    """Symmetric codes of `weights` [channels, columns] from -`largest` to `largest`, and one scale a column."""
    steps = np.abs(weights).max(axis=0) / largest
    steps[steps == 0] = 1
    codes = np.clip(np.round(weights / steps), -largest, largest).astype(np.int8)
    return codes, steps.astype(np.float32)

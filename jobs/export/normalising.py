"""Residual additions and normalisation, taken apart.

    SkipLayerNormalization(x, skip, gain, shift, bias)  ->  Add(x, bias), Add(.., skip), LayerNormalization

The runtime's fused kernel for this is slower than its plain ones, for one short text as for many; the exporter's table
of times shows what is left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.export.rewriting import Rewrite, epsilon_of, prefix_of

if TYPE_CHECKING:
    import onnx

SUM = 3  # the output that holds what is normalised, where it is wanted


def normalised_apart(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy without SkipLayerNormalization; the same vectors but for rounding."""
    return _Apart(model).applied()


class _Apart(Rewrite):
    def visit(self, node: onnx.NodeProto) -> None:
        if node.op_type != "SkipLayerNormalization":
            self.nodes.append(node)
            return
        value, skip, gain, shift, bias = [*node.input, "", ""][:5]
        prefix = prefix_of(node)
        if bias:
            self.add("Add", [value, bias], f"{prefix}_biased")
            value = f"{prefix}_biased"
        summed = [*node.output, "", "", ""][SUM] or f"{prefix}_summed"
        self.add("Add", [value, skip], summed)
        inputs = [summed, gain, shift] if shift else [summed, gain]
        self.add("LayerNormalization", inputs, node.output[0], axis=-1, epsilon=epsilon_of(node))

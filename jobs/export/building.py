"""A small language for writing ONNX graphs: every call adds one operator and returns the name of what it computes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from indexes.model import Floats
from jobs.export.rewriting import CONTRIB
from jobs.export.weights import Weights

if TYPE_CHECKING:
    import onnx

OPSET = 17


class Graph:
    """A graph under construction. Names count up, so the same calls give the same bytes."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self._nodes: list[onnx.NodeProto] = []
        self._constants: dict[str, onnx.TensorProto] = {}

    def add(self, operator: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        """One operator of the standard set; the name of its first output, others end in :1, :2 and so on."""
        return self._add(operator, inputs, outputs, "", attributes)

    def fused(self, operator: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        """One fused operator of the runtime's own set."""
        return self._add(operator, inputs, outputs, CONTRIB, attributes)

    def _add(self, operator: str, inputs: tuple[str, ...], outputs: int, domain: str, attributes: Any) -> str:
        from onnx import helper

        name = f"{operator}_{len(self._nodes)}"
        names = [name, *(f"{name}:{number}" for number in range(1, outputs))]
        self._nodes.append(
            helper.make_node(operator, list(inputs), names, name=name, domain=domain, **attributes)
        )
        return name

    def constant(self, name: str, value: Any) -> str:
        """A constant, kept once for each name."""
        from onnx import numpy_helper

        if name not in self._constants:
            self._constants[name] = numpy_helper.from_array(np.ascontiguousarray(value), name)
        return name

    def integers(self, *values: int) -> str:
        return self.constant("integers_" + "_".join(map(str, values)), np.array(values, dtype=np.int64))

    def weight(self, name: str) -> str:
        """A tensor of the source as it is."""
        return self.constant(name, self.weights[name])

    def linear(self, activation: str, *names: str) -> str:
        """`activation` through the layers `names` side by side, as one product; their biases, if any, are added."""
        joined = "+".join(names)
        matrix = np.concatenate([self.weights[f"{name}.weight"] for name in names]).T
        product = self.add("MatMul", activation, self.constant(f"{joined}.weight", matrix))
        biased = [f"{name}.bias" in self.weights for name in names]
        if not any(biased):
            return product
        return self.add("Add", product, self.constant(f"{joined}.bias", self._biases(names)))

    def _biases(self, names: tuple[str, ...]) -> Floats:
        """Zeros where one of the layers has none."""
        return np.concatenate(
            [
                self.weights[f"{name}.bias"]
                if f"{name}.bias" in self.weights
                else np.zeros(len(self.weights[f"{name}.weight"]), dtype=np.float32)
                for name in names
            ]
        )

    def split(self, value: str, *sizes: int) -> list[str]:
        """Parts of the last axis, in order."""
        parts = self.add("Split", value, self.integers(*sizes), outputs=len(sizes), axis=-1)
        return [parts, *(f"{parts}:{number}" for number in range(1, len(sizes)))]

    def model(self, hidden: str, dimensions: int) -> onnx.ModelProto:
        """The finished graph: `input_ids` and `attention_mask` in, the token vectors `hidden` out."""
        from onnx import TensorProto, helper

        inputs = [
            helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "sequence"])
            for name in ("input_ids", "attention_mask")
        ]
        output = helper.make_tensor_value_info(hidden, TensorProto.FLOAT, ["batch", "sequence", dimensions])
        graph = helper.make_graph(self._nodes, "encoder", inputs, [output], list(self._constants.values()))
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(CONTRIB, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)

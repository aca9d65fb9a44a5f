"""What every rewriting of a fused fp32 graph shares: finding the products with constant weights, and replacing them.

    MatMul(x, weights)                  ->  whatever a subclass makes of it
    Attention(x, weights, bias, mask)   ->  the same product, then Split and MultiHeadAttention

Everything else stays as it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from indexes.model import Floats

if TYPE_CHECKING:
    import onnx

CONTRIB = "com.microsoft"
GELUS = frozenset({"BiasGelu", "Gelu", "FastGelu", "QuickGelu"})
ATTENTION_ATTRIBUTES = ("num_heads", "mask_filter_value")


def is_target(node: onnx.NodeProto, matrices: frozenset[str]) -> bool:
    """Whether a node multiplies with constant weights. `matrices` are the names of two-dimensional constants."""
    return node.op_type == "Attention" or (node.op_type == "MatMul" and node.input[1] in matrices)


def matrices_of(model: onnx.ModelProto) -> frozenset[str]:
    return frozenset(weight.name for weight in model.graph.initializer if len(weight.dims) == 2)


class Rewrite(ABC):
    """One pass over a copy of a graph. Nodes keep their order, which ONNX requires to be topological."""

    def __init__(self, model: onnx.ModelProto) -> None:
        import onnx

        self.model = onnx.ModelProto()
        self.model.CopyFrom(model)
        self.nodes: list[onnx.NodeProto] = []
        self._constants = {weight.name: weight for weight in self.model.graph.initializer}

    @abstractmethod
    def visit(self, node: onnx.NodeProto) -> None:
        """Add to `nodes` what takes the place of `node`; `node` itself if nothing does."""

    def applied(self) -> onnx.ModelProto:
        """The rewritten model, without the nodes and constants that nothing reads any more."""
        graph = self.model.graph
        for node in list(graph.node):
            self.visit(node)
        used = {output.name for output in graph.output}
        read: list[onnx.NodeProto] = []
        for node in reversed(self.nodes):
            if used.intersection(node.output):
                used.update(filter(None, node.input))  # one that is left out has no name
                read.append(node)
        del graph.node[:]
        graph.node.extend(reversed(read))
        kept = [weight for weight in graph.initializer if weight.name in used]
        del graph.initializer[:]
        graph.initializer.extend(kept)
        return self.model

    @property
    def opset(self) -> int:
        return opset_of(self.model)

    def add(self, operator: str, inputs: list[str], output: str | list[str], **attributes: Any) -> None:
        from onnx import helper

        outputs = [output] if isinstance(output, str) else output
        name = f"{outputs[0]}_{operator}"
        self.nodes.append(helper.make_node(operator, inputs, outputs, name=name, **attributes))

    def constant(self, name: str, value: Any) -> str:
        from onnx import numpy_helper

        self.model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def array(self, name: str) -> Floats:
        from onnx import numpy_helper

        return np.asarray(numpy_helper.to_array(self._constants[name]), dtype=np.float32)


class Products(Rewrite):
    """A rewriting of all products with constant weights; what they are replaced by is a subclass's."""

    def __init__(self, model: onnx.ModelProto) -> None:
        super().__init__(model)
        self._matrices = matrices_of(self.model)

    @abstractmethod
    def product(self, prefix: str, activation: str, weights: Floats, output: str) -> None:
        """Add nodes that compute `output` = `activation` x `weights` [channels, columns]."""

    def attention(self, node: onnx.NodeProto) -> None:
        """Queries, keys and values as one product, then attention over them in fp32."""
        prefix = prefix_of(node)
        self.product(prefix, node.input[0], self.array(node.input[1]), f"{prefix}_qkv")
        parts = [f"{prefix}_{part}" for part in ("queries", "keys", "values")]
        self.add(
            "Split", [f"{prefix}_qkv"], parts, axis=-1, **({"num_outputs": 3} if self.opset >= 18 else {})
        )
        bias, mask, _, scores = [*node.input[2:], "", "", "", ""][:4]
        inputs = [*parts, bias, mask, scores] if scores else [*parts, bias, mask]
        self.add("MultiHeadAttention", inputs, node.output[0], domain=CONTRIB, **attention_attributes(node))

    def visit(self, node: onnx.NodeProto) -> None:
        if not is_target(node, self._matrices):
            self.nodes.append(node)
        elif node.op_type == "Attention":
            self.attention(node)
        else:
            self.product(prefix_of(node), node.input[0], self.array(node.input[1]), node.output[0])


def after_activation(nodes: Iterable[onnx.NodeProto]) -> frozenset[str]:
    """Outputs of GELU and its like, and of the products that gate them."""
    nodes = list(nodes)
    activated = {node.output[0] for node in nodes if node.op_type in GELUS}
    gated = {node.output[0] for node in nodes if node.op_type == "Mul" and activated & set(node.input)}
    return frozenset(activated | gated)


def attention_attributes(node: onnx.NodeProto) -> dict[str, Any]:
    from onnx import helper

    found = {each.name: helper.get_attribute_value(each) for each in node.attribute}
    return {name: found[name] for name in ATTENTION_ATTRIBUTES if name in found}


def epsilon_of(node: onnx.NodeProto) -> float:
    """What a normalisation adds to the variance."""
    return next((each.f for each in node.attribute if each.name == "epsilon"), 1e-12)


def prefix_of(node: onnx.NodeProto) -> str:
    """What the names of everything that takes the place of `node` begin with."""
    return str(node.name or node.output[0])


def opset_of(model: onnx.ModelProto) -> int:
    """Version of the standard operators that the graph is written in."""
    return next(int(imported.version) for imported in model.opset_import if not imported.domain)

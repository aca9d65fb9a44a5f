"""The graph of an encoder of the BERT family, traced or ready-made, with its layers fused by the runtime's optimiser.

BERT, MiniLM, BGE, E5 and GTE, RoBERTa and XLM-R, DistilBERT and ELECTRA end as the same fused operators.
"""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from indexes.errors import InvalidInput, NotFound
from jobs.export.building import OPSET
from jobs.export.rewriting import opset_of
from jobs.export.running import save
from jobs.export.shapes import Shape
from jobs.export.sources import ONNX, Source
from jobs.export.weights import WEIGHTS, WEIGHTS_INDEX

if TYPE_CHECKING:
    import onnx

INPUTS = ("input_ids", "attention_mask")
AXES_BECAME_INPUTS = frozenset({"ReduceSum", "Squeeze", "Unsqueeze"})


def encoder(source: Source, shape: Shape, scratch: Path) -> onnx.ModelProto:
    """Token ids to token vectors [n, s, d], with attention, normalisation and GELU fused.

    Raises InvalidInput, naming the architecture, when it cannot be traced or when the optimiser does not find the
    layers that the configuration promises.
    """
    import onnx

    plain = source.folder / ONNX
    if not source.has_onnx:
        plain = scratch / "traced.onnx"
        from_torch(source, shape, plain)
    model = onnx.load(plain)
    without_token_types(model)
    keep_hidden_states(model)
    fused = optimise(save(model, scratch / "plain.onnx"), shape)
    if opset_of(fused) < OPSET:
        lift(fused)
    return fused


def from_torch(source: Source, shape: Shape, path: Path) -> None:
    """Trace the PyTorch encoder into a file, and further ones beside it where one cannot hold all.

    The older exporter is used: its graphs are the ones the optimiser fuses whole.
    """
    if not any((source.folder / name).is_file() for name in (WEIGHTS, WEIGHTS_INDEX)):
        raise NotFound(f"{source.label} has neither {ONNX} nor {WEIGHTS}")
    try:
        import torch
        from sentence_transformers import SentenceTransformer
        from transformers.utils import logging as transformers_logging
    except ImportError as error:
        raise NotFound(
            f"exporting {shape.architecture} from weights needs {error.name}: pip install 'nearline[export]'"
        ) from error
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    ids = torch.tensor([[5, 6, 7, 8], [5, 6, 7, 1]])
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])
    axes = {name: {0: "batch", 1: "sequence"} for name in (*INPUTS, "last_hidden_state")}
    try:
        loaded = SentenceTransformer(
            str(source.folder),
            device="cpu",
            local_files_only=True,
            model_kwargs={"attn_implementation": "eager"},
        )
        with warnings.catch_warnings(), torch.inference_mode():
            # About tracing constants, which the comparison with the original covers.
            warnings.simplefilter("ignore")
            torch.onnx.export(
                _hidden_states(loaded), (ids, mask), str(path), dynamo=False, opset_version=OPSET,
                input_names=list(INPUTS), output_names=["last_hidden_state"], dynamic_axes=axes,
            )  # fmt: skip
    except Exception as error:
        raise InvalidInput(
            f"cannot export {shape.architecture}: PyTorch cannot load or trace it "
            f"({type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''})"
        ) from error


def _hidden_states(loaded: Any) -> Any:
    """The encoder inside a SentenceTransformer as a module that gives its token vectors alone, in fp32."""
    import torch

    class Hidden(torch.nn.Module):  # type: ignore[misc,unused-ignore]  # PyTorch may be absent
        def __init__(self) -> None:
            super().__init__()
            self.encoder: Any = loaded[0].auto_model.float().eval()

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            states = self.encoder(input_ids=input_ids, attention_mask=attention_mask, return_dict=True)
            hidden: torch.Tensor = states.last_hidden_state
            return hidden

    return Hidden()


def without_token_types(model: onnx.ModelProto) -> None:
    """Every text here is one segment, so token types are always zero: make them inside the graph."""
    from onnx import TensorProto, helper

    graph = model.graph
    found = [value for value in graph.input if value.name == "token_type_ids"]
    if not found:
        return
    graph.input.remove(found[0])
    zero = helper.make_tensor("token_type_zero", TensorProto.INT64, [1], [0])
    nodes = [
        helper.make_node("Shape", ["input_ids"], ["token_type_shape"]),
        helper.make_node("ConstantOfShape", ["token_type_shape"], ["token_type_ids"], value=zero),
    ]
    rest = list(graph.node)
    del graph.node[:]
    graph.node.extend([*nodes, *rest])


def keep_hidden_states(model: onnx.ModelProto) -> None:
    """Drop all outputs but the token vectors [n, s, d]: ready graphs may carry pooled ones too."""
    outputs = list(model.graph.output)
    hidden = [value for value in outputs if len(value.type.tensor_type.shape.dim) == 3] or outputs[:1]
    preferred = [
        value for value in hidden if value.name in {"last_hidden_state", "token_embeddings"}
    ] or hidden
    del model.graph.output[:]
    model.graph.output.extend(preferred[:1])


def optimise(path: Path, shape: Shape) -> onnx.ModelProto:
    """Fuse the graph, and refuse it where a layer was missed: an unfused one is slow and would stay fp32."""
    from onnxruntime.transformers import optimizer
    from onnxruntime.transformers.fusion_options import FusionOptions

    logging.getLogger("onnxruntime.transformers").setLevel(logging.ERROR)
    result = optimizer.optimize_model(
        str(path), model_type="bert", num_heads=shape.heads, hidden_size=shape.dimensions, opt_level=0,
        optimization_options=FusionOptions("bert"),
    )  # fmt: skip
    model: onnx.ModelProto = result.model
    counts = Counter(node.op_type for node in model.graph.node)
    require_fused(
        {
            "attention": counts["Attention"] + counts["MultiHeadAttention"],
            "normalisation": counts["SkipLayerNormalization"],
            "GELU": counts["BiasGelu"] + counts["Gelu"] + counts["FastGelu"],
        },
        {"attention": shape.layers, "normalisation": 2 * shape.layers, "GELU": shape.layers},
        shape.architecture,
    )
    return model


def lift(model: onnx.ModelProto) -> None:
    """Rewrite an old graph for the operators that the rest of the export is written in: axes are inputs there.

    Done after fusing: of the other operators that changed meanwhile none is left then.
    """
    from onnx import helper, numpy_helper

    for number, node in enumerate(model.graph.node):
        axes = next((each for each in node.attribute if each.name == "axes"), None)
        if node.op_type in AXES_BECAME_INPUTS and axes is not None:
            name = f"lifted_axes_{number}"
            values = np.array(helper.get_attribute_value(axes), dtype=np.int64)
            model.graph.initializer.append(numpy_helper.from_array(values, name))
            node.input.append(name)
            node.attribute.remove(axes)
    for imported in model.opset_import:
        if not imported.domain:
            imported.version = OPSET


def require_fused(found: Mapping[str, int], expected: Mapping[str, int], architecture: str) -> None:
    """Raise InvalidInput, naming what is missing, unless at least as much was fused as the layers promise."""
    missed = [f"{found[what]} of {count} {what}" for what, count in expected.items() if found[what] < count]
    if missed:
        raise InvalidInput(
            f"cannot export {architecture}: the optimiser fused only {', '.join(missed)} layers, so it is not an "
            "encoder that this export knows"
        )

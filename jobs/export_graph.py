"""Make one fused fp32 graph of an encoder: token ids in, pooled (and normalised) vectors out."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from indexes.errors import InvalidInput, NotFound
from jobs.export_sources import ONNX, WEIGHTS, Shape, Source

if TYPE_CHECKING:
    import onnx

INPUTS = ("input_ids", "attention_mask")
OUTPUT = "embeddings"
OPSET = 17


def fused(source: Source, shape: Shape, scratch: Path) -> onnx.ModelProto:
    """The encoder of `source` with attention, normalisation and GELU fused, pooling and length 1 inside.

    Inputs `input_ids` and `attention_mask`, int64 [n, s]; output `embeddings`, float32 [n, dimensions]. Raises
    InvalidInput when the optimiser does not find the layers that the configuration promises.
    """
    import onnx

    model = onnx.load(source.folder / ONNX) if source.has_onnx else from_torch(source)
    without_token_types(model)
    keep_hidden_states(model)
    plain = scratch / "plain.onnx"
    onnx.save(model, plain)
    model = optimise(plain, shape)
    add_head(model, shape)
    _forget_origin(model)
    return model


def from_torch(source: Source) -> onnx.ModelProto:
    """Trace the PyTorch encoder. The older exporter is used: its graphs are the ones the optimiser fuses whole."""
    if not (source.folder / WEIGHTS).is_file():
        raise NotFound(f"{source.label} has neither {ONNX} nor {WEIGHTS}")
    try:
        import onnx
        import torch
        from sentence_transformers import SentenceTransformer
        from transformers.utils import logging as transformers_logging
    except ImportError as error:
        raise NotFound(
            f"exporting from weights needs {error.name}: pip install 'nearline[export]'"
        ) from error
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    loaded = SentenceTransformer(
        str(source.folder), device="cpu", local_files_only=True, model_kwargs={"attn_implementation": "eager"}
    )
    encoder: Any = loaded[0].auto_model.eval()

    class Hidden(torch.nn.Module):  # type: ignore[misc,unused-ignore]  # PyTorch may be absent
        def __init__(self) -> None:
            super().__init__()
            self.encoder = encoder

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            states = self.encoder(input_ids=input_ids, attention_mask=attention_mask, return_dict=True)
            hidden: torch.Tensor = states.last_hidden_state
            return hidden

    ids = torch.tensor([[5, 6, 7, 8], [5, 6, 7, 1]])
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])
    content = io.BytesIO()
    axes = {name: {0: "batch", 1: "sequence"} for name in (*INPUTS, "last_hidden_state")}
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter(
            "ignore"
        )  # about tracing constants, which the comparison with the original covers
        torch.onnx.export(
            Hidden(), (ids, mask), content, dynamo=False, opset_version=OPSET, input_names=list(INPUTS),
            output_names=["last_hidden_state"], dynamic_axes=axes,
        )  # fmt: skip
    return onnx.load_from_string(content.getvalue())


def reference(source: Source, texts: Sequence[str]) -> np.ndarray[Any, np.dtype[np.float32]] | None:
    """Unit vectors of `texts` by sentence-transformers itself, or None where it or the weights are not there."""
    if not (source.folder / WEIGHTS).is_file():
        return None
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        return None
    loaded = SentenceTransformer(str(source.folder), device="cpu", local_files_only=True)
    vectors = loaded.encode(list(texts), normalize_embeddings=True, show_progress_bar=False)
    return np.asarray(vectors, dtype=np.float32)


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
    counts = result.get_fused_operator_statistics()
    found = {
        "attention": counts["Attention"] + counts["MultiHeadAttention"],
        "normalisation": counts["SkipLayerNormalization"],
        "GELU": counts["BiasGelu"] + counts["Gelu"] + counts["FastGelu"],
    }
    expected = {"attention": shape.layers, "normalisation": 2 * shape.layers, "GELU": shape.layers}
    if missed := [
        f"{found[what]} of {expected[what]} {what}" for what in expected if found[what] < expected[what]
    ]:
        raise InvalidInput(
            f"the optimiser fused only {', '.join(missed)} layers: not an encoder this export knows"
        )
    model: onnx.ModelProto = result.model
    return model


def add_head(model: onnx.ModelProto, shape: Shape) -> None:
    """Pool the hidden states over real tokens, and scale to length 1 if the encoder does."""
    from onnx import TensorProto, helper, numpy_helper

    graph, hidden = model.graph, model.graph.output[0].name
    pooled = "pooled" if shape.normalise else OUTPUT
    if shape.pooling == "cls":
        graph.initializer.append(numpy_helper.from_array(np.array(0), "pool_first"))
        nodes = [helper.make_node("Gather", [hidden, "pool_first"], [pooled], axis=1)]
    else:
        graph.initializer.append(numpy_helper.from_array(np.array([1]), "pool_axis"))
        nodes = [
            helper.make_node("Cast", ["attention_mask"], ["pool_mask"], to=TensorProto.FLOAT),
            helper.make_node("Unsqueeze", ["pool_mask", "pool_axis"], ["pool_row"]),
            helper.make_node("MatMul", ["pool_row", hidden], ["pool_sums"]),
            helper.make_node("Squeeze", ["pool_sums", "pool_axis"], ["pool_sum"]),
            helper.make_node("ReduceSum", ["pool_mask", "pool_axis"], ["pool_count"], keepdims=1),
            helper.make_node("Div", ["pool_sum", "pool_count"], [pooled]),
        ]
    if shape.normalise:
        nodes.append(helper.make_node("LpNormalization", [pooled], [OUTPUT], axis=-1, p=2))
    graph.node.extend(nodes)
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, ["batch", shape.dimensions]))


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

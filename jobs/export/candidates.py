"""The graphs that an export chooses from, and what each falls back on where its kernels go wrong.

name       weights               activations                         what it is for
fp32       fp32                  fp32                                the measure of all others
dynamic    7 bits a column       8 bits, a scale for each run        what most exporters make; vectors depend on
                                                                     what shares their run, so it never passes
fixed      7 bits a column       8 bits, fixed scales
mixed      7 bits a column       8 bits, fixed scales; a token's
                                 own after GELU
tokens     7 bits a column       8 bits, a token's own scales        where fixed scales are too coarse
weights8   8 bits, blocks of 32  8 bits, blocks of 32                where activations have outliers: decoders
weights4   the same, but 4 bits  8 bits, blocks of 32                small devices (`--small`)
           in feed-forward layers

Word tables are fp16 beside all 7-bit and 8-bit weights, and int8 with weights4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from jobs.export.quantise import Extremes, Scale, quantise
from jobs.export.weights_only import by_columns, in_blocks, with_half_tables, with_small_tables

if TYPE_CHECKING:
    import onnx

Build = Callable[["onnx.ModelProto", Mapping[str, Extremes]], "onnx.ModelProto"]

INT8 = "int8: 7-bit weights per column, fp16 words; uint8 activations, "
SMALL = "weights4"


@dataclass(frozen=True)
class Recipe:
    """How a graph is made from the fused fp32 one. `quantisation` goes into fingerprints and must not be reworded."""

    name: str
    quantisation: str
    build: Build
    fallback: Recipe | None = None
    calibrated: bool = False  # needs the extremes of activations


def _fp32(model: onnx.ModelProto, _: Mapping[str, Extremes]) -> onnx.ModelProto:
    return model


def _int8(
    model: onnx.ModelProto, extremes: Mapping[str, Extremes], *, usual: Scale, activated: Scale
) -> onnx.ModelProto:
    return with_half_tables(quantise(model, extremes, usual=usual, activated=activated))


def _weights8(model: onnx.ModelProto, _: Mapping[str, Extremes]) -> onnx.ModelProto:
    return with_half_tables(in_blocks(model, 8))


def _weights4(model: onnx.ModelProto, _: Mapping[str, Extremes], *, exact: bool) -> onnx.ModelProto:
    return with_small_tables(in_blocks(model, 4, exact=exact))


def _plain8(model: onnx.ModelProto, _: Mapping[str, Extremes]) -> onnx.ModelProto:
    return with_small_tables(by_columns(model))


PLAIN8 = Recipe("plain8", "8-bit weights per column and words per row; fp32 arithmetic", _plain8)
PLAIN4 = Recipe(
    "plain4",
    "4-bit feed-forward and 8-bit attention weights in blocks of 32, 8-bit words per row; fp32 arithmetic",
    partial(_weights4, exact=True),
)
RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe("fp32", "fp32", _fp32),
        Recipe(
            "dynamic",
            f"{INT8}a scale for each run",
            partial(_int8, usual="batch", activated="batch"),
            PLAIN8,
        ),
        Recipe(
            "fixed",
            f"{INT8}fixed scales",
            partial(_int8, usual="fixed", activated="fixed"),
            PLAIN8,
            calibrated=True,
        ),
        Recipe(
            "mixed",
            f"{INT8}fixed scales, per token after GELU",
            partial(_int8, usual="fixed", activated="token"),
            PLAIN8,
            calibrated=True,
        ),
        Recipe("tokens", f"{INT8}per token", partial(_int8, usual="token", activated="token"), PLAIN8),
        Recipe("weights8", "8-bit weights and activations, blocks of 32, fp16 words", _weights8, PLAIN8),
        Recipe(
            SMALL,
            "4-bit feed-forward and 8-bit attention weights in blocks of 32, 8-bit words per row; 8-bit activations",
            partial(_weights4, exact=False),
            PLAIN4,
        ),
    )
}

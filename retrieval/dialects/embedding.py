"""Embeds for all dialects: finds the model, embeds, shortens, reports which texts were cut, and encodes the vectors."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, TypeVar

import msgspec
from aiohttp import web

from indexes.base.errors import InvalidInput, NotFound, TooLarge
from indexes.base.model import Floats
from retrieval.admission.gates import AdmittedRequest
from retrieval.base.settings import Whole
from retrieval.dialects.models import known_names, model_of
from retrieval.embedding.embedders import Embedder
from retrieval.embedding.models import Kind
from retrieval.embedding.results import EmbeddedTexts, Long, shorten
from retrieval.handlers.error_shapes import ModelNotFound
from retrieval.handlers.state import CONFIG, EMBEDDERS
from retrieval.handlers.wire import timing_headers

T = TypeVar("T")
NON_EMPTY = {"type": "string", "minLength": 1}
TOKEN_IDS = {"type": "array", "minItems": 1, "items": {"type": "integer"}}
# A text, texts, token ids, or lists of them. Empty ones are refused by each dialect with its own message.
LISTED = {"type": "array", "minItems": 1, "items": {"anyOf": [NON_EMPTY, TOKEN_IDS]}}
Inputs = Annotated[
    str | list[str | int | list[int]],
    msgspec.Meta(extra_json_schema={"allOf": [{"anyOf": [NON_EMPTY, TOKEN_IDS, LISTED]}]}),
]
Dimensions = Annotated[Whole | None, msgspec.Meta(extra_json_schema={"minimum": 1})]
Direction = Annotated[str | None, msgspec.Meta(extra_json_schema={"enum": ["right", "Right", None]})]
TextList = Annotated[list[str], msgspec.Meta(extra_json_schema={"minItems": 1})]
NonEmptyText = Annotated[str, msgspec.Meta(extra_json_schema={"minLength": 1})]
VectorJson = Annotated[
    msgspec.Raw, msgspec.Meta(extra_json_schema={"type": "array", "items": {"type": "number"}})
]

INLINE_TEXTS = 8  # vectors encoded on the event loop; more are encoded on a thread
TRUNCATED_LISTED = 500  # in the header; clients reject headers of several kilobytes
UTF8_BYTES_MAX = 4  # of one character


@dataclass(frozen=True, slots=True)
class EmbedResult:
    """What a dialect needs for its answer. Times in seconds."""

    embedded: EmbeddedTexts
    embed_s: float
    dimensions: int
    shorten: bool  # whether `vectors` normalizes to length 1

    def vectors(self) -> Floats:
        """Return float32 [texts, dimensions]. Each call computes them again; many belong on the thread of
        `encode_json`."""
        whole = self.embedded.vectors
        return shorten(whole, self.dimensions) if self.shorten else whole[:, : self.dimensions]

    @property
    def tokens(self) -> int:
        return sum(self.embedded.tokens)

    @property
    def truncated(self) -> list[int]:
        """The indexes of the texts that were cut."""
        return [index for index, cut in enumerate(self.embedded.truncated) if cut]

    @property
    def headers(self) -> dict[str, str]:
        stages_s = {
            "tokenise": self.embedded.tokenize_s,
            "queue": self.embedded.queue_s,
            "run": self.embedded.run_s,
            "total": self.embed_s,
        }
        headers = timing_headers({name: s * 1000 for name, s in stages_s.items()}, self.embed_s * 1000)
        if cut := self.truncated:
            headers["X-Truncated-Inputs"] = format_indexes(cut)
        return headers


async def open_model(request: web.Request, name: str) -> Embedder:
    """Return the embedder of a model, given its name or an alias. Raises ModelNotFound, which lists the known names."""
    app = request.app
    try:
        return await app[EMBEDDERS].get(model_of(app, name))
    except NotFound:
        known = await asyncio.to_thread(known_names, app)
        if name in known:
            raise  # the model exists, but one of its files is missing
        raise ModelNotFound(name, known) from None


async def embed(
    embedder: Embedder,
    texts: list[str],
    entry: AdmittedRequest,
    *,
    kind: Kind,
    long: Long,
    dimensions: int | None = None,
    dimensions_name: str = "dimensions",
    normalize: bool = True,
) -> EmbedResult:
    """Embed texts as vectors of length 1, shortened to `dimensions` if given. Cancelling the caller cancels the work;
    `entry` receives its progress.

    Raises InvalidInput for `dimensions` beyond the model's, or fewer if it was not trained for that; TooLong if `long`
    is "refuse" and a text is longer than the model reads. Without `normalize`, vectors keep
    the length that the model gives them; a model that normalizes by itself refuses that. `dimensions_name` is the
    dialect's own name of the parameter.
    """
    whole = embedder.encoder.dimensions
    if dimensions is not None and not 1 <= dimensions <= whole:
        raise InvalidInput(
            f"{dimensions_name} must be from 1 to {whole} for this model, found {dimensions}",
            param=dimensions_name,
        )
    if dimensions not in {None, whole} and not embedder.matryoshka:
        raise InvalidInput(
            f"{dimensions_name} must be {whole} or left out, found {dimensions}: this model's vectors lose their "
            "meaning when shortened, unless it was trained for that (Matryoshka); name it in models.matryoshka if so",
            param=dimensions_name,
        )
    if not normalize and embedder.manifest.normalise:
        raise InvalidInput(
            "normalize must be true: vectors of this model have length 1, which its graph gives them",
            param="normalize",
        )
    started = time.perf_counter()
    try:
        embedded = await embedder.embed(texts, kind=kind, long=long, progress=entry.advance)
    except TooLarge as error:  # more windows than one request may have; only OpenAI's dialect offers windows
        error.param = error.param or "input"
        raise
    embed_s = time.perf_counter() - started
    shorten = normalize and (dimensions not in {None, whole} or not embedder.manifest.normalise)
    return EmbedResult(embedded, embed_s, dimensions or whole, shorten)


def check_texts(texts: Sequence[str], request: web.Request, *, param: str) -> None:
    """Raise TooLarge if there are more texts than a request may hold, or if one is larger than a document may be."""
    limits = request.app[CONFIG].limits
    if len(texts) > limits.texts_per_request_max:
        raise TooLarge(
            f"{len(texts)} texts in one request, at most {limits.texts_per_request_max} are allowed",
            param=param,
        )
    most = limits.document_bytes_max
    for number, text in enumerate(texts):
        # Most texts are so short that their bytes need not be counted.
        if len(text) * UTF8_BYTES_MAX > most and (size := len(text.encode())) > most:
            raise TooLarge(f"text {number} has {size} bytes, at most {most} are allowed", param=param)


async def encode_json(result: EmbedResult, build: Callable[[], T]) -> bytes:
    """Encode what `build` returns as JSON; run both on a thread if there are many vectors."""

    def work() -> bytes:
        return msgspec.json.encode(build())

    texts = len(result.embedded.tokens)
    return work() if texts <= INLINE_TEXTS else await asyncio.to_thread(work)


def as_numbers(vectors: Floats) -> list[msgspec.Raw]:
    """Encode each vector on its own: encoding all in one step would hold the GIL for too long."""
    return [msgspec.Raw(msgspec.json.encode(vector.tolist())) for vector in vectors]


def as_base64(vectors: Floats) -> list[msgspec.Raw]:
    """Encode each vector as a JSON string: base64 of its little-endian float32 values."""
    rows = vectors.astype("<f4", copy=False)
    return [msgspec.Raw(b'"' + base64.b64encode(row.tobytes()) + b'"') for row in rows]


def format_indexes(indexes: Sequence[int]) -> str:
    """Format indexes as `0,3,17`, or the first of many and the number of the rest: `0,1,...,499,+1548`."""
    shown = [str(index) for index in indexes[:TRUNCATED_LISTED]]
    if len(indexes) > TRUNCATED_LISTED:
        shown.append(f"+{len(indexes) - TRUNCATED_LISTED}")
    return ",".join(shown)

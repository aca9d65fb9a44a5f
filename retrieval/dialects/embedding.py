"""The one way in which all dialects embed: find the model, embed, shorten, report what was cut, write the vectors."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, TypeVar

import msgspec
from aiohttp import web

from indexes.errors import InvalidInput, NotFound, TooLarge
from indexes.model import Floats
from retrieval.dialects.errors import ModelNotFound, TooLong
from retrieval.dialects.models import known_names, model_of
from retrieval.embedders import Embedder
from retrieval.embedding.models import Kind
from retrieval.embedding.results import Embedded, Long, shortened
from retrieval.keys import CONFIG, EMBEDDERS

T = TypeVar("T")
Inputs = str | list[str | int | list[int]]  # a text, texts, token ids, or lists of them
VectorJson = Annotated[
    msgspec.Raw, msgspec.Meta(extra_json_schema={"type": "array", "items": {"type": "number"}})
]

INLINE_TEXTS = 8  # vectors that the event loop writes by itself; more are written on a thread
TRUNCATED_LISTED = 500  # in the header; clients refuse headers of some kilobytes


@dataclass(frozen=True, slots=True)
class Answered:
    """What a dialect needs for its answer. Times in seconds."""

    vectors: Floats
    embedded: Embedded
    embed_s: float

    @property
    def tokens(self) -> int:
        return sum(self.embedded.tokens)

    @property
    def truncated(self) -> list[int]:
        """Which texts were cut."""
        return [index for index, cut in enumerate(self.embedded.truncated) if cut]

    @property
    def headers(self) -> dict[str, str]:
        stages = {
            "tokenise": self.embedded.tokenise_s,
            "queue": self.embedded.queue_s,
            "run": self.embedded.run_s,
            "total": self.embed_s,
        }
        headers = {
            "Server-Timing": ", ".join(f"{name};dur={s * 1000:.3f}" for name, s in stages.items()),
            "X-Embed-Latency": f"{self.embed_s * 1000:.3f}",
        }
        if cut := self.truncated:
            headers["X-Truncated-Inputs"] = listed(cut)
        return headers


async def open_model(request: web.Request, name: str) -> Embedder:
    """The embedder of a model or of an alias of it. Raises ModelNotFound naming what there is."""
    app = request.app
    try:
        return await app[EMBEDDERS].get(model_of(app, name))
    except NotFound:
        known = await asyncio.to_thread(known_names, app)
        if name in known:
            raise  # the model is there, a file of it is not
        raise ModelNotFound(name, known) from None


async def embed(
    embedder: Embedder,
    texts: list[str],
    *,
    kind: Kind,
    long: Long,
    dimensions: int | None = None,
    normalise: bool = True,
) -> Answered:
    """Vectors of length 1, of the first `dimensions` where given. Cancelled with its caller.

    Raises InvalidInput for impossible `dimensions`, TooLong where `long` is "refuse" and a text is longer than the
    model reads. Without `normalise` a model that does not normalise is left as it is; one that does cannot be.
    """
    whole = embedder.encoder.dimensions
    if dimensions is not None and not 1 <= dimensions <= whole:
        raise InvalidInput(
            f"dimensions must be from 1 to {whole} for this model, found {dimensions}", param="dimensions"
        )
    if not normalise and embedder.manifest.normalise:
        raise InvalidInput("normalize must be true: vectors of this model have length 1", param="normalize")
    started = time.perf_counter()
    try:
        embedded = await embedder.embed(texts, kind=kind, long=long)
    except InvalidInput as error:
        if long == "refuse" and error.param == "input":
            raise TooLong(error.message, embedder.encoder.tokens_max) from None
        raise
    embed_s = time.perf_counter() - started
    vectors = embedded.vectors
    if normalise and (dimensions not in {None, whole} or not embedder.manifest.normalise):
        vectors = shortened(vectors, dimensions or whole)
    elif dimensions is not None:
        vectors = vectors[:, :dimensions]
    return Answered(vectors, embedded, embed_s)


def bounded(count: int, request: web.Request, *, param: str) -> None:
    """Raises TooLarge for more texts than one request may hold."""
    most = request.app[CONFIG].limits.texts_per_request_max
    if count > most:
        raise TooLarge(f"{count} texts in one request, at most {most} are allowed", param=param)


async def written(vectors: Floats, build: Callable[[], T]) -> bytes:
    """JSON of what `build` makes of the vectors; on a thread when they are many."""

    def work() -> bytes:
        return msgspec.json.encode(build())

    return work() if len(vectors) <= INLINE_TEXTS else await asyncio.to_thread(work)


def as_numbers(vectors: Floats) -> list[msgspec.Raw]:
    """Each vector's JSON by itself: encoding all in one step would hold up every other thread."""
    return [msgspec.Raw(msgspec.json.encode(vector.tolist())) for vector in vectors]


def as_base64(vectors: Floats) -> list[msgspec.Raw]:
    """Each vector as a JSON string of its float32 values, little-endian."""
    rows = vectors.astype("<f4", copy=False)
    return [msgspec.Raw(b'"' + base64.b64encode(row.tobytes()) + b'"') for row in rows]


def json_answer(content: bytes, headers: dict[str, str]) -> web.Response:
    return web.Response(body=content, content_type="application/json", headers=headers)


def listed(indexes: Sequence[int]) -> str:
    """`0,3,17`; of very many only the first, and how many more: `0,1,...,499,+1548`."""
    shown = [str(index) for index in indexes[:TRUNCATED_LISTED]]
    if len(indexes) > TRUNCATED_LISTED:
        shown.append(f"+{len(indexes) - TRUNCATED_LISTED}")
    return ",".join(shown)

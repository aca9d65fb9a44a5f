"""Embeds texts at a service, or at a fallback that serves the same model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from retrieval.clients.errors import ServiceError
from retrieval.clients.transport import AWAY, BUSY, Patience, ServiceConnection

MISMATCH = "model_mismatch"


class Embedded(TypedDict):
    """`url` is the service that embedded; `truncated` are the positions of texts longer than the model reads."""

    vectors: list[list[float]]
    model: str
    fingerprint: str
    url: str
    truncated: list[int]


async def embed_with_fallback(
    first: ServiceConnection,
    texts: Sequence[str],
    *,
    model: str | None,
    kind: str,
    fingerprint: str | None,
    fallback: Sequence[str],
) -> Embedded:
    """Implement the client's `embed`. `first.fingerprints` remembers which models that service used."""
    patience = Patience(busy_s=0, away_s=0) if fallback else None  # a fallback is faster than waiting
    try:
        found = await embed_at(
            first, texts, model=model, kind=kind, fingerprint=fingerprint, patience=patience
        )
    except ServiceError as error:
        if error.status not in AWAY | BUSY or not fallback:
            raise
        failure = error
    else:
        first.fingerprints[model] = found["fingerprint"]
        return found
    expected = fingerprint or first.fingerprints.get(model)
    if expected is None:
        raise failure  # without a fingerprint, a fallback's model cannot be checked
    for url in fallback:
        other = first.to(url)
        try:
            return await embed_at(other, texts, model=model, kind=kind, fingerprint=expected)
        except ServiceError as error:
            if error.status not in AWAY | BUSY:
                raise
            failure = error
        finally:
            await other.close()
    raise failure


async def embed_at(
    connection: ServiceConnection,
    texts: Sequence[str],
    *,
    model: str | None,
    kind: str,
    fingerprint: str | None,
    patience: Patience | None = None,
) -> Embedded:
    """Embed at one service. Raises ServiceError of the kind `model_mismatch` if its model has another fingerprint."""
    name, serves = await served_model(connection, model, patience)
    if fingerprint is not None and serves != fingerprint:
        raise ServiceError(
            f"{connection.url} serves {name} with the fingerprint {serves}, expected {fingerprint}",
            status=409,
            kind=MISMATCH,
        )
    body = {"input": list(texts), "model": name, "input_type": kind}
    answer = await connection.answer("POST", "/v1/embeddings", body, patience=patience)
    return {
        "vectors": [one["embedding"] for one in answer["data"]],
        "model": name,
        "fingerprint": serves,
        "url": connection.url,
        "truncated": answer["truncated"],
    }


async def served_model(
    connection: ServiceConnection, model: str | None, patience: Patience | None
) -> tuple[str, str]:
    """Return name and fingerprint of a model, which may be given by an alias; None is the default model."""
    info = await connection.answer("GET", "/info", patience=patience)
    if model is None:
        return info["model_id"], info["model_sha"]
    listed = await connection.answer("GET", "/v1/models", patience=patience)
    names = {one["id"]: one["root"] for one in listed["data"]}
    if model not in names:
        known = ", ".join(names)
        raise ServiceError(
            f"{connection.url} has no model {model!r}; it has: {known}", status=404, kind="not_found"
        )
    prints = {one["name"]: one["fingerprint"] for one in info["nearline"]["models"]}
    return names[model], prints[names[model]]

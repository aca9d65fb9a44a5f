"""The service's own API as methods, the same on `AsyncClient` and `Client`.

Answers are plain dictionaries, whose keys type checkers know (`wire/`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack
from urllib.parse import quote

import msgspec

from retrieval.clients.blocking import Core, endpoint, steps, stream
from retrieval.clients.bulk import REQUESTS_AT_ONCE, Ingested, OnProgress, OnRefused, Steps, plan_ingestion
from retrieval.clients.embedding import Embedded, embed_with_fallback
from retrieval.clients.errors import ServiceError
from retrieval.clients.replies import JSON, error_from
from retrieval.clients.transport import Patience, path_of

if TYPE_CHECKING:
    from retrieval.clients.wire import answers, records
    from retrieval.clients.wire import requests as sent

POLL_S = 0.2
COLLECTIONS = "/v1/collections"
METRIC = b"nearline_"  # what the names of all metrics begin with

OnStage = Callable[[str, int, int], None]


class Endpoints(Core):
    """The endpoints of the service. Every method raises ServiceError."""

    @endpoint
    async def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        twice: bool | None = None,
        patience: Patience | None = None,
    ) -> Any:
        """Send a request to any path and return the decoded answer, None if empty. `twice` is whether the service
        may receive the request twice if a connection breaks; docs/client.md says what holds by default."""
        return await self.connection.answer(method, path, body, twice=twice, patience=patience)

    @endpoint
    async def metrics(self) -> str:
        """Return the metrics in Prometheus's text format."""
        content = await self.connection.content("GET", "/metrics")
        if METRIC not in content:
            raise self.connection.foreign("its metrics are others")
        return content.decode(errors="replace")

    @endpoint
    async def ready(self) -> bool:
        """Whether the service is ready for searches. Asks once, without retries."""
        try:
            await self.connection.content("GET", "/readyz", patience=Patience(busy_s=0, away_s=0))
        except ServiceError:
            return False
        return True

    # -- collections

    @endpoint
    async def collection(self, name: str) -> records.CollectionBody:
        found: records.CollectionBody = await self.request("GET", path_of(name))
        return found

    @endpoint
    async def create_collection(
        self, name: str, **settings: Unpack[sent.CreateCollection]
    ) -> records.CollectionBody:
        body = {"name": name, **settings}
        made: records.CollectionBody = await self.request("POST", COLLECTIONS, body)
        return made

    @endpoint
    async def ensure_collection(
        self, name: str, **settings: Unpack[sent.CreateCollection]
    ) -> records.CollectionBody:
        """Return the collection, creating it if it does not exist. Raises ServiceError, of kind `conflict`, for one
        that has another `model`, `language` or number of `dimensions` than those given."""
        try:
            found = await self.collection(name)
        except ServiceError as error:
            if error.status != 404:
                raise
            try:
                made: records.CollectionBody = await self.request(
                    "POST", COLLECTIONS, {"name": name, **settings}, twice=True
                )
                return made
            except ServiceError as refused:
                if refused.status != 409:
                    raise
            found = await self.collection(name)  # made since, maybe by a request whose connection broke
        for key in ("model", "language", "dimensions"):
            wanted, present = settings.get(key), found[key]
            if wanted is not None and wanted != present:
                raise ServiceError(
                    f"collection {name!r} exists with {key} {present!r}, not {wanted!r}, which is fixed at creation",
                    status=409,
                    kind="conflict",
                    param=key,
                )
        return found

    @endpoint
    async def collections(self) -> list[records.CollectionBody]:
        found: records.CollectionList = await self.request("GET", COLLECTIONS)
        return found["collections"]

    @endpoint
    async def quarantined(self) -> list[records.QuarantinedBody]:
        """Return name, aliases and reason of each collection that cannot serve."""
        found: records.CollectionList = await self.request("GET", COLLECTIONS)
        return found["quarantined"]

    @endpoint
    async def unavailable(self) -> list[records.UnavailableBody]:
        """Return name and reason of each collection in shards of which some are at nodes that do not answer."""
        found: records.CollectionList = await self.request("GET", COLLECTIONS)
        return found["unavailable"]

    @endpoint
    async def delete_collection(self, name: str) -> None:
        """Delete a collection with all its documents, by its own name, not an alias."""
        await self.request("DELETE", path_of(name))

    @endpoint
    async def rename_collection(self, name: str, new_name: str) -> records.CollectionBody:
        path, body = path_of(name, "rename"), {"name": new_name}
        renamed: records.CollectionBody = await self.request("POST", path, body)
        return renamed

    @endpoint
    async def rollback(self, collection: str) -> int:
        """Go back to the previous generation; returns its number."""
        return int((await self.request("POST", path_of(collection, "rollback")))["generation"])

    @endpoint
    async def set_alias(self, alias: str, collection: str) -> records.AliasBody:
        path, body = f"/v1/aliases/{quote(alias, safe='')}", {"collection": collection}
        made: records.AliasBody = await self.request("PUT", path, body)
        return made

    @endpoint
    async def remove_alias(self, alias: str) -> None:
        await self.request("DELETE", f"/v1/aliases/{quote(alias, safe='')}")

    # -- documents

    @endpoint
    async def write(
        self,
        collection: str,
        documents: Sequence[sent.SentDocument | Mapping[str, Any] | msgspec.Raw],
        *,
        patience: Patience | None = None,
    ) -> records.Written:
        """Write documents, which may be JSON already. Use `ingest` for more than one request may hold."""
        path, body = path_of(collection, "documents"), {"documents": documents}
        written: records.Written = await self.request("POST", path, body, patience=patience)
        return written

    @steps
    def ingest(
        self,
        collection: str,
        documents: Iterable[sent.SentDocument | Mapping[str, Any]],
        *,
        requests: int = REQUESTS_AT_ONCE,
        on_progress: OnProgress = lambda _: None,
        on_refused: OnRefused | None = None,
        total: Ingested | None = None,
        limits: records.RequestLimits | None = None,
        patience: Patience | None = None,
    ) -> Steps:
        """Write any number of documents, `requests` at a time; the last document with an id wins.

        Updates `total` and passes it to `on_progress` after each acknowledgement. Documents that cannot be written
        go to `on_refused`; without it, the first raises RefusedDocument. `limits` are the collection's, for callers
        that have already asked for them. Waits for a service that is busy or restarting, as `patience` (by default
        `bulk_patience()`) says, and its `waits_because` says why. Raises ServiceError if the
        service fails, stays unreachable or makes no progress, and any error of reading the documents; what was
        acknowledged remains written, and `Ingested.read` says where to resume.
        """
        return plan_ingestion(
            self.connection,
            collection,
            documents,
            requests=requests,
            on_progress=on_progress,
            on_refused=on_refused,
            total=total,
            limits=limits,
            patience=patience,
        )

    @endpoint
    async def patch(
        self, collection: str, document_id: str, metadata: JSON, **expires: Unpack[sent.PatchDocument]
    ) -> records.Written:
        """Merge into the document's metadata: None removes a key; keys that are not named stay."""
        path = path_of(collection, "documents", document_id)
        written: records.Written = await self.request("PATCH", path, {"metadata": metadata, **expires})
        return written

    @endpoint
    async def patch_documents(
        self, collection: str, metadata: JSON, **which: Unpack[sent.PatchDocuments]
    ) -> records.Patched:
        """Merge into the metadata of documents, by `ids` or by `filter`, as `patch` does."""
        path = path_of(collection, "documents", "patch")
        patched: records.Patched = await self.request("POST", path, {"metadata": metadata, **which})
        return patched

    @endpoint
    async def delete(self, collection: str, document_id: str) -> records.Deleted:
        deleted: records.Deleted = await self.request("DELETE", path_of(collection, "documents", document_id))
        return deleted

    @endpoint
    async def delete_documents(
        self, collection: str, **which: Unpack[sent.DeleteDocuments]
    ) -> records.Deleted:
        """Delete documents by `ids` or by `filter`."""
        deleted: records.Deleted = await self.request(
            "POST", path_of(collection, "documents", "delete"), which
        )
        return deleted

    @endpoint
    async def document(
        self, collection: str, document_id: str, *, vectors: bool = False
    ) -> records.DocumentBody:
        path = path_of(collection, "documents", document_id)
        found: records.DocumentBody = await self.request("GET", f"{path}?vectors=true" if vectors else path)
        return found

    @stream
    async def scroll(
        self, collection: str, **options: Unpack[sent.ScrollDocuments]
    ) -> AsyncIterator[records.DocumentBody]:
        """Yield every document in the order of writing, reading pages of `limit`; `cursor` is where to begin."""
        while True:
            page: records.ScrollPage = await self.request(
                "POST", path_of(collection, "documents", "scroll"), options
            )
            for document in page["documents"]:
                yield document
            if page["cursor"] is None:
                return
            options["cursor"] = page["cursor"]

    @endpoint
    async def count(self, collection: str, **options: Unpack[sent.CountDocuments]) -> records.CountBody:
        """Return `documents`, `passages` and the `seq` at which they were counted; `filter` restricts them."""
        counted: records.CountBody = await self.request(
            "POST", path_of(collection, "documents", "count"), options
        )
        return counted

    # -- search

    @endpoint
    async def search(self, collection: str, **search: Unpack[sent.SearchRequest]) -> answers.SearchAnswer:
        found: answers.SearchAnswer = await self.request("POST", path_of(collection, "search"), search)
        return found

    @endpoint
    async def search_collections(
        self, **search: Unpack[sent.SearchCollections]
    ) -> answers.SearchCollectionsAnswer:
        """Search several `collections`, whose vectors are of one model, with one ranking over all."""
        found: answers.SearchCollectionsAnswer = await self.request("POST", "/v1/search", search)
        return found

    @endpoint
    async def search_batch(
        self, collection: str, searches: Sequence[sent.SearchRequest | Mapping[str, Any]]
    ) -> list[answers.SearchAnswer]:
        """Return the answers in order. Raises ServiceError with the first error among them."""
        path, body = path_of(collection, "search", "batch"), {"searches": searches}
        results: list[Any] = (await self.request("POST", path, body))["results"]
        for result in results:
            if "error" in result:
                raise error_from(422, msgspec.json.encode(result), {})
        return results

    @endpoint
    async def context(self, collection: str, **wanted: Unpack[sent.ContextRequest]) -> answers.ContextAnswer:
        """Return passages for a prompt, within `token_budget`."""
        built: answers.ContextAnswer = await self.request("POST", path_of(collection, "context"), wanted)
        return built

    @endpoint
    async def explain(self, collection: str, **wanted: Unpack[sent.ExplainRequest]) -> answers.ExplainAnswer:
        """Explain why the document `document_id` is, or is not, among the hits of this search."""
        explained: answers.ExplainAnswer = await self.request("POST", path_of(collection, "explain"), wanted)
        return explained

    @endpoint
    async def assess(self, collection: str, **wanted: Unpack[sent.AssessRequest]) -> answers.Assessment:
        """Estimate the risk of an action or alert by the outcomes of the most similar past ones."""
        assessed: answers.Assessment = await self.request("POST", path_of(collection, "assess"), wanted)
        return assessed

    @endpoint
    async def answer(self, collection: str, **wanted: Unpack[sent.AnswerRequest]) -> answers.Answer:
        """Return a language model's answer from the documents, with citations."""
        answered: answers.Answer = await self.request("POST", path_of(collection, "answer"), wanted)
        return answered

    @stream
    def stream_answer(
        self, collection: str, **wanted: Unpack[sent.AnswerRequest]
    ) -> AsyncGenerator[JSON, None]:
        """Stream the answer in pieces, and finally the whole answer. Raises ServiceError also if the stream ends in
        an error, or before the whole answer."""
        body = {**wanted, "stream": True}
        return self.connection.events("POST", path_of(collection, "answer"), body)

    @endpoint
    async def embed(
        self,
        texts: Sequence[str],
        *,
        model: str | None = None,
        kind: str = "document",
        fingerprint: str | None = None,
        fallback: Sequence[str] = (),
    ) -> Embedded:
        """Return vectors of `texts`, which are of the kind `document` or `query`.

        They come from this service or, while it fails, from the first of the `fallback` services that answers. A
        fallback must serve a model with the same fingerprint: `fingerprint`, or that of this service's earlier
        answers. Raises ServiceError of the kind `model_mismatch` for another one.
        """
        return await embed_with_fallback(
            self.connection, texts, model=model, kind=kind, fingerprint=fingerprint, fallback=fallback
        )

    # -- ranking and feedback

    @endpoint
    async def set_ranking(
        self, collection: str, **settings: Unpack[sent.SetRanking]
    ) -> records.CollectionBody:
        """Set the collection's default ranking; returns the collection."""
        ranked: records.CollectionBody = await self.request("PUT", path_of(collection, "ranking"), settings)
        return ranked

    @endpoint
    async def reset_ranking(self, collection: str) -> None:
        """Return to the configured ranking."""
        await self.request("DELETE", path_of(collection, "ranking"))

    @endpoint
    async def hold(self, collection: str, seconds: float) -> records.HeldBody:
        """Have a collection refuse writes for so many seconds, at most 60, or end that with 0. Once it answers, what
        is read is all that was written before, and `seq` its last operation."""
        held: records.HeldBody = await self.request("PUT", path_of(collection, "hold"), {"seconds": seconds})
        return held

    @endpoint
    async def synonyms(self, collection: str) -> records.SynonymsBody:
        found: records.SynonymsBody = await self.request("GET", path_of(collection, "synonyms"))
        return found

    @endpoint
    async def set_synonyms(
        self, collection: str, **settings: Unpack[sent.SetSynonyms]
    ) -> records.SynonymsBody:
        """Set the lists of words and expressions that mean the same; empty lists remove them."""
        found: records.SynonymsBody = await self.request("PUT", path_of(collection, "synonyms"), settings)
        return found

    @endpoint
    async def send_feedback(
        self, collection: str, feedback: Sequence[sent.SentFeedback | Mapping[str, Any]]
    ) -> records.FeedbackKept:
        """Send judgments and clicks; returns how many were kept, and the ids of documents that do not exist."""
        path, body = path_of(collection, "feedback"), {"feedback": feedback}
        said: records.FeedbackKept = await self.request("POST", path, body)
        return said

    @endpoint
    async def feedback(self, collection: str) -> list[records.FeedbackBody]:
        found: records.FeedbackList = await self.request("GET", path_of(collection, "feedback"))
        return found["feedback"]

    @endpoint
    async def forget_feedback(self, collection: str) -> None:
        await self.request("DELETE", path_of(collection, "feedback"))

    # -- jobs: each of these starts one and returns its id

    @endpoint
    async def reindex(self, collection: str, **options: Unpack[sent.Reindex]) -> str:
        started = await self.request("POST", path_of(collection, "reindex"), options)
        return str(started["job"])

    @endpoint
    async def tune(self, collection: str, **options: Unpack[sent.Tune]) -> str:
        return str((await self.request("POST", path_of(collection, "tune"), options))["job"])

    @endpoint
    async def erase(self, collection: str) -> str:
        return str((await self.request("POST", path_of(collection, "erase")))["job"])

    @endpoint
    async def jobs(self) -> list[records.JobBody]:
        """Return all jobs since the service's start, newest first."""
        listed: records.JobList = await self.request("GET", "/v1/jobs")
        return listed["jobs"]

    @endpoint
    async def job(self, job_id: str) -> records.JobBody:
        found: records.JobBody = await self.request("GET", f"/v1/jobs/{job_id}")
        return found

    @endpoint
    async def finished(
        self, job_id: str, *, on_progress: OnStage = lambda *_: None, timeout_s: float = 7200
    ) -> records.JobBody:
        """Wait for a job. Raises ServiceError if it did not succeed."""
        job = await self.ended(job_id, on_progress=on_progress, timeout_s=timeout_s)
        if job["status"] != "succeeded":
            raise failure_of(job)
        return job

    @endpoint
    async def ended(
        self, job_id: str, *, on_progress: OnStage = lambda *_: None, timeout_s: float = 7200
    ) -> records.JobBody:
        """Wait until a job has ended, successfully or not. Raises ServiceError if it takes too long."""
        deadline = time.monotonic() + timeout_s
        while (job := await self.job(job_id))["status"] in ("queued", "running"):
            if time.monotonic() > deadline:
                raise ServiceError(f"job {job_id} is still {job['status']} after {timeout_s:g} s")
            at = job["progress"]
            on_progress(at["stage"], at["done"], at["total"])
            await asyncio.sleep(POLL_S)
        return job


def failure_of(job: records.JobBody) -> ServiceError:
    message = f"{job['kind']} of {job['collection'] or 'shards'} {job['status']}: {job['error']}"
    return ServiceError(message, status=500, kind=job["status"])

"""A client for the service: what the commands of `jobs` and the tests speak through.

    async with Client("http://127.0.0.1:8080") as client:
        answer = await client.search("docs", query="how do refunds work")

Answers are plain JSON values. An error answer raises ServiceError with the service's own words; a service that
cannot be reached raises it too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

import aiohttp
import msgspec

if TYPE_CHECKING:  # numpy comes with it, which doubles the start of a command
    from indexes import Progress

JSON = dict[str, Any]
TIMEOUT_S = 300.0
CONNECT_S = 30.0
POLL_S = 0.2


class ServiceError(Exception):
    """The service refused or failed. `status` is 0 if it was not reached, `retry_after_s` how long it asks to wait."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        kind: str = "unreachable",
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.kind = kind
        self.param = param
        self.retry_after_s = retry_after_s


class Client:
    """One connection pool to one service, as an async context manager. Raises ServiceError for a url without http.

    `timeout_s` is for a whole request, its answer included.
    """

    def __init__(self, url: str, *, timeout_s: float = TIMEOUT_S) -> None:
        if not url.startswith(("http://", "https://")):
            raise ServiceError(f"{url!r} is no address of a service; expected http://HOST:PORT")
        self.url = url.rstrip("/")
        self._timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_S)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(timeout=self._timeout)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def request(self, method: str, path: str, body: object = None) -> Any:
        """The decoded answer, None for an empty one."""
        content = await self._content(method, path, body)
        return msgspec.json.decode(content) if content else None

    async def metrics(self) -> str:
        """What GET /metrics says, in Prometheus's text format."""
        return (await self._content("GET", "/metrics")).decode()

    async def _content(self, method: str, path: str, body: object = None) -> bytes:
        assert self._session is not None, "use the client as an async context manager"
        data = None if body is None else msgspec.json.encode(body)
        headers = {"Content-Type": "application/json"} if data is not None else None
        try:
            async with self._session.request(method, self.url + path, data=data, headers=headers) as answer:
                content = await answer.read()
                if answer.status >= 400:
                    raise error_from(answer.status, content, answer.headers)
                return content
        except TimeoutError:
            raise ServiceError(f"{self.url} did not answer in time") from None
        except aiohttp.ClientConnectorError as error:
            reason = error.os_error.strerror or error.os_error
            raise ServiceError(
                f"{self.url} cannot be reached ({reason}); is the service running there?"
            ) from None
        except aiohttp.ClientError as error:
            raise ServiceError(f"{self.url} cannot be reached: {error}") from None

    async def _json(self, method: str, path: str, body: object = None) -> JSON:
        found: JSON = await self.request(method, path, body)
        return found

    # -- collections

    async def collection(self, name: str) -> JSON:
        return await self._json("GET", path_of(name))

    async def create_collection(self, name: str, **settings: object) -> JSON:
        return await self._json("POST", "/v1/collections", {"name": name, **settings})

    async def ensure_collection(self, name: str, **settings: object) -> JSON:
        """The collection, made if it does not exist."""
        try:
            return await self.collection(name)
        except ServiceError as error:
            if error.status != 404:
                raise
        return await self.create_collection(name, **settings)

    async def collections(self) -> list[JSON]:
        found: list[JSON] = (await self.request("GET", "/v1/collections"))["collections"]
        return found

    async def quarantined(self) -> list[JSON]:
        """Name, aliases and reason of each collection that cannot serve."""
        found: list[JSON] = (await self.request("GET", "/v1/collections"))["quarantined"]
        return found

    async def delete_collection(self, name: str) -> None:
        """With all its documents. By its own name, not an alias."""
        await self.request("DELETE", path_of(name))

    async def rename_collection(self, name: str, new_name: str) -> JSON:
        return await self._json("POST", path_of(name, "rename"), {"name": new_name})

    async def rollback(self, collection: str) -> int:
        """Serve the generation before the present one again; returns its number."""
        return int((await self.request("POST", path_of(collection, "rollback")))["generation"])

    async def set_alias(self, alias: str, collection: str) -> JSON:
        return await self._json("PUT", f"/v1/aliases/{quote(alias, safe='')}", {"collection": collection})

    # -- documents

    async def write(self, collection: str, documents: Sequence[JSON | msgspec.Raw]) -> JSON:
        """Write documents, which may be JSON already."""
        return await self._json("POST", path_of(collection, "documents"), {"documents": documents})

    async def patch(self, collection: str, document_id: str, metadata: JSON) -> JSON:
        """Merge into the document's metadata: a null (None) removes a key, keys that are not named stay."""
        return await self._json(
            "PATCH", path_of(collection, "documents", document_id), {"metadata": metadata}
        )

    async def delete(self, collection: str, document_id: str) -> JSON:
        return await self._json("DELETE", path_of(collection, "documents", document_id))

    async def document(self, collection: str, document_id: str, *, vectors: bool = False) -> JSON:
        path = path_of(collection, "documents", document_id)
        return await self._json("GET", f"{path}?vectors=true" if vectors else path)

    async def scroll(self, collection: str, **options: object) -> AsyncIterator[JSON]:
        """Every document in the order of writing, a page of `limit` at a time.

        Options are those of the endpoint: `filter`, `limit`, `vectors`, `text`, and a `cursor` to begin at.
        """
        while True:
            page = await self._json("POST", path_of(collection, "documents", "scroll"), options)
            for document in page["documents"]:
                yield document
            if page["cursor"] is None:
                return
            options["cursor"] = page["cursor"]

    async def count(self, collection: str, **options: object) -> JSON:
        """`documents`, `passages` and the `seq` at which they were counted; `filter` narrows it."""
        return await self._json("POST", path_of(collection, "documents", "count"), options)

    # -- search

    async def search(self, collection: str, **search: object) -> JSON:
        return await self._json("POST", path_of(collection, "search"), search)

    async def context(self, collection: str, **wanted: object) -> JSON:
        """Passages for a prompt: `query`, `token_budget`, and the other options of the endpoint."""
        return await self._json("POST", path_of(collection, "context"), wanted)

    async def search_batch(self, collection: str, searches: list[JSON]) -> list[JSON]:
        """Answers in order. Raises ServiceError with the first error among them."""
        answer = await self._json("POST", path_of(collection, "search", "batch"), {"searches": searches})
        results: list[JSON] = answer["results"]
        for result in results:
            if "error" in result:
                raise refusal(result["error"], status=422)
        return results

    # -- ranking and feedback

    async def set_ranking(self, collection: str, **settings: object) -> JSON:
        """Rank so where a search does not say; returns the collection."""
        return await self._json("PUT", path_of(collection, "ranking"), settings)

    async def reset_ranking(self, collection: str) -> None:
        """Rank as configured again."""
        await self.request("DELETE", path_of(collection, "ranking"))

    async def send_feedback(self, collection: str, feedback: Sequence[JSON]) -> int:
        """Judgments and clicks; returns how many were kept."""
        return int(
            (await self._json("POST", path_of(collection, "feedback"), {"feedback": feedback}))["kept"]
        )

    async def feedback(self, collection: str) -> list[JSON]:
        found: list[JSON] = (await self.request("GET", path_of(collection, "feedback")))["feedback"]
        return found

    # -- jobs: each of these starts one and returns its id

    async def reindex(self, collection: str, **options: object) -> str:
        return await self._started(path_of(collection, "reindex"), options)

    async def tune(self, collection: str, **options: object) -> str:
        return await self._started(path_of(collection, "tune"), options)

    async def erase(self, collection: str) -> str:
        return await self._started(path_of(collection, "erase"))

    async def _started(self, path: str, body: object = None) -> str:
        return str((await self._json("POST", path, body))["job"])

    async def job(self, job_id: str) -> JSON:
        return await self._json("GET", f"/v1/jobs/{job_id}")

    async def finished(
        self, job_id: str, *, on_progress: Progress = lambda *_: None, timeout_s: float = 7200
    ) -> JSON:
        """Wait for a job; raises ServiceError if it did not succeed."""
        job = await self.ended(job_id, on_progress=on_progress, timeout_s=timeout_s)
        if job["status"] != "succeeded":
            raise failure_of(job)
        return job

    async def ended(
        self, job_id: str, *, on_progress: Progress = lambda *_: None, timeout_s: float = 7200
    ) -> JSON:
        """Wait for a job, whatever comes of it. Raises ServiceError if it is not over in time."""
        deadline = time.monotonic() + timeout_s
        while (job := await self.job(job_id))["status"] in ("queued", "running"):
            if time.monotonic() > deadline:
                raise ServiceError(f"job {job_id} is still {job['status']} after {timeout_s:g} s")
            at = job["progress"]
            on_progress(at["stage"], at["done"], at["total"])
            await asyncio.sleep(POLL_S)
        return job

    async def ready(self) -> bool:
        try:
            await self.request("GET", "/readyz")
        except ServiceError:
            return False
        return True


def path_of(collection: str, *below: str) -> str:
    return "/v1/collections/" + "/".join(quote(part, safe="") for part in (collection, *below))


def refusal(detail: JSON, *, status: int, retry_after_s: float | None = None) -> ServiceError:
    """From the service's own description of an error."""
    return ServiceError(
        detail["message"],
        status=status,
        kind=detail["type"],
        param=detail.get("param"),
        retry_after_s=retry_after_s,
    )


def failure_of(job: JSON) -> ServiceError:
    message = f"{job['kind']} of {job['collection']} {job['status']}: {job['error']}"
    return ServiceError(message, status=500, kind=job["status"])


def error_from(status: int, content: bytes, headers: Mapping[str, str]) -> ServiceError:
    wait_s = retry_after_s(headers)
    try:
        return refusal(msgspec.json.decode(content)["error"], status=status, retry_after_s=wait_s)
    except (msgspec.DecodeError, KeyError, TypeError):
        message = f"status {status}: {content[:200]!r}"
        return ServiceError(message, status=status, kind="unknown", retry_after_s=wait_s)


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait, by the finer of the two headers; None where there is none, or a date as proxies may send."""
    for name, unit_s in (("Retry-After-Ms", 0.001), ("Retry-After", 1.0)):
        written = headers.get(name, "")
        if written.isascii() and written.isdigit():
            return int(written) * unit_s
    return None

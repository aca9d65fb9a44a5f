"""Operations that the integrations with other frameworks share, on a collection's documents.

Each operation is one coroutine, which `CollectionStore` runs for callers with and without an event loop.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

from retrieval.clients.blocking import Core
from retrieval.clients.bulk import Refused, RefusedDocument
from retrieval.clients.client import Client
from retrieval.clients.endpoints import Endpoints
from retrieval.clients.errors import ServiceError
from retrieval.clients.wire.requests import SearchRequest

if TYPE_CHECKING:
    from retrieval.clients.wire.answers import Hit
    from retrieval.clients.wire.records import DocumentBody

P = ParamSpec("P")
T = TypeVar("T")
Document = TypeVar("Document", bound=Mapping[str, Any])

IDS_PER_REQUEST = 1000
READ_AT_ONCE = 8
PAGE = 100
BLANKS_NAMED = 5
# The fields of a hit on its source and quality; its text and metadata are returned separately.
PROVENANCE = ("document_id", "passage", "start", "end", "title", "heading", "score", "relevance")


class CollectionStore:
    """A collection and the client for it. Safe to use from several threads and event loops. Copies share the client.
    A pickled store holds no access key: where it is loaded, a new client reads NEARLINE_KEY."""

    def __init__(
        self,
        collection: str,
        *,
        url: str | None,
        client: Client | None,
        create: bool,
        own_vectors: bool = False,
    ) -> None:
        """Without `client`, a new client for `url` is used. `create` creates the collection if it does not exist; with
        `own_vectors`, for vectors as long as the first that is sent."""
        self.collection = collection
        self.client = client or Client(url)
        self._create, self._own_vectors = create, own_vectors

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, _: Any) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(
            CollectionStore,
            self.collection,
            url=None,
            client=self.client,
            create=self._create,
            own_vectors=self._own_vectors,
        ), ()

    def run(
        self,
        work: Callable[Concatenate[Endpoints, str, P], Coroutine[Any, Any, T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        return self.client.run(lambda core: self._done(core, work, *args, **kwargs))

    async def awaited(
        self,
        work: Callable[Concatenate[Endpoints, str, P], Coroutine[Any, Any, T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        return await self.client.awaited(lambda core: self._done(core, work, *args, **kwargs))

    async def _done(
        self,
        core: Core,
        work: Callable[Concatenate[Endpoints, str, P], Coroutine[Any, Any, T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        assert isinstance(core, Endpoints)
        try:
            return await work(core, self.collection, *args, **kwargs)
        except ServiceError as error:
            if error.status != 404 or not self._create:
                raise
            absent = error
        try:
            length = length_of_vectors(args) if self._own_vectors else None
            await core.create_collection(self.collection, dimensions=length)
        except ServiceError as error:
            if error.status == 403:  # the key may not create collections
                raise absent from None
            if error.status != 409:  # another client has just created it
                raise
        self._create = False
        return await work(core, self.collection, *args, **kwargs)


def length_of_vectors(sent: Sequence[object]) -> int | None:
    """Return the length of the first vector in documents or a search; None without one."""
    for one in sent:
        for each in one if isinstance(one, list) else [one]:
            if isinstance(each, Mapping) and each.get("vector") is not None:
                return len(each["vector"])
    return None


async def write(core: Endpoints, collection: str, documents: Iterable[Mapping[str, Any]]) -> None:
    """Write documents durably. Raises RefusedDocument for the first that cannot be written."""
    await core.ingest(collection, documents)


async def write_with_text(core: Endpoints, collection: str, documents: Sequence[Mapping[str, Any]]) -> None:
    """Write the documents that have a text durably, and delete those whose new text is blank. The last document with
    an id wins. Raises RefusedDocument for the first that cannot be written, after all others are."""
    last = {one["id"]: one for one in documents}
    await remove(core, collection, [name for name, one in last.items() if is_blank(one)])
    places = [at for at, one in enumerate(documents) if not is_blank(last[one["id"]]) and not is_blank(one)]
    refused: list[Refused] = []
    await core.ingest(collection, [documents[at] for at in places], on_refused=refused.append)
    if refused:
        first = min(refused, key=lambda one: one.position)
        place, others = places[first.position], len(refused) - 1
        told = f"number {place} of {len(documents)}, from 0" + (f", and {others} others" if others else "")
        raise RefusedDocument(
            replace(first, position=place, reason=f"{first.reason} ({told}; the rest is stored)")
        )


def is_blank(document: Mapping[str, Any]) -> bool:
    return not document["text"].strip()


def without_blanks(documents: Sequence[Document]) -> list[Document]:
    """Return the documents that have a text; a warning names the others, at the line that called the caller's
    method."""
    blank = [f"number {at} ({one['id']!r})" for at, one in enumerate(documents) if is_blank(one)]
    if blank:
        named = ", ".join(blank[:BLANKS_NAMED]) + (", ..." if len(blank) > BLANKS_NAMED else "")
        warnings.warn(
            f"{len(blank)} of {len(documents)} texts are blank and not stored, because no search could find them: "
            f"{named}",
            stacklevel=3,
        )
    return [one for one in documents if not is_blank(one)]


async def search_hits(core: Endpoints, collection: str, search: Mapping[str, Any]) -> list[Hit]:
    return (await core.search(collection, **search))["hits"]


async def read_documents(core: Endpoints, collection: str, ids: Sequence[str]) -> list[DocumentBody]:
    """Return whole documents in the order of `ids`, each once, without those that do not exist."""
    reading = asyncio.Semaphore(READ_AT_ONCE)

    async def read(document_id: str) -> DocumentBody | None:
        async with reading:
            try:
                return await core.document(collection, document_id)
            except ServiceError as error:
                if error.status != 404:
                    raise
                return None

    documents = await asyncio.gather(*map(read, dict.fromkeys(several(ids))))
    return [document for document in documents if document is not None]


async def matching(core: Endpoints, collection: str, condition: Any) -> list[DocumentBody]:
    """Return whole documents that match a filter (None: all), in the order of writing."""
    which = {} if condition is None else {"filter": condition}
    return [one async for one in core.scroll(collection, limit=PAGE, **which)]


async def remove(core: Endpoints, collection: str, ids: Iterable[str]) -> int:
    """Delete these documents and return how many existed."""
    rest, number = iter(several(ids)), 0
    while part := list(islice(rest, IDS_PER_REQUEST)):
        number += (await core.delete_documents(collection, ids=part))["deleted"]
    return number


async def remove_matching(core: Endpoints, collection: str, condition: Any) -> int:
    """Delete the documents that match a filter; None deletes all."""
    if condition is not None:
        return (await core.delete_documents(collection, filter=condition))["deleted"]
    ids = [one["id"] async for one in core.scroll(collection, limit=PAGE, text=False)]
    return await remove(core, collection, ids)


def several(given: Iterable[str]) -> Iterable[str]:
    """Return what was given. Raises TypeError for one string, whose letters would be taken for strings."""
    if isinstance(given, str):
        raise TypeError(f"expected a list of strings, found the string {given!r}")
    return given


def provenance(hit: Hit) -> dict[str, Any]:
    """Return the fields of PROVENANCE that a hit has."""
    return {name: value for name in PROVENANCE if (value := hit.get(name)) is not None}


def check_options(search: Mapping[str, Any]) -> None:
    """Raises TypeError for unknown search options, so that a misspelled `url` is not passed on as one."""
    if unknown := search.keys() - SearchRequest.__annotations__.keys():
        raise TypeError(
            f"unexpected arguments {', '.join(sorted(unknown))}: neither arguments nor options of a search"
        )


def without_none(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}

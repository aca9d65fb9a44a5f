"""The Python client of a Nearline service, for code with and without an event loop.

    from nearline import Client

    with Client("http://127.0.0.1:8080") as client:
        client.ensure_collection("docs")
        client.ingest("docs", [{"id": "refunds", "text": "Refunds take five days."}])
        for hit in client.search("docs", query="how long do refunds take")["hits"]:
            print(hit["document_id"], hit["text"])

`AsyncClient` has the same methods as coroutines. Importing this loads neither models nor indexes.
"""

from __future__ import annotations

from retrieval.clients.bulk import Ingested, Refused, RefusedDocument, bulk_patience
from retrieval.clients.client import AsyncClient, Client
from retrieval.clients.embedding import Embedded
from retrieval.clients.errors import ServiceError
from retrieval.clients.replies import JSON
from retrieval.clients.transport import Patience, path_of
from retrieval.clients.wire.answers import Citation, ContextAnswer, Hit, SearchAnswer
from retrieval.clients.wire.records import CollectionBody, DocumentBody, JobBody, Written
from retrieval.clients.wire.requests import SearchRequest, SentDocument

__all__ = [
    "JSON",
    "AsyncClient",
    "Citation",
    "Client",
    "CollectionBody",
    "ContextAnswer",
    "DocumentBody",
    "Embedded",
    "Hit",
    "Ingested",
    "JobBody",
    "Patience",
    "Refused",
    "RefusedDocument",
    "SearchAnswer",
    "SearchRequest",
    "SentDocument",
    "ServiceError",
    "Written",
    "bulk_patience",
    "path_of",
]

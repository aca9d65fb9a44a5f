"""Examples for the API description: what its page sends when a reader tries a path.

Each of them succeeds; those that rerank need a configured reranker. They tell one story, in the order of a first
use: create the collection `docs`, write two documents, search them.
"""

from __future__ import annotations

from typing import Any

from retrieval.access import schemas as auth_schemas
from retrieval.dialects import cohere, ollama, openai, rerank, tei
from retrieval.dialects import vector_store_schemas as stores
from retrieval.server.openapi import Examples
from retrieval.wire import (
    answer as answer_schemas,
)
from retrieval.wire import (
    assess as assess_schemas,
)
from retrieval.wire import (
    collections as collection_schemas,
)
from retrieval.wire import (
    documents as document_schemas,
)
from retrieval.wire import (
    evaluation as evaluation_schemas,
)
from retrieval.wire import (
    explain as explain_schemas,
)
from retrieval.wire import (
    search as schemas,
)

JSON = dict[str, Any]

QUERY = "how long do refunds take?"
ENGLISH = {"type": "eq", "key": "lang", "value": "en"}
TEXTS = ["Refunds are paid within 14 days.", "We ship on weekdays."]
DOCUMENTS = [
    {"id": "refunds", "title": "Refunds", "text": TEXTS[0], "metadata": {"lang": "en", "year": 2026}},
    {"id": "shipping", "title": "Shipping", "text": TEXTS[1], "metadata": {"lang": "en", "year": 2025}},
]
FILE, BATCH = "file-68f0c2a19d3be47d5a1c0e92", "vsfb_69a4f1c2a19d3be47d5a1c0e"  # the service creates ids


Bodies = dict[type[Any], dict[str, JSON]]  # named examples for each type of request

SEARCHING: Bodies = {
    schemas.SearchRequest: {
        "a question": {"query": QUERY, "k": 5},
        "with a filter": {"query": QUERY, "k": 5, "filter": ENGLISH},
        "by words, one hit per document": {
            "query": "refunds",
            "mode": "lexical",
            "group_by_document": True,
        },
        "more like a document": {"like": ["refunds"]},
        "the next hits, with highlights": {"query": QUERY, "k": 1, "offset": 1, "highlight": True},
        "with the surrounding text": {"query": QUERY, "expand": {"before": 1, "after": 1}},
        "counted by language and year": {
            "query": QUERY,
            "facets": ["lang", {"key": "year", "ranges": [2020, 2026]}],
        },
        "the newest among the best": {"query": QUERY, "sort": [{"key": "year", "order": "desc"}]},
        "newer is better": {"query": QUERY, "boosts": [{"key": "year", "weight": 0.001}]},
        "with a phrase and a prefix": {"query": '"within 14 days" refund*', "operators": True},
        "in a known language": {"query": QUERY, "language": "en"},
        "weighted fusion, explained": {
            "query": QUERY,
            "fusion": {"method": "weighted", "weights": {"dense": 0.7, "lexical": 0.3}},
            "explain": True,
        },
        "the exact neighbors": {"query": QUERY, "mode": "dense", "exact": True, "cache": False},
    },
    schemas.SearchCollections: {
        "of one collection or more": {"collections": ["docs"], "query": QUERY, "k": 5}
    },
    schemas.SearchBatch: {
        "two questions": {"searches": [{"query": QUERY, "k": 3}, {"query": "when do you ship?", "k": 3}]}
    },
    schemas.ContextRequest: {
        "for a prompt": {"query": QUERY, "token_budget": 500},
        "for two questions, as chat messages": {
            "queries": [QUERY, "when do you ship?"],
            "token_budget": 500,
            "tokenizer": "o200k_base",
            "format": "messages",
        },
        "a custom template, explained": {
            "query": QUERY,
            "token_budget": 500,
            "template": "[{number}] {title}: {text}",
            "explain": True,
        },
    },
    explain_schemas.ExplainRequest: {
        "why it is not the first hit": {"query": QUERY, "k": 1, "document_id": "shipping"},
        "with a filter": {"query": QUERY, "filter": ENGLISH, "document_id": "refunds"},
    },
    answer_schemas.AnswerRequest: {
        "a question": {"query": QUERY},
        "with your own instruction": {"query": QUERY, "instruction": "Answer in one short sentence."},
    },
    assess_schemas.AssessRequest: {
        "an action": {"action": "Pay the refund of order 17 by hand"},
        "an alert, and what counts as bad": {
            "action": {"labels": {"service": "refunds"}, "annotations": {"summary": "refunds are late"}},
            "outcome": {"key": "lang", "bad": ["fr"]},
        },
    },
}

# Managing collections, documents, jobs and keys.
KEEPING: Bodies = {
    collection_schemas.CreateCollection: {
        "a collection": {"name": "docs"},
        "with a small hot tier": {"name": "tickets", "hot_capacity": 2_000},
        "for vectors of your own": {"name": "papers", "dimensions": 1536},
        "of German documents": {"name": "handbuch", "language": "de"},
    },
    collection_schemas.MoveShard: {"one shard": {"shard": "docs~2of6", "to": "c"}},
    collection_schemas.BalanceShards: {"all nodes": {}, "a node that shall be empty": {"without": ["b"]}},
    auth_schemas.CreateKey: {
        "for a search page": {"name": "website", "scopes": ["search"], "collections": ["docs"]},
        "for the ingest of a tenant": {"scopes": ["write"], "tenant": "acme", "expires_s": 7_776_000},
        "for a partner": {"scopes": ["search"], "limits": {"per_second": 5, "per_day": 10_000, "at_once": 2}},
    },
    auth_schemas.RotateKey: {"an hour to change over": {"grace_s": 3600}},
    collection_schemas.RenameCollection: {"another name": {"name": "handbook"}},
    collection_schemas.SetAlias: {"an alias": {"collection": "docs"}},
    document_schemas.WriteDocuments: {"two documents": {"documents": DOCUMENTS}},
    document_schemas.PatchDocument: {"a new year, no language": {"metadata": {"year": 2027, "lang": None}}},
    collection_schemas.SendFeedback: {
        "a judgment and a click": {
            "feedback": [
                {"query": QUERY, "document_id": "refunds", "grade": 3},
                {"query": "delivery", "document_id": "shipping", "shown": ["refunds", "shipping"]},
            ]
        }
    },
    collection_schemas.SetSynonyms: {"an abbreviation": {"synonyms": [["SLA", "service level agreement"]]}},
    collection_schemas.HoldWrites: {"the end of it": {"seconds": 0}},
    collection_schemas.SetRanking: {"more weight on meaning": {"method": "weighted", "weight_dense": 0.85}},
    evaluation_schemas.KeepEvaluation: {
        "a recall": {"report": {"version": 2, "cohorts": [{"name": "overall", "recall": 0.98}]}}
    },
    document_schemas.ScrollDocuments: {
        "the first page": {"limit": 100},
        "with a filter, without texts": {"filter": ENGLISH, "text": False},
    },
    document_schemas.CountDocuments: {"all": {}, "those that match": {"filter": ENGLISH}},
    document_schemas.PatchDocuments: {
        "other readers, by filter": {
            "filter": ENGLISH,
            "metadata": {"acl": ["sales", "support"]},
        },
        "by id": {"ids": ["refunds"], "metadata": {"year": 2027}},
    },
    document_schemas.DeleteDocuments: {
        "by id": {"ids": ["shipping"]},
        "by filter": {"filter": {"type": "lt", "key": "year", "value": 2020}},
    },
    collection_schemas.Reindex: {
        "as configured": {},
        "with a hot tier of this size": {"hot_capacity": 10_000},
    },
    collection_schemas.Tune: {"only measure": {"recall_target": 0.95, "apply": False}},
}


def make_examples(model: str, reranker: str = "reranker") -> Examples:
    """Return the examples. `model` is the default model of collections, `reranker` the configured one."""
    path = {
        "collection": "docs",
        "key": "1f00aa31c2d4",
        "id": "refunds",
        "alias": "help",
        "model": model,
        "file": FILE,
        "batch": BATCH,
    }
    return Examples(path, SEARCHING | KEEPING | for_other_clients(model, reranker))


def for_other_clients(model: str, reranker: str) -> Bodies:
    """Return examples for the APIs of other servers."""
    return {
        openai.OpenAIEmbeddingRequest: {"two texts": {"model": model, "input": TEXTS}},
        stores.OpenAICreateVectorStore: {
            "a vector store": {"name": "Support FAQ", "metadata": {"team": "support"}}
        },
        stores.OpenAIUpdateVectorStore: {"another name": {"name": "Questions and answers"}},
        stores.OpenAIStoreSearch: {
            "a question": {"query": QUERY, "max_num_results": 5},
            "two at once, with a filter": {"query": [QUERY, "when do you ship?"], "filters": ENGLISH},
        },
        stores.OpenAIUploadFile: {"a file": {"file": TEXTS[0], "purpose": "assistants"}},
        stores.OpenAIAttachFile: {"with an attribute": {"file_id": FILE, "attributes": {"lang": "en"}}},
        stores.OpenAISetAttributes: {"an attribute": {"attributes": {"lang": "en"}}},
        stores.OpenAIAttachFiles: {"a file": {"file_ids": [FILE]}},
        ollama.OllamaEmbed: {"two texts": {"model": model, "input": TEXTS}},
        ollama.OllamaEmbeddings: {"a text": {"model": model, "prompt": TEXTS[0]}},
        ollama.OllamaShow: {"the default model": {"model": model}},
        tei.TeiEmbed: {"two texts": {"inputs": TEXTS}},
        tei.TeiSimilarity: {
            "a sentence and two others": {"inputs": {"source_sentence": QUERY, "sentences": TEXTS}}
        },
        cohere.CohereEmbed: {
            "two documents": {"model": model, "input_type": "search_document", "texts": TEXTS}
        },
        rerank.JinaRerank: {"two texts": {"model": reranker, "query": QUERY, "documents": TEXTS}},
        rerank.TeiRerank: {"two texts": {"query": QUERY, "texts": TEXTS}},
        rerank.CohereRerank: {"two texts": {"model": reranker, "query": QUERY, "documents": TEXTS}},
    }

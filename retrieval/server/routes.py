"""Every path of the service, in one table that the router and the API description both read."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from aiohttp import web

from retrieval.access import schemas as auth_schemas
from retrieval.access.auth import Needed
from retrieval.admission.gates import Load
from retrieval.cluster import moves
from retrieval.cluster import state as cluster
from retrieval.context.llm import EVENT_STREAM
from retrieval.dialects import (
    cohere,
    file_batches,
    files,
    ollama,
    openai,
    rerank,
    tei,
    vector_store_files,
    vector_stores,
)
from retrieval.dialects import vector_store_schemas as stores
from retrieval.handlers import (
    answers,
    assess,
    auth,
    collections,
    documents,
    evaluation,
    explain,
    feedback,
    jobs,
    search,
    system,
    ui,
    watch,
)
from retrieval.handlers.browsers import FORM
from retrieval.handlers.error_shapes import (
    CohereErrorBody,
    JinaErrorBody,
    OllamaErrorBody,
    OpenAIErrorBody,
    TeiErrorBody,
    dialect_of,
)
from retrieval.handlers.state import API, CONFIG, LOADS, PARAMETERS, SCOPES
from retrieval.server.examples import make_examples
from retrieval.server.openapi import Route, describe
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

C = "/v1/collections/{collection}"


SEARCH, DOCUMENTS, COLLECTIONS, JOBS, SYSTEM = "search", "documents", "collections", "jobs", "system"
FEEDBACK, ACCESS = "feedback", "access keys"
OPENAI, OLLAMA, TEI, COHERE, JINA = "openai", "ollama", "tei", "cohere", "jina"
STORES, VS = "openai vector stores", "/v1/vector_stores/{collection}"

# method, path, handler, summary, tag; then the wire types of request and answer, the status, and what else applies
ROUTES = (
    Route("POST", f"{C}/search", search.search, "Search passages", SEARCH,
          schemas.SearchRequest, schemas.SearchAnswer, load="search", scope="search"),
    Route("POST", "/v1/search", search.search_collections, "Search several collections, with one ranking", SEARCH,
          schemas.SearchCollections, schemas.SearchCollectionsAnswer, load="heavy", scope="search"),
    Route("POST", f"{C}/search/batch", search.search_batch, "Several searches at once", SEARCH,
          schemas.SearchBatch, schemas.SearchBatchAnswer, load="heavy", scope="search"),
    Route("POST", f"{C}/context", search.context, "Passages for a prompt, within a token budget", SEARCH,
          schemas.ContextRequest, schemas.ContextAnswer, load="heavy", scope="search"),
    Route("POST", f"{C}/answer", answers.answer, "Let a language model answer from passages, with citations", SEARCH,
          answer_schemas.AnswerRequest, answer_schemas.Answer, load="answer", streams=True, scope="search"),
    Route("POST", f"{C}/assess", assess.assess, "How risky an action is, judged by similar past events", SEARCH,
          assess_schemas.AssessRequest, assess_schemas.Assessment, load="search", scope="search"),
    Route("POST", f"{C}/explain", explain.explain, "Why a document is, or is not, among the hits", SEARCH,
          explain_schemas.ExplainRequest, explain_schemas.ExplainAnswer, load="heavy", scope="search"),
    Route("POST", f"{C}/watch", watch.watch, "Stream the hits that writes bring into a search's first k", SEARCH,
          schemas.SearchRequest, media=EVENT_STREAM, load="watch", scope="search"),
    Route("POST", f"{C}/feedback", feedback.write, "Judgments and clicks, for `nearline learn`", FEEDBACK,
          collection_schemas.SendFeedback, collection_schemas.FeedbackKept, scope="search"),
    Route("GET", f"{C}/feedback", feedback.list_feedback, "All feedback about documents that exist", FEEDBACK,
          None, collection_schemas.FeedbackList, load="heavy", scope="admin"),
    Route("DELETE", f"{C}/feedback", feedback.delete, "Forget all feedback of a collection", FEEDBACK, status=204,
          scope="admin"),
    Route("POST", f"{C}/documents", documents.write, "Write documents, replacing those of the same id", DOCUMENTS,
          document_schemas.WriteDocuments, document_schemas.Written, gives={"id": "$request.body#/documents/0/id"},
          load="write", scope="write"),
    Route("GET", f"{C}/documents", documents.list_page, "List documents in the order they were written", DOCUMENTS,
          None, document_schemas.DocumentPage, parameters=("cursor", "limit", "vectors"), load="heavy",
          scope="search"),
    Route("POST", f"{C}/documents/scroll", documents.scroll, "Page through all or matching documents", DOCUMENTS,
          document_schemas.ScrollDocuments, document_schemas.ScrollPage, load="heavy", scope="search"),
    Route("POST", f"{C}/documents/count", documents.count, "Count all or matching documents", DOCUMENTS,
          document_schemas.CountDocuments, document_schemas.CountBody, load="search", scope="search"),
    Route("POST", f"{C}/documents/delete", documents.delete_many, "Delete documents by id or by filter", DOCUMENTS,
          document_schemas.DeleteDocuments, document_schemas.Deleted, scope="write"),
    Route("POST", f"{C}/documents/patch", documents.patch_many, "Change metadata of documents by id or by filter",
          DOCUMENTS, document_schemas.PatchDocuments, document_schemas.Patched, scope="write"),
    Route("GET", f"{C}/documents/{{id:.+}}", documents.show, "One document", DOCUMENTS,
          None, document_schemas.DocumentBody, parameters=("vectors",), load="search", scope="search"),
    Route("PATCH", f"{C}/documents/{{id:.+}}", documents.patch, "Change the metadata of one document", DOCUMENTS,
          document_schemas.PatchDocument, document_schemas.Written, scope="write"),
    Route("DELETE", f"{C}/documents/{{id:.+}}", documents.delete, "Delete one document", DOCUMENTS,
          None, document_schemas.Deleted, scope="write"),
    Route("POST", "/v1/collections", collections.create, "Create a collection", COLLECTIONS,
          collection_schemas.CreateCollection, collection_schemas.CollectionBody, 201,
          gives={"collection": "$response.body#/name"}, scope="admin"),
    Route("GET", "/v1/collections", collections.list_collections, "All collections", COLLECTIONS,
          None, collection_schemas.CollectionList, scope="key"),
    Route("GET", C, collections.show, "One collection: counts, memory, generation, recall", COLLECTIONS,
          None, collection_schemas.CollectionBody, scope="key"),
    Route("DELETE", C, collections.delete, "Delete a collection with all its documents", COLLECTIONS, status=204,
          scope="admin"),
    Route("POST", f"{C}/rename", collections.rename, "Give a collection another name; its aliases follow", COLLECTIONS,
          collection_schemas.RenameCollection, collection_schemas.CollectionBody,
          gives={"collection": "$response.body#/name"}, scope="admin"),
    Route("PUT", f"{C}/ranking", collections.set_ranking, "Set a collection's default ranking",
          COLLECTIONS, collection_schemas.SetRanking, collection_schemas.CollectionBody, scope="admin"),
    Route("PUT", f"{C}/hold", collections.hold, "Take no writes for up to a minute, as while a copy ends", COLLECTIONS,
          collection_schemas.HoldWrites, collection_schemas.HeldBody, scope="admin"),
    Route("PUT", f"{C}/synonyms", collections.set_synonyms, "Set a collection's synonyms", COLLECTIONS,
          collection_schemas.SetSynonyms, collection_schemas.SynonymsBody, scope="admin"),
    Route("GET", f"{C}/synonyms", collections.show_synonyms, "A collection's synonyms", COLLECTIONS,
          None, collection_schemas.SynonymsBody, scope="search"),
    Route("DELETE", f"{C}/synonyms", collections.remove_synonyms, "Remove a collection's synonyms", COLLECTIONS,
          status=204, scope="admin"),
    Route("DELETE", f"{C}/ranking", collections.remove_ranking, "Return to the configured ranking", COLLECTIONS,
          status=204, scope="admin"),
    Route("PUT", f"{C}/evaluation", evaluation.keep, "Keep a report of `nearline evaluate`, replacing the last one",
          COLLECTIONS, evaluation_schemas.KeepEvaluation, evaluation_schemas.EvaluationBody, scope="admin"),
    Route("GET", f"{C}/evaluation", evaluation.show, "The last report that was sent", COLLECTIONS,
          None, evaluation_schemas.EvaluationBody, scope="search"),
    Route("PUT", "/v1/aliases/{alias}", collections.set_alias, "Point an alias at a collection", COLLECTIONS,
          collection_schemas.SetAlias, collection_schemas.AliasBody,
          gives={"alias": "$response.body#/alias", "collection": "$response.body#/alias"}, scope="admin"),
    Route("DELETE", "/v1/aliases/{alias}", collections.remove_alias, "Remove an alias", COLLECTIONS, status=204,
          scope="admin"),
    Route("POST", f"{C}/reindex", jobs.reindex, "Rebuild all indexes and swap them in", JOBS,
          collection_schemas.Reindex, collection_schemas.JobStarted, 202, gives={"job": "$response.body#/job"},
          scope="admin"),
    Route("POST", f"{C}/tune", jobs.tune, "Find the cheapest search settings for a recall, and use them", JOBS,
          collection_schemas.Tune, collection_schemas.JobStarted, 202, gives={"job": "$response.body#/job"},
          scope="admin"),
    Route("POST", f"{C}/erase", jobs.erase, "Erase what was deleted or overwritten from every file", JOBS,
          None, collection_schemas.JobStarted, 202, gives={"job": "$response.body#/job"}, scope="admin"),
    Route("POST", f"{C}/rollback", jobs.rollback, "Go back to the previous generation", JOBS,
          None, collection_schemas.RolledBack, scope="admin"),
    Route("GET", "/v1/jobs", jobs.list_jobs, "Jobs since the start, newest first", JOBS,
          None, collection_schemas.JobList, scope="admin"),
    Route("GET", "/v1/jobs/{job}", jobs.show, "One job: status, progress, outcome", JOBS,
          None, collection_schemas.JobBody, scope="admin"),
    Route("POST", "/v1/keys", auth.create, "Create an access key", ACCESS,
          auth_schemas.CreateKey, auth_schemas.KeyMade, 201, gives={"key": "$response.body#/record/id"},
          scope="admin"),
    Route("GET", "/v1/keys", auth.list_keys, "All access keys of the caller's tenant", ACCESS,
          None, auth_schemas.KeyList, scope="admin"),
    Route("POST", "/v1/keys/{key}/rotate", auth.rotate, "Replace a key with a new one that has the same rights",
          ACCESS, auth_schemas.RotateKey, auth_schemas.KeyMade, 201, gives={"key": "$response.body#/record/id"},
          scope="admin"),
    Route("DELETE", "/v1/keys/{key}", auth.revoke, "Revoke an access key", ACCESS, status=204, scope="admin"),
    Route("POST", "/v1/embeddings", openai.embeddings, "Embed texts, as OpenAI does", OPENAI,
          openai.OpenAIEmbeddingRequest, openai.OpenAIEmbeddingList, error=OpenAIErrorBody, load="embed",
          scope="search"),
    Route("GET", "/v1/models", openai.models, "Models and their aliases, as OpenAI lists them", OPENAI,
          None, openai.OpenAIModelList, error=OpenAIErrorBody, gives={"model": "$response.body#/data/0/id"},
          scope="key"),
    Route("GET", "/v1/models/{model:.+}", openai.model, "One model, as OpenAI shows it", OPENAI,
          None, openai.OpenAIModel, error=OpenAIErrorBody, scope="key"),
    Route("POST", "/v1/vector_stores", vector_stores.create, "Create a collection, as a vector store", STORES,
          stores.OpenAICreateVectorStore, stores.OpenAIVectorStore, error=OpenAIErrorBody,
          gives={"collection": "$response.body#/id"}, load="write", scope="admin"),
    Route("GET", "/v1/vector_stores", vector_stores.list_stores, "All collections, as vector stores", STORES,
          None, stores.OpenAIVectorStoreList, parameters=("limit", "after", "before", "order"), limit_max=100,
          error=OpenAIErrorBody, scope="key"),
    Route("GET", VS, vector_stores.show_store, "One collection, as a vector store", STORES,
          None, stores.OpenAIVectorStore, error=OpenAIErrorBody, scope="key"),
    Route("POST", VS, vector_stores.update_store, "Set the name and metadata of a vector store", STORES,
          stores.OpenAIUpdateVectorStore, stores.OpenAIVectorStore, error=OpenAIErrorBody, scope="admin"),
    Route("DELETE", VS, vector_stores.delete_store, "Delete a vector store, which is a collection", STORES,
          None, stores.OpenAIVectorStoreDeleted, error=OpenAIErrorBody, scope="admin"),
    Route("POST", f"{VS}/search", vector_stores.search, "Search passages, as OpenAI does", STORES,
          stores.OpenAIStoreSearch, stores.OpenAIStoreResults, error=OpenAIErrorBody, load="search", scope="search"),
    Route("POST", f"{VS}/files", vector_store_files.attach_file, "Embed an uploaded file into a vector store", STORES,
          stores.OpenAIAttachFile, stores.OpenAIStoreFile, error=OpenAIErrorBody,
          gives={"file": "$response.body#/id"}, load="write", scope="write"),
    Route("GET", f"{VS}/files", vector_store_files.list_files, "Documents, as the files of a vector store", STORES,
          None, stores.OpenAIStoreFileList, parameters=("limit", "after", "filter"), limit_max=100,
          error=OpenAIErrorBody, load="heavy", scope="search"),
    Route("GET", f"{VS}/files/{{file}}/content", vector_store_files.show_content, "The text of a file", STORES,
          None, stores.OpenAIFileContent, error=OpenAIErrorBody, load="heavy", scope="search"),
    Route("GET", f"{VS}/files/{{file}}", vector_store_files.show_file, "One document, as a file", STORES,
          None, stores.OpenAIStoreFile, error=OpenAIErrorBody, load="search", scope="search"),
    Route("POST", f"{VS}/files/{{file}}", vector_store_files.update_file, "Replace the attributes of a file", STORES,
          stores.OpenAISetAttributes, stores.OpenAIStoreFile, error=OpenAIErrorBody, scope="write"),
    Route("DELETE", f"{VS}/files/{{file}}", vector_store_files.delete_file, "Delete a file from a vector store", STORES,
          None, stores.OpenAIStoreFileDeleted, error=OpenAIErrorBody, scope="write"),
    Route("POST", f"{VS}/file_batches", file_batches.attach_files, "Embed several uploaded files", STORES,
          stores.OpenAIAttachFiles, stores.OpenAIFileBatch, error=OpenAIErrorBody,
          gives={"batch": "$response.body#/id"}, load="write", scope="write"),
    Route("GET", f"{VS}/file_batches/{{batch}}", file_batches.show_batch, "How a batch of files went", STORES,
          None, stores.OpenAIFileBatch, error=OpenAIErrorBody, scope="write"),
    Route("GET", f"{VS}/file_batches/{{batch}}/files", file_batches.list_files, "The files of a batch", STORES,
          None, stores.OpenAIStoreFileList, parameters=("limit", "after", "before", "order", "filter"),
          limit_max=100, error=OpenAIErrorBody, load="heavy", scope="write"),
    Route("POST", f"{VS}/file_batches/{{batch}}/cancel", file_batches.cancel_batch,
          "Does nothing: a known batch is done", STORES, None, stores.OpenAIFileBatch,
          error=OpenAIErrorBody, scope="write"),
    Route("POST", "/v1/files", files.upload, "Upload a file, to attach it to vector stores", STORES,
          stores.OpenAIUploadFile, stores.OpenAIFile, error=OpenAIErrorBody, gives={"file": "$response.body#/id"},
          sent_as=FORM, scope="write"),
    Route("GET", "/v1/files", files.list_files, "Uploaded files", STORES,
          None, stores.OpenAIFileList, parameters=("limit", "after", "order", "purpose"), limit_max=10_000,
          error=OpenAIErrorBody, scope="write"),
    Route("GET", "/v1/files/{file}", files.show_file, "One uploaded file", STORES,
          None, stores.OpenAIFile, error=OpenAIErrorBody, scope="write"),
    Route("GET", "/v1/files/{file}/content", files.show_content, "The bytes of an uploaded file", STORES,
          media="application/octet-stream", error=OpenAIErrorBody, load="heavy", scope="write"),
    Route("DELETE", "/v1/files/{file}", files.delete_file, "Delete a file, also from every vector store", STORES,
          None, stores.OpenAIFileDeleted, error=OpenAIErrorBody, scope="write"),
    Route("POST", "/api/embed", ollama.embed_texts, "Embed texts, as Ollama does", OLLAMA,
          ollama.OllamaEmbed, ollama.OllamaEmbedded, error=OllamaErrorBody, load="embed", scope="search"),
    Route("POST", "/api/embeddings", ollama.embed_prompt, "Embed one text, as older versions of Ollama do", OLLAMA,
          ollama.OllamaEmbeddings, ollama.OllamaEmbedding, error=OllamaErrorBody, load="embed", scope="search"),
    Route("GET", "/api/tags", ollama.list_tags, "Models and their aliases, as Ollama lists them", OLLAMA,
          None, ollama.OllamaTags, error=OllamaErrorBody, scope="key"),
    Route("POST", "/api/show", ollama.show_model, "One model, as Ollama shows it", OLLAMA,
          ollama.OllamaShow, ollama.OllamaShown, error=OllamaErrorBody, scope="key"),
    Route("GET", "/api/version", ollama.show_version, "The version, where Ollama has it", OLLAMA,
          None, ollama.OllamaVersion, error=OllamaErrorBody, scope="key"),
    Route("POST", "/embed", tei.embed_inputs, "Embed texts, as Text Embeddings Inference does", TEI,
          tei.TeiEmbed, list[list[float]], error=TeiErrorBody, load="embed", scope="search"),
    Route("POST", "/", tei.embed_inputs, "The same, at the path that Hugging Face's client uses", TEI,
          tei.TeiEmbed, list[list[float]], error=TeiErrorBody, load="embed", scope="search"),
    Route("POST", "/similarity", tei.similarity, "Compare a sentence with others, as Text Embeddings Inference does",
          TEI, tei.TeiSimilarity, list[float], error=TeiErrorBody, load="embed", scope="search"),
    Route("POST", "/embed_all", tei.embed_all, "Answers that there are no token vectors", TEI,
          tei.TeiEmbed, TeiErrorBody, 424, error=TeiErrorBody, load="embed", scope="search"),
    Route("POST", "/rerank", rerank.tei_rerank, "Order texts by a query, as Text Embeddings Inference does", TEI,
          rerank.TeiRerank, list[rerank.TeiRank], error=TeiErrorBody, load="embed", scope="search"),
    Route("POST", "/v2/rerank", rerank.cohere_rerank, "Order texts by a query, as Cohere does", COHERE,
          rerank.CohereRerank, rerank.CohereReranked, error=CohereErrorBody, load="embed", scope="search"),
    Route("POST", "/v2/embed", cohere.embed_texts, "Embed texts, as Cohere does", COHERE,
          cohere.CohereEmbed, cohere.CohereEmbedded, error=CohereErrorBody, load="embed", scope="search"),
    Route("POST", "/v1/rerank", rerank.jina_rerank, "Order texts by a query, as Jina does", JINA,
          rerank.JinaRerank, rerank.JinaReranked, error=JinaErrorBody, load="embed", scope="search"),
    Route("GET", "/info", tei.info, "The default model, as Text Embeddings Inference describes it", TEI,
          None, tei.TeiInfo, error=TeiErrorBody, scope="key"),
    Route("GET", "/health", tei.health, "Whether texts can be embedded", TEI, error=TeiErrorBody, scope="public"),
    Route("GET", "/healthz", system.healthz, "Whether the process answers", SYSTEM, None, system.Health,
          scope="public"),
    Route("GET", "/readyz", system.readyz, "Whether the service is ready for searches", SYSTEM,
          None, system.Readiness, scope="public"),
    Route("GET", "/v1/cluster", cluster.show, "The nodes of the cluster, and their shards", SYSTEM,
          None, collection_schemas.ClusterBody, scope="admin"),
    Route("POST", "/v1/cluster/moves", moves.move, "Move a shard to another node", SYSTEM,
          collection_schemas.MoveShard, collection_schemas.JobStarted, status=202, scope="admin"),
    Route("POST", "/v1/cluster/balance", moves.balance, "Divide the shards evenly among the nodes", SYSTEM,
          collection_schemas.BalanceShards, collection_schemas.JobStarted, status=202, scope="admin"),
    Route("GET", "/v1/store/changes", system.store_changes, "Wait until something is put into the store", SYSTEM,
          None, collection_schemas.StoreChanges, parameters=("since", "wait_s"), scope="key"),
    Route("GET", "/metrics", system.metrics, "Metrics for Prometheus", SYSTEM, media="text/plain", scope="metrics"),
    Route("GET", "/openapi.json", system.openapi, "This description", SYSTEM, None, dict[str, Any], scope="public"),
    Route("GET", "/", system.root, "Redirect to the page", SYSTEM, status=302, scope="public"),
    Route("GET", "/docs", system.docs, "This description as a page", SYSTEM, media="text/html", scope="public"),
    Route("GET", "/ui", ui.page, "Searches, collections and jobs as a page", SYSTEM, media="text/html", scope="public"),
)  # fmt: skip


def add_routes(app: web.Application) -> None:
    models = app[CONFIG].models.default, app[CONFIG].rerank.model or "reranker"
    # Made on the first request for it, because it takes .2 s.
    api: Callable[[], dict[str, Any]] = functools.cache(lambda: describe(ROUTES, make_examples(*models)))
    app[API] = api
    loads: dict[object, Load] = {route.handler: route.load for route in ROUTES if route.load}
    app[LOADS] = loads
    scopes: dict[object, Needed] = {system.asset: "public", ui.asset: "public"}
    app[SCOPES] = scopes
    # Dialects accept the parameters of other servers; pages and probes ignore parameters.
    parameters: dict[object, tuple[str, ...]] = {
        route.handler: route.parameters
        for route in ROUTES
        if route.path.startswith("/v1/") and dialect_of(route.path) is None
    }
    app[PARAMETERS] = parameters
    for route in ROUTES:
        if route.scope is None:
            raise ValueError(f"{route.method} {route.path} has no scope, so anyone could call it")
        scopes[route.handler] = route.scope
        app.router.add_route(route.method, route.path, route.handler)
        if route.method == "GET":
            app.router.add_route("HEAD", route.path, route.handler)
    app.router.add_get("/docs/assets/{name}", system.asset)
    app.router.add_get("/ui/assets/{name}", ui.asset)

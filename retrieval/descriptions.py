"""What the fields of our wire types mean, for the API description. A test holds that each field has its line.

A name means the same in every type, but for those that are listed with their type.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import msgspec

from retrieval import errors, job_schemas, schemas

FIELDS = {
    "alias": "The other name; it can be moved to another collection atomically",
    "aliases": "Other names of this collection",
    "apply": "Whether to use the settings found; false only reports them",
    "cache": "False bypasses the result cache and the query vector cache",
    "citations": "One for each numbered frame of the context",
    "cold": "How often queries needed the cold tier; null before the first rebuild",
    "cold_skipped": "Why the cold tier was not searched; null if it was",
    "collection": "Name or alias of a collection",
    "collections": "Those that serve",
    "context": "The text for the prompt",
    "created_ms": "Unix time in milliseconds",
    "cursor": "Where the page begins: `cursor` of the page before",
    "dead_passages": "Deleted passages that are still in an index",
    "deadline_ms": "Give up after this time, with status 503",
    "deleted": "Documents deleted",
    "dense": "Of the ranking by meaning: cosine similarity",
    "dimensions": "Length of a vector",
    "document_bytes": "UTF-8 bytes of one text",
    "document_id": "Id of its document",
    "documents": "Number of documents",
    "documents_per_request": "Documents in one write",
    "done": "Steps done",
    "embed": "Embedding the query",
    "end": "End in the document's text, in characters, exclusive",
    "error": "What went wrong; null if nothing did",
    "exact": "With mode dense: score every stored vector instead of using the indexes. Slow; the ground truth",
    "excerpt": "Whether only part of the passage is shown",
    "excerpt_tokens": "Size of an excerpt; 0 shows whole passages only",
    "explain": "Add each hit's rank in both rankings",
    "failed_attempts": "Failures since the last rebuild that succeeded",
    "filter": "Only documents whose metadata match: `{type, key, value}`, or `{type, filters}` to combine",
    "fingerprint": "Hash of everything that shapes a vector",
    "finished_ms": "Unix time in milliseconds; null while it is not finished",
    "fuse": "Joining both rankings",
    "fusion": "How hybrid search joins both rankings",
    "generation": "Number of the live build of the indexes; 0 before the first rebuild",
    "generations": "Builds on disk; the older ones can be rolled back to",
    "group_by_document": "Only the best passage of each document",
    "heading": "Headings above the passage, outermost first",
    "hits": "Best first",
    "hot_capacity": "Passages to keep in the hot tier",
    "hydrate": "Reading the hits from the log",
    "id": "Unique in its collection; a number is the string of its digits",
    "ids": "Ids of documents",
    "irrelevant": "Passages found but below `min_similarity`",
    "job": "Id of the job",
    "jobs": "Newest first",
    "k": "Number of hits",
    "kind": "reindex, tune or erase",
    "lexical": "Of the ranking by words: BM25",
    "limit": "Documents on one page",
    "limits": "What one write may hold",
    "mapped_bytes": "Mapped index files, which the system may drop from memory",
    "memory_bytes": "Memory of the indexes, mapped files not counted",
    "message": "What is wrong, for people",
    "metadata": "Strings, numbers, booleans and lists of them",
    "method": "`rrf` joins by rank, `weighted` by score",
    "min_score": "Drop hits that score less",
    "min_seq": "Wait up to 5 s until this write is visible",
    "min_similarity": "Drop passages less similar to the query (cosine) that do not contain its words",
    "mode": "By meaning (dense), by words (lexical) or both (hybrid)",
    "model": "Name of the embedding model",
    "moves": "Passages the last rebuild moved between tiers",
    "name": "1 to 63 of a-z, 0-9, '-' and '_', beginning with a letter or digit",
    "next_cursor": "`cursor` of the next page; null on the last one",
    "next_ms": "Unix time of the next attempt in milliseconds",
    "number": "Number of the frame in the context",
    "omitted": "Passages found that did not fit",
    "owed_bytes": "Deleted or overwritten and not erased yet",
    "owed_since_ms": "Unix time of the oldest of them in milliseconds",
    "param": "The field at fault",
    "passage": "Position of the passage in its document, from 0",
    "passages": "Number of passages",
    "per_document": "Most passages from one document",
    "progress": "How far it has come",
    "quarantined": "Those out of service, with the reason",
    "queries": "Queries to measure with; absent: synthetic ones",
    "query": "The text to search for",
    "ranks": "With `explain`: rank in each ranking",
    "reason": "Why",
    "rebuild_due": "A rebuild that the service starts by itself; null if none is due",
    "recall": "Recall@10 measured by the last rebuild or tuning, by tier",
    "recall_target": "Recall@10 to reach",
    "receipt": "How the answer was found",
    "request_bytes": "Bytes of a request's body",
    "resident_bytes": "Index files that are read in place, copied into memory up to `index.resident_bytes`",
    "result": "What the job found or made",
    "results": "In the order of the searches: an answer or an error",
    "score": "What the hits are ordered by",
    "scores": "Score in each ranking",
    "search": "Search settings of the live generation; null before the first rebuild",
    "searches": "Each as a search of its own",
    "segments": "Sealed batches of recent passages; a rebuild empties them",
    "seq": "Position of the last operation in the log: pass it as `min_seq` to read what was written",
    "stage": "What it is doing",
    "start": "Start in the document's text, in characters",
    "status": "`refused`: measured below its recall floor, and nothing changed",
    "text": "The text",
    "tier": "Where the passage was found",
    "tier_bytes": "Memory of the indexes by tier",
    "tiers": "Tiers that were searched",
    "timings_ms": "Milliseconds of each stage",
    "title": "Title of the document",
    "token_budget": "Most tokens of the context, markup included",
    "tokens": "Number of tokens",
    "took_ms": "Milliseconds until it was synced and searchable",
    "total": "Steps in all",
    "type": "The kind of error, for programs",
    "unchanged": "Documents that were there already, unchanged",
    "vector": "A vector of your own; it is normalized",
    "vectors": "Whether to list the passages with their vectors",
    "wait": "Time in which no stage ran: mostly waiting for a search thread or for `min_seq`",
    "weights": "For `weighted`",
    "CollectionBody.name": "The collection's own name, not an alias",
    "CollectionBody.passages": "Live passages by tier",
    "CollectionBody.recall_target": "Recall@10 that the next rebuild aims for",
    "Fusion.k": "For `rrf`: larger flattens the lead of the first ranks",
    "JobBody.id": "Id of the job",
    "PassageBody.vector": "The unit vector the passage is searched by",
    "QuarantinedBody.name": "The collection's own name",
    "Receipt.cache": "Whether the answer came from the result cache",
    "ScrollDocuments.text": "Whether to return texts",
    "ScrollPage.cursor": "Where the next page begins; null on the last one",
    "Timings.cache": "Looking into the result cache",
    "Timings.dense": "Searching by meaning",
    "Timings.lexical": "Searching by words, beside embedding",
    "Timings.total": "All of it",
    "WriteDocuments.documents": "Documents to write; those of a known id are replaced",
    "WriteDocuments.wait": "Accepted and ignored: an answer always means synced and searchable",
}


def names_in(module: ModuleType) -> set[str]:
    """Names of the wire types that a module defines."""
    return {
        name
        for name, kind in vars(module).items()
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind.__module__ == module.__name__
    }


OURS = names_in(schemas) | names_in(job_schemas) | names_in(errors)


def add_descriptions(components: dict[str, Any]) -> None:
    """Say in each of our schemas what its fields mean."""
    for name in OURS & components.keys():
        for field, described in components[name].get("properties", {}).items():
            if (text := FIELDS.get(f"{name}.{field}") or FIELDS.get(field)) is not None:
                described.setdefault("description", text)


def error_table() -> str:
    """All types of errors with their status, in Markdown."""
    rows = (
        f"| {status} | `{errors.type_name(kind)}` | {(kind.__doc__ or '').partition(chr(10))[0]} |"
        for kind, status in errors.STATUS.items()
    )
    return "\n".join(["| status | type | meaning |", "|---|---|---|", *rows])

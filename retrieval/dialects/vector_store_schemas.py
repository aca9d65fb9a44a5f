"""The wire types of OpenAI's vector stores and files. Answers have the fields that its clients read; in requests, null
means absent, because gateways send all fields that they know."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType, field

from retrieval.wire.decoding import FilterJson, absent
from retrieval.wire.search import NonEmpty, Request

Attributes = dict[str, str | int | float | bool]
Purpose = Literal["assistants", "user_data"]
ExpiresSeconds = Annotated[int, Meta(ge=3600, le=2_592_000)]
# The range that OpenAI allows.
MaxNumResults = Annotated[int, Meta(ge=1, le=50)]
ChunkTokens = Annotated[int, Meta(ge=100, le=4096)]
OverlapTokens = Annotated[int, Meta(ge=0, le=2048)]
Days = Annotated[int, Meta(ge=1, le=365)]
Threshold = Annotated[float, Meta(ge=0, le=1)]
StoreName = Annotated[str, Meta(max_length=256)]
StoreMetadata = Annotated[dict[str, Annotated[str, Meta(max_length=512)]], Meta(max_length=16)]
QUERIES_MAX = 8  # of one search; they run concurrently
Queries = str | Annotated[list[str], Meta(min_length=1, max_length=QUERIES_MAX)]
FileIds = Annotated[list[str], Meta(max_length=2000)]


class OpenAIAutoChunking(Request, frozen=True, kw_only=True, tag_field="type", tag="auto"):
    """Passages are cut according to the service's settings."""


class OpenAIChunkSizes(Request, frozen=True):
    """Sizes in tokens of the collection's model. The overlap is at most half of the size."""

    max_chunk_size_tokens: ChunkTokens
    chunk_overlap_tokens: OverlapTokens


class OpenAIStaticChunking(Request, frozen=True, kw_only=True, tag_field="type", tag="static"):
    static: OpenAIChunkSizes


OpenAIChunking = OpenAIAutoChunking | OpenAIStaticChunking


class OpenAIExpiresAfter(Request, frozen=True, kw_only=True):
    """The number of days after the last search or write."""

    anchor: Literal["last_active_at"]
    days: Days


class OpenAICreateVectorStore(Request, frozen=True, kw_only=True):
    name: StoreName | None = None
    description: StoreName | None = None
    file_ids: FileIds | None = None
    metadata: StoreMetadata | None = None
    chunking_strategy: OpenAIChunking | None = None
    expires_after: OpenAIExpiresAfter | None = None


class OpenAIUpdateVectorStore(Request, frozen=True, kw_only=True):
    """If `expires_after` is null, the store no longer expires; if it is absent, nothing changes."""

    name: StoreName | None = None
    metadata: StoreMetadata | None = None
    expires_after: OpenAIExpiresAfter | UnsetType | None = UNSET


class OpenAIFileCounts(msgspec.Struct):
    completed: int
    total: int
    in_progress: int = 0
    failed: int = 0
    cancelled: int = 0


class OpenAIVectorStore(msgspec.Struct, tag_field="object", tag="vector_store"):
    """`id` is the collection's name, `usage_bytes` the size of its log."""

    id: str
    name: str
    description: str
    created_at: int
    last_active_at: int
    usage_bytes: int
    file_counts: OpenAIFileCounts
    metadata: dict[str, str]
    status: Literal["completed", "expired"] = "completed"
    expires_after: OpenAIExpiresAfter | None = None
    expires_at: int | None = None


class OpenAIVectorStoreList(msgspec.Struct, tag_field="object", tag="list"):
    data: list[OpenAIVectorStore]
    first_id: str | None
    last_id: str | None
    has_more: bool


class OpenAIVectorStoreDeleted(msgspec.Struct, tag_field="object", tag="vector_store.deleted"):
    id: str
    deleted: bool = True


class OpenAIRankingOptions(Request, frozen=True, kw_only=True):
    ranker: Literal["none", "auto", "default-2024-11-15"] | None = None
    score_threshold: Threshold | None = None


class OpenAIStoreSearch(Request, frozen=True, kw_only=True):
    """`rewrite_query` changes nothing: the answer's `search_query` says what was searched for."""

    query: Queries
    max_num_results: MaxNumResults | None = None
    filters: FilterJson = field(default_factory=absent)
    ranking_options: OpenAIRankingOptions | None = None
    rewrite_query: bool | None = None


class OpenAIText(msgspec.Struct, tag_field="type", tag="text"):
    text: str


class OpenAIStoreResult(msgspec.Struct):
    """A passage. `score` is its relevance, from 0 to 1."""

    file_id: str
    filename: str
    score: float
    attributes: Attributes
    content: list[OpenAIText]


class OpenAIStoreResults(msgspec.Struct, tag_field="object", tag="vector_store.search_results.page"):
    search_query: list[str]
    data: list[OpenAIStoreResult]
    has_more: bool = False
    next_page: None = None


# --- files --------------------------------------------------------------------------------------------------------


class OpenAIUploadFile(Request, frozen=True, kw_only=True):
    """Parts of a form (multipart/form-data)."""

    file: Annotated[str, Meta(extra_json_schema={"format": "binary"})]
    purpose: Purpose


class OpenAIFile(msgspec.Struct, tag_field="object", tag="file"):
    id: str
    filename: str
    purpose: Purpose
    bytes: int
    created_at: int
    expires_at: int
    status: Literal["processed"] = "processed"
    status_details: None = None


class OpenAIFileList(msgspec.Struct, tag_field="object", tag="list"):
    data: list[OpenAIFile]
    first_id: str | None
    last_id: str | None
    has_more: bool


class OpenAIFileDeleted(msgspec.Struct, tag_field="object", tag="file"):
    id: str
    deleted: bool = True


# --- files of a vector store --------------------------------------------------------------------------------------


class OpenAIAttachFile(Request, frozen=True, kw_only=True):
    file_id: NonEmpty
    attributes: Attributes | None = None
    chunking_strategy: OpenAIChunking | None = None


class OpenAISetAttributes(Request, frozen=True, kw_only=True):
    attributes: Attributes | None


class OpenAILastError(msgspec.Struct, frozen=True):
    code: Literal["server_error", "unsupported_file", "invalid_file"]
    message: str


class OpenAIStoreFile(msgspec.Struct, tag_field="object", tag="vector_store.file"):
    """A document of the collection, or a file of a batch that failed. `created_at` is when it was last written.
    Only the answer to the request that attaches it has `chunking_strategy`: the sizes used."""

    id: str
    vector_store_id: str
    created_at: int
    usage_bytes: int
    attributes: Attributes
    status: Literal["completed", "failed"] = "completed"
    last_error: OpenAILastError | None = None
    chunking_strategy: OpenAIStaticChunking | None = None


class OpenAIStoreFileList(msgspec.Struct, tag_field="object", tag="list"):
    data: list[OpenAIStoreFile]
    first_id: str | None
    last_id: str | None
    has_more: bool


class OpenAIStoreFileDeleted(msgspec.Struct, tag_field="object", tag="vector_store.file.deleted"):
    id: str
    deleted: bool = True


class OpenAIFileContent(msgspec.Struct, tag_field="object", tag="vector_store.file_content.page"):
    data: list[OpenAIText]
    has_more: bool = False
    next_page: None = None


class OpenAIAttachFiles(Request, frozen=True, kw_only=True):
    """Either `file_ids`, with the same attributes for all, or `files`, each with its own."""

    file_ids: FileIds | None = None
    files: Annotated[list[OpenAIAttachFile], Meta(max_length=2000)] | None = None
    attributes: Attributes | None = None
    chunking_strategy: OpenAIChunking | None = None


class OpenAIFileBatch(msgspec.Struct, tag_field="object", tag="vector_store.files_batch"):
    id: str
    vector_store_id: str
    created_at: int
    file_counts: OpenAIFileCounts
    status: Literal["completed", "failed"] = "completed"

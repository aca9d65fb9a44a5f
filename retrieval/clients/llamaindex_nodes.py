"""Converts LlamaIndex's nodes to documents of the service, and back.

    text                        the document's text
    metadata                    the document's metadata, as far as the service can filter it
    `ref_doc_id`, `node_id`     also metadata, for deletions and filters
    everything else             `_node_content`: the fields that differ from their defaults

So a node's metadata is stored once, and may be nearly as large as the service allows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from llama_index.core.schema import (
    BaseNode,
    ImageNode,
    IndexNode,
    MetadataMode,
    Node,
    NodeRelationship,
    NodeWithScore,
    RelatedNodeInfo,
    TextNode,
)

from retrieval.clients.stores import provenance

if TYPE_CHECKING:
    from retrieval.clients.wire.answers import Hit

# Metadata keys that this module adds. With its content, a node is rebuilt from its text and metadata.
CONTENT, KIND, SOURCE, NODE = "_node_content", "_node_type", "ref_doc_id", "node_id"
BOOKKEEPING = {CONTENT, KIND, SOURCE, NODE}
# Others are returned as a TextNode, as by LlamaIndex's own stores. Documents must be: postprocessors reject them.
KINDS = {one.class_name(): one for one in (TextNode, IndexNode, ImageNode, Node)}
COPIED_CHARS_MAX = 200  # of a value that a relationship copies from another node's metadata
PROVENANCE_KEY = "nearline"


def document_of(node: BaseNode, *, with_vector: bool) -> dict[str, Any]:
    """Return a node as the service takes it: text, metadata, and the small rest needed to rebuild it. A pipeline
    names a node without a source as its own source, and so does this."""
    text = node.get_content(metadata_mode=MetadataMode.NONE)
    metadata = node.model_dump(mode="json", include={"metadata"})["metadata"]
    flat = {key: value for key, value in filterable(metadata).items() if key not in BOOKKEEPING}
    odd = {key: value for key, value in metadata.items() if key not in flat or flat[key] != value}
    odd |= {key: value for key, value in metadata.items() if isinstance(value, dict)}
    document: dict[str, Any] = {
        "id": node.node_id,
        "text": text,
        "metadata": {
            **flat,
            SOURCE: node.ref_doc_id or node.node_id,
            NODE: node.node_id,
            KIND: node.class_name(),
            CONTENT: json.dumps(rest_of(node, text, metadata, odd), ensure_ascii=False),
        },
    }
    if with_vector:
        document["vector"] = node.get_embedding()
    return document


def rest_of(node: BaseNode, text: str, metadata: dict[str, Any], odd: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that differ from their defaults. `metadata` holds what the service would not return
    unchanged, with the order of all keys; `edges` holds the white space around the text, which passages do not have."""
    kept = {"id_", "embedding", "metadata", "text", "class_name"}
    rest = {
        name: value
        for name, value in node.model_dump(mode="json", exclude_defaults=True).items()
        if name not in kept
    }
    if "text_resource" in rest:
        rest["text_resource"].pop("text", None)
    if relationships := rest.get("relationships"):
        rest["relationships"] = {
            relation: [related_of(one, relation, metadata) for one in infos]
            if isinstance(infos, list)
            else related_of(infos, relation, metadata)
            for relation, infos in relationships.items()
        }
    if odd:
        rest |= {"metadata": odd, "keys": list(metadata)}
    if (bare := text.strip()) != text:
        at = text.find(bare)
        rest["edges"] = [text[:at], text[at + len(bare) :]]
    return rest


def related_of(info: dict[str, Any], relation: str, metadata: dict[str, Any]) -> dict[str, Any]:
    """Return a related node, with the metadata it shares with this node replaced by `same`: the keys, or True for
    all.

    Long values copied from another node are left out; everything of the source, which is in no store, is kept.
    """
    theirs = info.get("metadata", {})
    same = [key for key, value in theirs.items() if key in metadata and metadata[key] == value]
    other = {
        key: value
        for key, value in theirs.items()
        if key not in same
        and (relation == NodeRelationship.SOURCE.value or len(json.dumps(value)) <= COPIED_CHARS_MAX)
    }
    told = {key: value for key, value in info.items() if key not in {"metadata", "class_name"}}
    if other:
        told["metadata"] = other
    if same:
        told["same"] = True if theirs == metadata else same
    return told


def filterable(value: Any) -> Any:
    """Return metadata as the service filters it: without None, and without lists and objects inside lists."""
    if isinstance(value, dict):
        inner = {key: filterable(one) for key, one in value.items()}
        return {key: one for key, one in inner.items() if one is not None}
    if isinstance(value, list):
        return [one for one in value if isinstance(one, str | int | float)]
    return value


def node_of(document: Mapping[str, Any]) -> BaseNode:
    """Return the node as it was added, or a node with the text and metadata of a document written by other means."""
    held, text = document["metadata"], document["text"]
    rest: dict[str, Any] = json.loads(held.get(CONTENT, "{}"))
    kind = KINDS.get(held.get(KIND), TextNode)
    before, after = rest.pop("edges", ("", ""))
    if text == text.strip():  # passages have no outer white space
        text = f"{before}{text}{after}"
    metadata = metadata_of(held, rest)
    for infos in rest.get("relationships", {}).values():
        for info in infos if isinstance(infos, list) else [infos]:
            same = info.pop("same", [])
            shared = metadata if same is True else {key: metadata[key] for key in same if key in metadata}
            info["metadata"] = {**shared, **info.get("metadata", {})}
    resource = rest.pop("text_resource", {})
    told = {"text_resource": {**resource, "text": text}} if kind is Node else {"text": text}
    fields = {**rest, **told, "id_": document["id"], "metadata": metadata}
    node: BaseNode = kind.from_dict(fields)
    return node


def metadata_of(held: Mapping[str, Any], rest: dict[str, Any]) -> dict[str, Any]:
    """Rebuild a node's metadata from what is stored; removes its own part from `rest`."""
    odd, order = rest.pop("metadata", {}), rest.pop("keys", ())
    told = set(paths(odd))
    metadata = {key: value for key, value in held.items() if key not in BOOKKEEPING and key not in told}
    metadata |= odd
    return {key: metadata[key] for key in dict.fromkeys((*order, *metadata)) if key in metadata}


def paths(metadata: dict[str, Any], above: str = "") -> Iterator[str]:
    """Yield the keys under which the service stores nested metadata."""
    for key, value in metadata.items():
        if isinstance(value, dict):
            yield from paths(value, f"{above}{key}.")
        else:
            yield f"{above}{key}"


def passage(hit: Hit) -> NodeWithScore:
    held = hit["metadata"]
    metadata = metadata_of(held, json.loads(str(held.get(CONTENT, "{}"))))
    node = TextNode(
        id_=f"{hit['document_id']}:{hit['passage']}",
        text=hit["text"],
        start_char_idx=hit["start"],
        end_char_idx=hit["end"],
        metadata={**metadata, PROVENANCE_KEY: provenance(hit)},
        excluded_llm_metadata_keys=[PROVENANCE_KEY],
        excluded_embed_metadata_keys=[PROVENANCE_KEY],
        relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=hit["document_id"])},
    )
    return NodeWithScore(node=node, score=hit["score"])


def is_cut(hit: Hit) -> bool:
    """Whether the document is longer than `expand` shows."""
    expanded = hit.get("expanded")
    return expanded is not None and expanded.get("cut", False)


def expanded_document(hit: Hit) -> dict[str, Any]:
    expanded = hit.get("expanded")
    text = hit["text"] if expanded is None else expanded["text"]
    return {"id": hit["document_id"], "text": text, "metadata": hit["metadata"]}

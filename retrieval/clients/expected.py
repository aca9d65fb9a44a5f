"""Knows the endpoints of a service: which may receive a request twice, and what they always answer.

Another kind of server may answer anything with 200. So each answer must have the one field named here; paths that are
not named may answer anything.
"""

from __future__ import annotations

import re

_C, _NAME = "/v1/collections/[^/]+", "[^/]+"
_FIELDS = {
    "": [f"DELETE {_C}", f"DELETE {_C}/(?:feedback|ranking|synonyms)", f"DELETE /v1/aliases/{_NAME}"],
    "hits": [f"POST {_C}/search", "POST /v1/search"],
    "results": [f"POST {_C}/search/batch"],
    "context": [f"POST {_C}/context"],
    "answer": [f"POST {_C}/answer"],
    "risk_score": [f"POST {_C}/assess"],
    "cause": [f"POST {_C}/explain"],
    "kept": [f"POST {_C}/feedback"],
    "feedback": [f"GET {_C}/feedback"],
    "seq": [f"POST {_C}/documents", f"PATCH {_C}/documents/{_NAME}", f"PUT {_C}/hold"],
    "documents": [f"GET {_C}/documents", f"POST {_C}/documents/(?:scroll|count)"],
    "deleted": [f"POST {_C}/documents/delete", f"DELETE {_C}/documents/{_NAME}"],
    "changed": [f"POST {_C}/documents/patch"],
    "id": [f"GET {_C}/documents/{_NAME}", f"GET /v1/jobs/{_NAME}"],
    "collections": ["GET /v1/collections"],
    "name": ["POST /v1/collections", f"GET {_C}", f"POST {_C}/rename", f"PUT {_C}/ranking"],
    "synonyms": [f"(?:GET|PUT) {_C}/synonyms"],
    "report": [f"(?:GET|PUT) {_C}/evaluation"],
    "alias": [f"PUT /v1/aliases/{_NAME}"],
    "generation": [f"POST {_C}/rollback"],
    "job": [f"POST {_C}/(?:reindex|tune|erase)", "POST /v1/cluster/(?:moves|balance)"],
    "jobs": ["GET /v1/jobs"],
    "services": ["GET /v1/cluster"],
    "data": ["POST /v1/embeddings", "GET /v1/models"],
    "model_id": ["GET /info"],
}
_NAMES = list(_FIELDS)
_ENDPOINT = re.compile("|".join(f"({'|'.join(endpoints)})" for endpoints in _FIELDS.values()))

_REPEATED = re.compile(
    "(?:GET|HEAD|PUT|PATCH) .*"
    f"|DELETE {_C}/.+"
    f"|POST {_C}/(?:search(?:/batch)?|context|answer|assess|explain|documents(?:/(?:scroll|count|delete|patch))?)"
    "|POST /v1/(?:search|embeddings)"
)


def may_repeat(method: str, path: str) -> bool:
    """Whether the service may receive a request twice: the second one changes nothing, and does not fail because of
    the first."""
    return _REPEATED.fullmatch(f"{method.upper()} {path.partition('?')[0]}") is not None


def field_of(method: str, path: str) -> str | None:
    """Return the field that the answer must have; "" if it must be empty, None if it may be anything."""
    found = _ENDPOINT.fullmatch(f"{method} {path.partition('?')[0]}")
    return None if found is None or found.lastindex is None else _NAMES[found.lastindex - 1]


def explain_foreign(method: str, path: str, answer: object) -> str:
    """Say what shows that no Nearline service gave this decoded answer, None if it was empty; "" if nothing does."""
    field = field_of(method, path)
    if field is None or (answer is None if field == "" else isinstance(answer, dict) and field in answer):
        return ""
    wrong = f"lacks {field!r}" if field else "is not empty"
    return f"its answer to {method} {path.partition('?')[0]} {wrong}"

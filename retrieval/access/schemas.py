"""The wire types of access keys."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from indexes.base.errors import InvalidInput
from indexes.base.model import now_ms
from retrieval.access.key_file import Key, Scope
from retrieval.access.limits import Limits
from retrieval.wire.decoding import check_built
from retrieval.wire.search import Doc, Request

Groups = Annotated[
    list[Annotated[str, Meta(extra_json_schema={"minLength": 1, "maxLength": 200})]],
    Meta(extra_json_schema={"maxItems": 100}),
]
Seconds = Annotated[float, Meta(gt=0, le=315_360_000)]


class CreateKey(Request, frozen=True, kw_only=True):
    scopes: Annotated[
        list[Scope],
        Meta(extra_json_schema={"minItems": 1}),
        Doc(
            "`search`, `write`, `admin` (which includes both), `metrics`, `vectors` (raw vectors of documents)"
        ),
    ]
    name: Annotated[str, Meta(max_length=200), Doc("For people")] = ""
    tenant: Annotated[
        str, Doc("The key sees only the collections of this tenant; empty: your own tenant")
    ] = ""
    collections: Annotated[
        list[str] | None,
        Meta(extra_json_schema={"minItems": 1}),
        Doc("Only these collections or aliases; null: all of the tenant"),
    ] = None
    groups: Annotated[
        Groups | None, Doc("Only documents whose `acl` names one of these, or that have none; null: all")
    ] = None
    signed_groups: Annotated[bool, Doc("Take groups from the header X-Nearline-Groups of each request")] = (
        False
    )
    limits: Annotated[Limits | None, Doc("Its rate limits; null: none of its own")] = None
    expires_s: Annotated[Seconds | None, Doc("Seconds until the key ends; null: never")] = None


def key_of(wanted: CreateKey) -> Key:
    """Return the key that is wanted, without its id and secret. Raises InvalidInput naming the field."""
    if wanted.collections == []:
        raise InvalidInput(
            "collections is empty: name at least one, or leave the field out for all of them",
            param="collections",
        )
    rights = {**msgspec.structs.asdict(check_built(wanted)), "collections": wanted.collections or []}
    expires_s = rights.pop("expires_s")
    expires_ms = None if expires_s is None else now_ms() + round(expires_s * 1000)
    return Key(id="", sha256="", created_ms=0, expires_ms=expires_ms, **rights)


class RotateKey(Request, frozen=True, kw_only=True):
    grace_s: Annotated[float, Meta(ge=0, le=31_536_000), Doc("Seconds for which the old key stays valid")] = 0


class KeyBody(msgspec.Struct):
    """A key without its secret. Times are milliseconds since 1970."""

    id: Annotated[str, Doc("The middle part of the key, used to name it in the log")]
    name: Annotated[str, Doc("For people")]
    scopes: Annotated[list[Scope], Doc("What it may do")]
    tenant: Annotated[str, Doc("Whose collections it sees; empty: all")]
    collections: Annotated[list[str], Doc("Only these; empty: all of the tenant")]
    groups: Annotated[list[str] | None, Doc("Whose documents it sees; null: all")]
    signed_groups: Annotated[bool, Doc("Whether requests bring their own groups")]
    limits: Annotated[Limits | None, Doc("Its rate limits; null: none of its own")]
    created_ms: Annotated[int, Doc("When it was created")]
    expires_ms: Annotated[int | None, Doc("When it expires; null: never")]
    revoked_ms: Annotated[int | None, Doc("When it was revoked; null: it was not")]
    used_today: Annotated[
        int, Doc("Requests since midnight UTC, counted for keys with limits; with Redis, of all services")
    ] = 0

    @staticmethod
    def of(key: Key, used_today: int = 0) -> KeyBody:
        body = msgspec.convert(key, KeyBody, from_attributes=True)
        return msgspec.structs.replace(body, used_today=used_today)


class KeyList(msgspec.Struct):
    keys: Annotated[list[KeyBody], Doc("Oldest first, including ended ones")]


class KeyMade(msgspec.Struct):
    key: Annotated[str, Doc("What to send as `Authorization: Bearer`. Shown once, never again")]
    record: Annotated[KeyBody, Doc("The stored record of the key")]
    absent: Annotated[list[str], Doc("The collections it names that do not exist yet")]

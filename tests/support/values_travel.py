"""A pytest plugin: every search uses a shard whose values travel as bytes (`-p tests.support.values_travel`)."""

from __future__ import annotations

from retrieval.search import pipeline
from tests.support.encoded_shard import EncodedShard

vars(pipeline)["LocalShard"] = EncodedShard

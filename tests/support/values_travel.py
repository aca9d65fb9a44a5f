"""A pytest plugin: every search uses a shard whose values travel as bytes (`-p tests.support.values_travel`)."""

from __future__ import annotations

from retrieval.search import pipeline, scanning
from tests.support.encoded_shard import EncodedShard

for module in (pipeline, scanning):
    vars(module)["LocalShard"] = EncodedShard

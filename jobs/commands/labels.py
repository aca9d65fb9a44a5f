"""Labels for the API's terms, for the terminal. The web page has the same ones: `retrieval/ui/words.js`."""

from __future__ import annotations

from collections.abc import Sequence

STAGES = {
    "cache": "cache",
    "wait": "waiting",
    "embed": "reading the query",
    "dense": "by meaning",
    "lexical": "by words",
    "fuse": "joining both",
    "rerank": "reranking",
    "hydrate": "reading the hits",
    "shards": "waiting for shards",
    "total": "total",
}
# Other tiers are shown by their API names.
TIERS = {"delta": "new", "hot": "recent", "cold": "older"}
SCORES = {"dense": "meaning", "lexical": "words"}


def list_tiers(tiers: Sequence[str]) -> str:
    """Describe the searched tiers: `new (since the last rebuild), recent and older passages`."""
    named = [f"{TIERS[tier]} ({tier})" if tier in TIERS else tier for tier in tiers]
    return f"{' + '.join(named)} passages" if named else "no passages"

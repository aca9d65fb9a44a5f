"""A collection's own ranking settings: between what a request says and the configuration, and never a stale answer."""

from __future__ import annotations

import pytest

from indexes.parts.learned import RankingSettings
from retrieval.base.settings import Config
from retrieval.search.plan import make_plan
from retrieval.wire.search import Fusion, SearchRequest, Weights
from tests.support.http import Http

CONFIG = Config()
OWN = RankingSettings(method="weighted", weight_dense=0.25, set_ms=1)


def test_request_then_collection_then_configuration() -> None:
    """What a request leaves open comes from the collection, and what that leaves open from the configuration."""
    ask = SearchRequest(query="x")
    weighted = SearchRequest(query="x", fusion=Fusion(method="weighted", weights=Weights(dense=3, lexical=1)))
    ranked = SearchRequest(query="x", fusion=Fusion(method="rrf"))
    plans = [make_plan(one, 384, CONFIG, OWN) for one in (ask, weighted, ranked)]
    assert [(plan.fusion.method, plan.fusion.base_weight) for plan in plans] == [
        ("weighted", 0.25),
        ("weighted", 0.75),
        ("rrf", 0.25),
    ]
    by_rank = RankingSettings(method="rrf", set_ms=1)
    weights = SearchRequest(query="x", fusion=Fusion(weights=Weights(dense=3, lexical=1)))
    assert make_plan(ask, 384, CONFIG, by_rank).fusion.method == "rrf"
    constant = SearchRequest(query="x", fusion=Fusion(k=10))  # a constant, too, says which method it is for
    assert make_plan(constant, 384, CONFIG, OWN).fusion.method == "rrf"
    found = make_plan(weights, 384, CONFIG, by_rank)  # who gives weights wants them used
    assert (found.fusion.method, found.fusion.base_weight) == ("weighted", 0.75)
    partly = make_plan(
        ask,
        384,
        CONFIG,
        RankingSettings(coefficients={"of a later version": [1.0]}, set_ms=1),
    )
    assert (partly.fusion.method, partly.fusion.base_weight) == (
        CONFIG.search.fusion,
        CONFIG.search.weight_dense,
    )


def test_only_what_ranks_tells_answers_apart() -> None:
    """Settings that rank alike share cached answers, whenever they were learned; others do not."""
    ask = SearchRequest(query="x")
    later = RankingSettings(method="weighted", weight_dense=0.25, queries=50, gain=0.1, set_ms=2)
    other = RankingSettings(method="weighted", weight_dense=0.5, set_ms=1)
    identities = [make_plan(ask, 384, CONFIG, one).identity for one in (None, OWN, later, other)]
    assert identities[1] == identities[2]
    assert len(set(identities)) == 3


@pytest.mark.model
def test_answers_cached_before_are_not_served(http: Http) -> None:
    """After a change of the ranking a search is answered anew; back at the old ranking, the old answer is right."""
    name = http.new_collection()
    http.write(
        name,
        {"id": "words", "text": "The annual report of the committee lists every popular motion."},
        {
            "id": "meaning",
            "text": "Cats and dogs live with people in their homes.",
        },
    )

    def asked() -> tuple[str, str]:
        answer = http.search(name, query="popular pets")
        return answer["hits"][0]["document_id"], answer["receipt"]["cache"]

    before = asked()
    assert asked() == (before[0], "hit")
    for weight, first in ((1.0, "meaning"), (0.0, "words")):
        shown = http.ok("PUT", f"/v1/collections/{name}/ranking", {"weight_dense": weight})
        assert (shown["ranking"]["method"], shown["ranking"]["weight_dense"]) == ("weighted", weight)
        assert [asked(), asked()] == [(first, "miss"), (first, "hit")]
    http.ok("DELETE", f"/v1/collections/{name}/ranking")
    assert http.ok("GET", f"/v1/collections/{name}")["ranking"] is None
    assert asked() == (before[0], "hit")

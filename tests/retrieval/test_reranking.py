"""Searches, contexts and texts reranked by a real, small cross-encoder of random weights, through a real service."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cohere
import numpy as np
import pytest

from indexes.base.errors import InvalidInput
from jobs.serving.process import serving
from retrieval.embedding.encoder import Encoder
from retrieval.embedding.models import load_model
from retrieval.search.reranking import PAIRS_A_RUN, Reranker, blend_scores, sigmoid
from tests.support.http import Http

SUBJECTS = ["iron", "copper", "gold", "silver", "tin", "lead", "zinc", "nickel", "cobalt", "titanium"]
QUERY = "when does a metal rust?"


@pytest.fixture(scope="module")
def reranker(rerank_environ: dict[str, str]) -> Reranker:
    return Reranker(Path(rerank_environ["NEARLINE_MODELS_FOLDER"]) / "tiny", threads=1)


@pytest.fixture
def metals(http: Http) -> str:
    name = http.new_collection()
    http.write(
        name,
        *(
            {"id": one, "title": one, "text": f"The metal {one} rusts slowly, or does it rust at all?"}
            for one in SUBJECTS
        ),
    )
    return name


@pytest.fixture
def unread(tmp_path: Path, model_folder: Path) -> Iterator[Http]:
    """A service without a reranker."""
    with serving(tmp_path / "data", {"NEARLINE_MODELS_FOLDER": str(model_folder.parent)}) as server:
        yield Http(server.url)


def said(reranker: Reranker, hits: list[dict[str, Any]]) -> Any:
    return reranker.scores(QUERY, [f"{hit['title']}\n{hit['text']}" for hit in hits])


def test_hits_are_in_the_order_of_the_cross_encoder(http: Http, metals: str, reranker: Reranker) -> None:
    """With all the weight on it, hits descend by what the model says of query and passage, which each hit shows."""
    answer = http.search(metals, query=QUERY, rerank={"weight": 1, "budget_ms": 10_000})
    shown = [hit["scores"]["rerank"] for hit in answer["hits"]]
    assert shown == sorted(shown, reverse=True)
    assert shown == pytest.approx(said(reranker, answer["hits"]), abs=1e-4)
    assert [hit["score"] for hit in answer["hits"]] == pytest.approx(sigmoid(np.array(shown)), abs=1e-5)
    assert answer["receipt"]["reranked"] == {"model": "tiny", "passages": 10, "of": 10}
    assert answer["timings_ms"]["rerank"] > 0


def test_weight_nothing_keeps_the_order(http: Http, metals: str) -> None:
    """Without weight the order is that of fusion; a search that does not ask shows nothing of it."""
    plain = http.search(metals, query=QUERY)
    assert "rerank" not in plain["hits"][0]["scores"]
    assert (plain["receipt"]["reranked"], plain["timings_ms"]["rerank"]) == (None, 0)
    assert http.found(metals, query=QUERY, rerank={"weight": 0}) == [
        hit["document_id"] for hit in plain["hits"]
    ]


def test_only_the_first_candidates_are_read(http: Http, metals: str) -> None:
    """What was not read has no score of it, and comes after, in the order of fusion, where all the weight is on it."""
    plain = http.found(metals, query=QUERY)
    answer = http.search(metals, query=QUERY, rerank={"candidates": 3, "weight": 1, "budget_ms": 10_000})
    found = [hit["document_id"] for hit in answer["hits"]]
    assert answer["receipt"]["reranked"]["of"] == 3
    assert set(found[:3]) == set(plain[:3])
    assert [hit["scores"]["rerank"] for hit in answer["hits"][3:]] == [None] * 7


def test_a_budget_too_small_reads_nothing_and_is_not_kept(http: Http, metals: str) -> None:
    """A budget that ends before the first run leaves the order as it was, says so, and is not cached: with more time
    the same search is answered anew."""
    plain = http.found(metals, query=QUERY)
    short = http.search(metals, query=QUERY, rerank={"budget_ms": 0.001})
    assert [hit["document_id"] for hit in short["hits"]] == plain
    assert short["receipt"]["reranked"] == {"model": "tiny", "passages": 0, "of": 10}
    whole = http.search(metals, query=QUERY, rerank={"budget_ms": 10_000})
    assert (whole["receipt"]["cache"], whole["receipt"]["reranked"]["passages"]) == ("miss", 10)
    again = http.search(metals, query=QUERY, rerank={"budget_ms": 9_000})
    assert (again["receipt"]["cache"], again["receipt"]["reranked"]) == ("hit", whole["receipt"]["reranked"])
    assert again["hits"] == whole["hits"]
    assert http.search(metals, query=QUERY)["receipt"]["reranked"] is None


def test_a_collection_may_rerank_by_default(http: Http, metals: str, unread: Http) -> None:
    """Then searches do that say nothing of it and have a text, also in contexts, and the cache tells both apart; where
    no reranker is configured this cannot be set."""
    plain = http.search(metals, query=QUERY)
    path = f"/v1/collections/{metals}/ranking"
    set_to = http.ok("PUT", path, {"rerank": True})["ranking"]
    assert (set_to["rerank"], set_to["method"]) == (True, None)
    answer = http.search(metals, query=QUERY)
    assert (answer["receipt"]["cache"], answer["receipt"]["reranked"]["of"]) == ("miss", 10)
    asked = http.search(metals, query=QUERY, rerank=True, cache=False)
    assert [hit["scores"] for hit in asked["hits"]] == [hit["scores"] for hit in answer["hits"]]
    assert http.search(metals, query=QUERY, rerank=False)["hits"] == plain["hits"]
    vector = http.search(metals, vector=[1.0] * 384)
    assert vector["receipt"]["reranked"] is None
    built = http.ok("POST", f"/v1/collections/{metals}/context", {"query": QUERY, "token_budget": 60})
    assert built["receipt"]["reranked"]["of"] == 10
    http.ok("DELETE", path)
    assert http.search(metals, query=QUERY, cache=False)["receipt"]["reranked"] is None
    name = unread.new_collection()
    reply = unread.call("PUT", f"/v1/collections/{name}/ranking", {"rerank": True})
    assert (reply.status, reply.body["error"]["param"]) == (422, "rerank")


def test_context_by_the_reranked_order(http: Http, metals: str) -> None:
    """A context takes its passages in the order of the cross-encoder."""
    rerank = {"weight": 1, "budget_ms": 10_000}
    best = http.found(metals, query=QUERY, rerank=rerank)[0]
    wanted = {"query": QUERY, "token_budget": 60, "rerank": rerank}
    built = http.ok("POST", f"/v1/collections/{metals}/context", wanted)
    assert built["citations"][0]["document_id"] == best
    assert built["receipt"]["reranked"]["passages"] == 10


@pytest.mark.parametrize(
    ("search", "words"),
    [
        ({"vector": [1.0] * 384, "rerank": True}, "rerank needs a query text"),
        ({"query": QUERY, "rerank": {"candidates": 0}}, "rerank.candidates"),
        ({"query": QUERY, "rerank": {"top_n": 3}}, "rerank.top_n"),
        ({"query": QUERY, "rerank": "yes"}, "rerank"),
    ],
)
def test_what_cannot_be_meant(http: Http, metals: str, search: dict[str, Any], words: str) -> None:
    """A wrong option is refused with its name."""
    reply = http.call("POST", f"/v1/collections/{metals}/search", search)
    assert reply.status == 422
    assert words in reply.body["error"]["message"]
    assert reply.body["error"]["param"].startswith("rerank")


@pytest.mark.slow
def test_without_a_reranker(unread: Http) -> None:
    """A service without one refuses to rerank, naming the setting, in each dialect's words, and searches as ever."""
    name = unread.new_collection()
    unread.write(name, {"id": "a", "text": "a cat"})
    reply = unread.call("POST", f"/v1/collections/{name}/search", {"query": "cat", "rerank": True})
    assert (reply.status, reply.body["error"]["param"]) == (422, "rerank")
    assert "rerank.model" in reply.body["error"]["message"]
    assert unread.found(name, query="cat", rerank=False) == ["a"]
    theirs = unread.call("POST", "/rerank", {"query": "cat", "texts": ["a cat"]})
    assert (theirs.status, theirs.body["error_type"]) == (424, "Backend")
    cohere = unread.call("POST", "/v2/rerank", {"model": "m", "query": "cat", "documents": ["a cat"]})
    assert cohere.status == 404
    assert "rerank.model" in cohere.body["message"]


@pytest.mark.slow
def test_a_reranker_that_is_not_there(tmp_path: Path, model_folder: Path) -> None:
    """A configured model that cannot be loaded does not keep the service from starting; asking for it is 503."""
    environ = {"NEARLINE_MODELS_FOLDER": str(model_folder.parent), "NEARLINE_RERANK_MODEL": "absent"}
    with serving(tmp_path / "data", environ) as server:
        http = Http(server.url)
        name = http.new_collection()
        http.write(name, {"id": "a", "text": "a cat"})
        assert http.found(name, query="cat") == ["a"]
        reply = http.call("POST", f"/v1/collections/{name}/search", {"query": "cat", "rerank": True})
        assert reply.status == 503
        assert "'absent'" in reply.body["error"]["message"]


# --- the dialects of others ---------------------------------------------------------------------------------


TEXTS = ["Iron rusts.", "The quick brown fox.", "Gold never does, which is why it was money.", "x"]


def test_pairs_are_those_of_the_tokenizer(reranker: Reranker) -> None:
    """A query that is tokenised once gives the same pairs as one that is tokenised with each text."""
    pairs = reranker.encoder.pairs(reranker.encoder.read_query(QUERY), [*TEXTS, ""])
    with reranker.encoder.tokenizers.borrow() as tokenizer:
        assert [pair.ids for pair in pairs] == [tokenizer.encode(QUERY, text).ids for text in [*TEXTS, ""]]


def test_tei(http: Http, reranker: Reranker) -> None:
    """Every text once, best first, with sigmoids of the scores, or the scores themselves, and texts where wanted."""
    expected = reranker.scores(QUERY, TEXTS)
    ranked = http.ok("POST", "/rerank", {"query": QUERY, "texts": TEXTS})
    assert [one["index"] for one in ranked] == np.argsort(-expected).tolist()
    assert [one["score"] for one in ranked] == pytest.approx(sigmoid(np.sort(expected)[::-1]), abs=1e-5)
    assert set(ranked[0]) == {"index", "score"}
    raw = http.ok(
        "POST", "/rerank", {"query": QUERY, "texts": TEXTS, "raw_scores": True, "return_text": True}
    )
    assert [one["score"] for one in raw] == pytest.approx(np.sort(expected)[::-1], abs=1e-4)
    assert [one["text"] for one in raw] == [TEXTS[one["index"]] for one in raw]


def test_cohere(http: Http, reranker: Reranker) -> None:
    """The `top_n` best, with relevance from 0 to 1, in the shape of Cohere's second version."""
    body = {"model": "tiny", "query": QUERY, "documents": TEXTS, "top_n": 2, "max_tokens_per_doc": 4096}
    answer = http.ok("POST", "/v2/rerank", body)
    expected = reranker.scores(QUERY, TEXTS)
    assert [one["index"] for one in answer["results"]] == np.argsort(-expected)[:2].tolist()
    assert answer["results"][0]["relevance_score"] == pytest.approx(sigmoid(expected).max(), abs=1e-5)
    assert answer["meta"] == {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}}
    assert answer["id"]


def test_coheres_own_client(http: Http, reranker: Reranker) -> None:
    """Cohere's client reads the ranking, and raises its own error for a model that is not there."""
    client = cohere.ClientV2(api_key="none", base_url=http.url)
    found = client.rerank(model="tiny", query=QUERY, documents=TEXTS, top_n=3)
    expected = reranker.scores(QUERY, TEXTS)
    assert [one.index for one in found.results] == np.argsort(-expected)[:3].tolist()
    assert found.results[0].relevance_score == pytest.approx(sigmoid(expected).max(), abs=1e-5)
    with pytest.raises(cohere.NotFoundError, match="nobody"):
        client.rerank(model="nobody", query=QUERY, documents=TEXTS)


def test_jina(http: Http, reranker: Reranker) -> None:
    """The `top_n` best of texts and objects with texts, with the documents unless they are not wanted, and with the
    tokens that were read. A request may leave the model out."""
    documents = [TEXTS[0], *({"text": one, "url": "x"} for one in TEXTS[1:])]
    answer = http.ok("POST", "/v1/rerank", {"query": QUERY, "documents": documents, "top_n": 2})
    expected = reranker.scores(QUERY, TEXTS)
    assert [one["index"] for one in answer["results"]] == np.argsort(-expected)[:2].tolist()
    assert [one["document"]["text"] for one in answer["results"]] == [
        TEXTS[one["index"]] for one in answer["results"]
    ]
    tokens = sum(map(len, reranker.encoder.pairs(reranker.encoder.read_query(QUERY), TEXTS)))
    assert (answer["model"], answer["object"]) == ("tiny", "list")
    assert answer["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    bare = http.ok("POST", "/v1/rerank", {"query": QUERY, "documents": TEXTS, "return_documents": False})
    assert all(set(one) == {"index", "relevance_score"} for one in bare["results"])


def test_coheres_first_client(http: Http, reranker: Reranker) -> None:
    """It reads the same path."""
    client = cohere.Client(api_key="none", base_url=http.url)
    found = client.rerank(model="tiny", query=QUERY, documents=TEXTS, top_n=3, return_documents=True)
    assert [one.index for one in found.results] == np.argsort(-reranker.scores(QUERY, TEXTS))[:3].tolist()
    assert found.results[0].document is not None
    assert found.results[0].document.text == TEXTS[found.results[0].index]
    with pytest.raises(cohere.NotFoundError, match="nobody"):
        client.rerank(model="nobody", query=QUERY, documents=TEXTS)


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/v1/rerank", {"query": QUERY, "documents": []}, 400, "`documents` cannot be empty"),
        ("/v1/rerank", {"query": QUERY, "documents": [{"title": "a"}]}, 400, "text"),
        ("/v1/rerank", {"query": QUERY, "documents": TEXTS, "top_n": 0}, 400, "top_n"),
        ("/rerank", {"query": QUERY, "texts": []}, 400, "`texts` cannot be empty"),
        ("/rerank", {"query": " ", "texts": TEXTS}, 400, "`query` cannot be empty"),
        ("/rerank", {"query": QUERY}, 422, "texts"),
        ("/rerank", {"query": QUERY, "texts": ["long " * 500], "truncate": False}, 422, "tokens"),
        ("/v2/rerank", {"model": "other", "query": QUERY, "documents": TEXTS}, 404, "tiny"),
        (
            "/v2/rerank",
            {"model": "tiny", "query": QUERY, "documents": []},
            400,
            "`documents` cannot be empty",
        ),
        ("/v2/rerank", {"model": "tiny", "query": QUERY, "documents": TEXTS, "top_n": 0}, 400, "top_n"),
    ],
)
def test_errors_in_their_dialect(
    http: Http, path: str, body: dict[str, Any], status: int, words: str
) -> None:
    """What cannot be reranked is refused with the status and in the shape that the dialect's clients read."""
    reply = http.call("POST", path, body)
    assert reply.status == status, reply
    assert words in reply.body["error" if path == "/rerank" else "message"]


def test_a_reranker_embeds_nothing(http: Http) -> None:
    """It is not among the models for embedding, and no collection can be made with it."""
    assert "tiny" not in [model["id"] for model in http.ok("GET", "/v1/models")["data"]]
    assert http.call("POST", "/v1/embeddings", {"model": "tiny", "input": "a"}).status in {400, 404}
    assert http.call("POST", "/v1/collections", {"name": "t", "model": "tiny"}).status == 422


# --- the model -------------------------------------------------------------------------------------------------


def test_a_score_does_not_depend_on_its_neighbours(reranker: Reranker) -> None:
    """Alone or among others, also longer ones, a pair has the same score."""
    texts = [*TEXTS, "long " * 60]
    alone = [float(reranker.scores(QUERY, [text])[0]) for text in texts]
    assert reranker.scores(QUERY, texts) == pytest.approx(alone, abs=1e-4)


def test_the_order_of_a_pair_counts(reranker: Reranker) -> None:
    """The model is told which text is the query: both ways round give different scores."""
    forth, back = reranker.scores(TEXTS[0], [TEXTS[2]])[0], reranker.scores(TEXTS[2], [TEXTS[0]])[0]
    assert abs(forth - back) > 1e-3


def test_long_texts_are_cut(reranker: Reranker) -> None:
    """A query takes at most half of the window, a passage the rest; the special tokens around both stay."""
    encoder = reranker.encoder
    (short,), (cut,), (both,) = (
        encoder.pairs(encoder.read_query(query), [text])
        for query, text in ((QUERY, "x"), (QUERY, "long " * 5000), ("why " * 5000, "long " * 5000))
    )
    assert (short.truncated, cut.truncated, both.truncated) == (False, True, True)
    assert len(short) < len(cut) == len(both) == encoder.tokens_max
    separator = short.ids[-1]
    assert [tokens.ids.count(separator) for tokens in (short, cut, both)] == [2, 2, 2]
    assert both.ids.index(separator) <= encoder.tokens_max // 2 + 2


def test_a_budget_ends_between_runs(reranker: Reranker) -> None:
    """What is read in time is a whole number of runs from the front; past the time nothing is."""
    assert len(reranker.scores(QUERY, TEXTS * 3, until=0.0)) == 0
    assert len(reranker.scores(QUERY, TEXTS * 3)) == 12
    assert 12 % PAIRS_A_RUN == 0


def test_an_embedding_model_is_no_reranker(model_folder: Path) -> None:
    """Naming one as the reranker is refused."""
    with pytest.raises(InvalidInput, match="not a reranker"):
        Reranker(model_folder, threads=1)


def test_the_known_scores_are_checked(rerank_environ: dict[str, str]) -> None:
    """The exported folder carries scores of pairs, by which a machine that computes others is found out."""
    model = load_model(Path(rerank_environ["NEARLINE_MODELS_FOLDER"]) / "tiny")
    encoder = Encoder(model, threads=1)
    assert (encoder.makes, encoder.refused) == ("scores", ())
    for answer in model.manifest.known_answers:
        assert answer.query is not None
        score = encoder.run(encoder.pairs(encoder.read_query(answer.query), [answer.text]))[0]
        assert score == pytest.approx(answer.vector, abs=1e-3)


@pytest.mark.parametrize("fused", [[], [0.4], [0.3, 0.3], [-0.5, 0.9, -0.1]])
def test_mixed_scores_are_shares(fused: list[float]) -> None:
    """Both parts count from 0 to 1, whatever fusion gave; a passage that was not read counts as one that is wrong."""
    scores = np.full(len(fused), np.nan)
    found = blend_scores(np.array(fused), scores, 0.25)
    assert (found >= 0).all()
    assert (found <= 0.75).all()
    assert np.argsort(-found, kind="stable").tolist() == np.argsort(-np.array(fused), kind="stable").tolist()
    scores[:1] = 100.0
    assert blend_scores(np.array(fused), scores, 0.25)[:1] == pytest.approx(found[:1] + 0.25)

"""Questions answered by others that ask the same: which these are, and what a service makes of them."""

from __future__ import annotations

import asyncio
import math
import os
import random
import signal
import time
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.serving.process import log_of, serving
from retrieval.base.settings import SemanticSettings
from retrieval.cache.semantic import Questions, SemanticCache
from retrieval.cache.semantic import questions as questions_module
from retrieval.cache.semantic.cache import is_false, wilson_lower_bound
from retrieval.cache.semantic.questions import Scope
from retrieval.cache.semantic.wording import wording
from retrieval.wire.search import Hit
from tests.support.guarded import guarded_service
from tests.support.http import Http

DIMENSIONS = 8


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("What is the capital of France?", "please tell me what the capital of france is"),
        ("what's the capital of France", "Capital of France"),
        ("in 1990, who won the world cup?", "Who won the World Cup in 1990"),
        ("how do I reset my password?", "How to reset my password"),
        ("how can i reset the password, please", "hi, how to reset password"),
        ("what is a pod", "what is the pod"),
        ("what is hepatitis in a child", "what is hepatitis in the child"),
        ("in which year did Rome fall", "what year did rome fall?"),
        ("what colour is the sky over the harbour", "what color is the sky over the harbor"),
        ("which organisations run it", "which organization runs it"),
        ("When was the red lighthouse built?", "please tell me when the red lighthouse was built"),
        ("which ports can the pod open", "I would like to know which ports the pod can open"),
        ("why didn’t he win", "why did not he win"),
        ("who can't vote", "who cannot vote?"),
        ("what is 20 percent of 1,000", "what is 20% of 1000"),
        ("I'd like to know where the city centre is", "where is the city center?"),
        ("does Kubernetes restart the failed pod", "does k8s restart failed pods?"),
        ("who led the first crusade", "could you tell me who led the 1st crusade, thanks!"),
    ],
)
def test_the_same_in_other_words(one: str, other: str) -> None:
    assert wording(one) == wording(other) != ()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("how do I enable 2FA", "how do I disable 2FA"),
        ("who won the war", "who did not win the war"),
        ("who is the president", "who was the president"),
        ("did France defeat England", "did England defeat France"),
        ("trains from Paris to London", "trains from London to Paris"),
        ("sales in 2023", "sales in 2024"),
        ("release notes of 1.28", "release notes of 1.29"),
        ("a dose of 5 mg", "a dose of 5 g"),
        ("a dose of 5 mg", "a dose of 50 mg"),
        ("temperature of -5", "temperature of 5"),
        ("what does x < y mean", "what does x > y mean"),
        ("is C fast", "is C++ fast"),
        ("the first war", "the second war"),
        ("who leads the party", "who led the party"),
        ("what happens before a swap", "what happens after a swap"),
        ("all users", "some users"),
        ("who is sent the invoice", "who sent the invoice"),
        ("what is –5 plus 3", "what is 5 plus 3"),
        ("what is 5!", "what is 5"),
        ('the 10" pipe', "the 10' pipe"),
        ("when does the shop open 9 am", "when does the shop open 9"),
        ("what is exactly once delivery", "what is once delivery"),
        ("What is the IT policy", "What is the it policy"),
        ("the customs agency", "the custom agency"),
        ("what does A mean", "what does mean"),
        ("the hello world program", "the world program"),
        ("how to do a pull request", "how to pull request"),
        ("how should I pay", "how can I pay"),
        ("An wen verkaufte er die Firma", "Wen verkaufte er die Firma"),
        ("puedes pagar la factura", "puede pagar la factura"),
        ("hepatitis A vaccine", "hepatitis vaccine"),
        ("foods with vitamin a", "foods with vitamin"),
        ("what is an A road in Britain", "what is a road in Britain"),
        ("with a key", "without a key"),
        ("wer ist der Chef", "wer ist nicht der Chef"),
        ("qui est le chef", "qui était le chef"),
        ("what is in the log", "who is in the log"),
        ("when was it built", "when will it be built"),
        ("who could vote", "who can vote"),
        ("pods that fail", "pods which do not fail"),
        ("новая версия", "старая версия"),
        ("東京の人口", "大阪の人口"),
    ],
)
def test_another_question(one: str, other: str) -> None:
    assert wording(one) != wording(other)


words = st.sampled_from(
    ["who", "won", "the", "cup", "in", "1990", "not", "than", "20", "km", "from", "a", "lake"]
)


@given(st.lists(words, min_size=3, max_size=9), st.data())
def test_a_word_more_is_another_question(asked: list[str], data: st.DataObject) -> None:
    """Wherever it is put, unless it is one of those that mean nothing."""
    more = data.draw(st.sampled_from(["not", "1991", "never", "london", "without", "was", "xyzzy", "nicht"]))
    at = data.draw(st.integers(0, len(asked)))
    assert wording(" ".join(asked)) != wording(" ".join([*asked[:at], more, *asked[at:]]))


@given(st.text(max_size=200))
def test_any_text_has_a_wording(text: str) -> None:
    assert all(word and word == word.strip() for word in wording(text))


def vector(seed: int) -> Any:
    made = np.random.default_rng(seed).standard_normal(DIMENSIONS).astype(np.float32)
    return made / np.linalg.norm(made)


steps = st.lists(st.tuples(st.sampled_from(["put", "put", "put", "forget"]), st.integers(0, 30)), max_size=80)


@given(steps, st.integers(0, 100))
def test_the_nearest_of_a_scope(history: list[tuple[str, int]], seed: int) -> None:
    """As a scan of what was put last and not forgotten finds them."""
    rows_max, first = questions_module.ROWS_MAX, questions_module.ROWS_FIRST
    questions_module.ROWS_MAX, questions_module.ROWS_FIRST = 8, 2  # type: ignore[misc]
    try:
        scope, ring, next_row, row_of = Scope(DIMENSIONS), dict[int, str](), 0, dict[str, int]()
        for step, number in history:
            text = f"question {number}"
            if step == "forget":
                scope.forget(text)
                ring.pop(row_of.pop(text, -1), None)
            elif text not in row_of:
                scope.put(text, vector(number))
                row_of.pop(ring.get(next_row, ""), None)
                ring[next_row], row_of[text] = text, next_row
                next_row = (next_row + 1) % 8
        query = vector(1000 + seed)
        wanted = sorted((-float(vector(int(text.split()[1])) @ query), text) for text in row_of)[:3]
        found = [one for one in scope.near(query, 8) if one.text in row_of][:3]
        assert [one.text for one in found] == [text for _, text in wanted]
        assert len(scope) == len(row_of)
        assert dict(scope.everything()).keys() == row_of.keys()
    finally:
        questions_module.ROWS_MAX, questions_module.ROWS_FIRST = rows_max, first  # type: ignore[misc]


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 300)), max_size=150))
def test_questions_stay_within_their_bytes(puts: list[tuple[int, int]]) -> None:
    """The scope unused for longest goes."""
    room = Scope(DIMENSIONS).size * 3 + 20_000
    kept, order = Questions(room), OrderedDict[bytes, None]()
    for scope, number in puts:
        key = b"%d" % scope
        kept.put(key, f"question {number}", vector(number))
        order.pop(key, None)
        order[key] = None
        assert kept.bytes_used <= room
        present = [one for one in order if kept._scopes.get(one) is not None]
        assert present == list(order)[-len(present) :]
        order = OrderedDict.fromkeys(present)
    assert kept.bytes_used == sum(one.size for one in kept._scopes.values())
    kept.clear()
    assert (len(kept), kept.bytes_used) == (0, 0)


def cache(**settings: Any) -> SemanticCache:
    made = SemanticSettings(enabled=True, **settings)
    return SemanticCache(lambda: made, Questions(1 << 20), chance=lambda: 0.5)


def at_angle(similarity: float) -> Any:
    made = np.zeros(DIMENSIONS, np.float32)
    made[:2] = similarity, math.sqrt(1 - similarity**2)
    return made


def found(made: SemanticCache, text: str, scope: bytes = b"scope") -> list[str]:
    return [one.text for one in asyncio.run(made.find_alike(scope, text, at_angle(1.0)))]


def test_it_has_to_be_near_and_nearer_where_others_are_near() -> None:
    """At least similarity_from, and at least twice as near as the questions around that ask something else."""
    for similarity, wanted in ((0.89, []), (0.91, ["the red lighthouse"])):
        made = cache()
        made.keep(b"scope", "the red lighthouse", at_angle(similarity))
        assert found(made, "The red lighthouse, please") == wanted
        assert found(made, "The red lighthouse, please", b"other") == []
    for similarity, wanted in ((0.96, []), (0.98, ["the red lighthouse"])):
        made = cache()
        made.keep(b"scope", "the red lighthouse", at_angle(similarity))
        for colour in ("blue", "green", "white"):
            made.keep(b"scope", f"the {colour} lighthouse", at_angle(0.95))
        assert found(made, "The red lighthouse, please") == wanted
        assert found(made, "please the dark lighthouse") == []


def test_what_it_serves() -> None:
    """Texts of some words, where it is on."""
    made = cache(words_min=4)
    asked = [made.serves("docs", text) for text in ("who won the cup in 1990", "who is it?", "who won", None)]
    assert asked == [True, False, False, False]
    assert not made.serves("docs", "who won the cup " * 40)
    assert not SemanticCache(SemanticSettings, Questions(0)).serves("docs", "who won the cup in 1990")


def hits(*numbers: int) -> list[Hit]:
    return [SimpleNamespace(document_id=f"d{one}", passage=0) for one in numbers]  # type: ignore[misc]


@pytest.mark.parametrize(
    ("given_", "wanted", "false"),
    [
        ((1, 2, 3, 4), (1, 2, 3, 4), False),
        ((2, 1, 4, 9), (1, 2, 3, 4), False),  # the best one is there, and three of four
        ((2, 3, 4, 5), (1, 2, 3, 4), True),  # the best one is missing
        ((1, 9, 8, 7), (1, 2, 3, 4), True),  # too few of the others
        ((), (), False),
        ((1,), (), True),
        ((), (1,), True),
    ],
)
def test_a_false_hit(given_: tuple[int, ...], wanted: tuple[int, ...], false: bool) -> None:
    assert is_false(hits(*given_), hits(*wanted)) == false


def test_the_bound_of_a_share() -> None:
    """The value of the formula at three deviations; and it holds."""
    assert wilson_lower_bound(1, 10) == pytest.approx(0.00924, abs=1e-4)
    assert wilson_lower_bound(0, 100) == pytest.approx(0, abs=1e-9)
    rng = random.Random(0)
    above = sum(
        wilson_lower_bound(sum(rng.random() < 0.05 for _ in range(200)), 200) > 0.05 for _ in range(2000)
    )
    assert above / 2000 < 0.005


def test_it_switches_itself_off(caplog: pytest.LogCaptureFixture) -> None:
    """For the collection where too many hits were false; few false ones among many are no reason."""
    made = cache(false_budget=0.05)
    for number in range(400):
        made.record_check("good", hits(1, 2), hits(*((9, 8) if number % 50 == 7 else (1, 2))))
    assert made.serves("good", "a text of four words")
    for _ in range(2):
        made.record_check("bad", hits(1), hits(2))
    assert made.serves("bad", "a text of four words"), "two may be chance"
    made.record_check("bad", hits(1), hits(2))
    assert not made.serves("bad", "a text of four words")
    assert made.serves("good", "a text of four words")
    assert "semantic cache is off for collection bad: 3 of 3" in caplog.text
    assert (made.counts.right, made.counts.false) == (392, 11)
    made.reset()
    assert made.serves("bad", "a text of four words")


ENABLED = {"NEARLINE_SEMANTIC_CACHE_ENABLED": "true", "NEARLINE_SEMANTIC_CACHE_CHECKED_SHARE": "1e-9"}
LIGHTS = [
    {
        "id": f"d{at}",
        "text": f"The {colour} lighthouse was built in {1900 + at}.",
        "metadata": {"year": 1900 + at},
    }
    for at, colour in enumerate(["red", "white", "green", "blue", "black", "grey"])
]
ASKED, ALIKE = "When was the red lighthouse built?", "please tell me when the red lighthouse was built"


def outcome(http: Http, query: str, **options: Any) -> str:
    return str(http.search("docs", query=query, **options)["receipt"]["cache"])


def test_a_service_answers_from_another_question(tmp_path: Path, model_folder: Path) -> None:
    """With the hits of the other one; and not another filter, mode, page or the like of it; nor what a write ended."""
    alike = "hello, when was the red lighthouse built, please?"
    with serving(
        tmp_path / "data", {"NEARLINE_MODELS_FOLDER": str(model_folder.parent), **ENABLED}
    ) as server:
        http = Http(server.url)
        http.ok("POST", "/v1/collections", {"name": "docs"})
        http.write("docs", *LIGHTS)
        first = http.search("docs", query=ASKED)
        answer = http.search("docs", query=alike)
        assert (first["receipt"]["cache"], answer["receipt"]["cache"]) == ("miss", "semantic")
        assert answer["hits"] == first["hits"]
        assert [outcome(http, query) for query in (ASKED, alike)] == ["hit", "semantic"]
        others: list[dict[str, Any]] = [
            {"k": 3},
            {"filter": {"type": "eq", "key": "year", "value": 1900}},
            {"mode": "dense"},
            {"group_by_document": True},
        ]
        for options in others:
            assert outcome(http, alike, **options) == "miss"
        never: list[dict[str, Any]] = [
            {"cache": False},
            {"mode": "lexical"},
            {"operators": True},
            {"exact": True, "mode": "dense"},
        ]
        for options in never:
            http.search("docs", query=ASKED, **options)
            assert outcome(http, alike, **options) in {"miss", "bypass"}
        for query in ("when was the blue lighthouse built?", "when was the red lighthouse not built?"):
            assert outcome(http, query) == "miss"
        # A write that enters the answer ends it, for all who would be answered by it.
        http.write("docs", {"id": "new", "text": "When was the red lighthouse built? In 1899."})
        answer = http.search("docs", query="tell me when the red lighthouse was built")
        assert (answer["receipt"]["cache"], answer["hits"][0]["document_id"]) == ("miss", "new")
        http.ok("DELETE", "/v1/collections/docs/documents/new")
        assert "new" not in [one["document_id"] for one in http.search("docs", query=alike)["hits"]]
        assert http.metric("nearline_semantic_cache_total", outcome="hit") >= 2
        assert http.metric("nearline_semantic_cache_switched_off") == 0


def test_callers_with_other_rights_share_nothing(tmp_path: Path, model_folder: Path) -> None:
    """Tenants and groups; what a key may not see is in no answer that another one's question left behind."""
    environ = {"NEARLINE_MODELS_FOLDER": str(model_folder.parent), **ENABLED}
    with guarded_service(tmp_path / "data", environ) as guarded:
        admin = guarded.caller("admin")
        admin.ok("POST", "/v1/collections", {"name": "docs"})
        admin.write(
            "docs",
            *LIGHTS,
            {"id": "s", "text": "The red lighthouse holds gold.", "metadata": {"acl": ["ops"]}},
        )
        reader = guarded.caller("search", groups=["staff"])
        assert [outcome(admin, query) for query in (ASKED, ALIKE)] == ["miss", "semantic"]
        answer = reader.search("docs", query=ALIKE)
        assert answer["receipt"]["cache"] == "miss"
        assert outcome(reader, ASKED) == "semantic"
        assert "s" not in [one["document_id"] for one in answer["hits"]]


REST = " ".join(f"word{number}" for number in range(100))  # so that few words of a short text weigh more
TOPICS = [
    "who painted the old bridge",
    "where does the night train end",
    "how tall is the tower of glass",
    "when do bees swarm",
]


def test_checked_hits_are_searched(tmp_path: Path, model_folder: Path) -> None:
    """With a share of 1 every hit is searched all the same, and its verdict counted. Many false ones switch the cache
    off until the configuration is read again."""
    environ = {
        "NEARLINE_MODELS_FOLDER": str(model_folder.parent),
        **ENABLED,
        "NEARLINE_SEMANTIC_CACHE_CHECKED_SHARE": "1",
        "NEARLINE_SEMANTIC_CACHE_SIMILARITY_FROM": "0.5",
    }
    by_words = {"k": 1, "fusion": {"weights": {"dense": 0, "lexical": 1}}}
    with serving(tmp_path / "data", environ) as server:
        http = Http(server.url)
        http.ok("POST", "/v1/collections", {"name": "docs"})
        http.write(
            "docs",
            *({"id": str(at), "text": f"Nobody asked {topic}. {REST}"} for at, topic in enumerate(TOPICS)),
        )
        for topic in TOPICS:
            assert outcome(http, topic) == "miss"
            assert outcome(http, f"please, {topic}?") == "miss"
        assert http.metric("nearline_semantic_cache_checks_total", verdict="right") == len(TOPICS)
        # Fillers that change what is found: BM25 reads every word.
        http.write("docs", {"id": "fillers", "text": "Actually, please tell me!"})
        for topic in TOPICS[:3]:
            assert http.metric("nearline_semantic_cache_switched_off") == 0
            for query in (topic, f"please tell me actually {topic}"):
                assert outcome(http, query, **by_words) == "miss"
        assert http.metric("nearline_semantic_cache_checks_total", verdict="false") == 3
        assert http.metric("nearline_semantic_cache_switched_off") == 1
        assert "the semantic cache is off for collection docs" in log_of(tmp_path / "data").read_text()
        os.kill(server.pid, signal.SIGHUP)
        deadline = time.monotonic() + 10
        while http.metric("nearline_semantic_cache_switched_off"):
            assert time.monotonic() < deadline
            time.sleep(0.1)

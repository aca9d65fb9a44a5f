"""Questions answered by others that ask the same: which these are, and what a service makes of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.serving.process import serving
from retrieval.cache.wording import wording
from tests.support.guarded import guarded_service
from tests.support.http import Http

PAIRS = json.loads((Path(__file__).parent / "questions_in_other_words.json").read_text())
SAME_FOUND = 12


def test_questions_as_people_write_them() -> None:
    """None of those that ask something else is taken for the same; of the others few are, which docs/caching.md
    tells."""
    found = {
        kind: [one for one in pairs if wording(one[0]) == wording(one[1])] for kind, pairs in PAIRS.items()
    }
    assert found["other"] == []
    assert len(found["same"]) == SAME_FOUND


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
        ("When was the red lighthouse built?", "please tell me when the red lighthouse was built"),
        ("which ports can the pod open", "I would like to know which ports the pod can open"),
        ("why didn’t he win", "why did not he win"),
        ("who can't vote", "who cannot vote?"),
        ("what is 20 percent of 1,000", "what is 20% of 1000"),
        ("I'd like to know where the city center is", "where is the city center?"),
        ("does Kubernetes restart the failed pods", "does kubernetes restart failed pods?"),
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
        ("the damages of the storm", "the damage of the storm"),
        ("how do I enable HTTP on the server", "how do I enable HTTPS on the server"),
        ("what did Robin Williams do", "what did Robin William do"),
        ("who cuts the cost", "who cut the cost"),
        ("what is a plant of 5 MW", "what is a plant of 5 mW"),
        ("a file of 10MB on the disk", "a file of 10Mb on the disk"),
        ("what is the mW of a lamp", "what is the MW of a lamp"),
        ("how many Mb does the disk have", "how many MB does the disk have"),
        ("what does chmod -R do", "what does chmod -r do"),
        ("how do you say please in French", "how do you say in French"),
        ("how can you help me", "how can I help me"),
        ("what does actually mean", "what does mean"),
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


ENABLED = {"NEARLINE_CACHE_REWORDED": "true"}
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


@pytest.mark.slow
def test_a_service_answers_from_another_question(tmp_path: Path, model_folder: Path) -> None:
    """It returns the hits of the earlier question. Another filter, mode or option is a miss, and so is an answer that a
    write has outdated."""
    alike = "hello, when was the red lighthouse built, please?"
    with serving(
        tmp_path / "data", {"NEARLINE_MODELS_FOLDER": str(model_folder.parent), **ENABLED}
    ) as server:
        http = Http(server.url)
        http.ok("POST", "/v1/collections", {"name": "docs"})
        http.write("docs", *LIGHTS)
        first = http.search("docs", query=ASKED)
        answer = http.search("docs", query=alike)
        assert (first["receipt"]["cache"], answer["receipt"]["cache"]) == ("miss", "hit")
        assert answer["hits"] == first["hits"]
        assert [outcome(http, query) for query in (ASKED, alike)] == ["hit", "hit"]
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
            {"highlight": True},
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


@pytest.mark.slow
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
        assert [outcome(admin, query) for query in (ASKED, ALIKE)] == ["miss", "hit"]
        answer = reader.search("docs", query=ALIKE)
        assert answer["receipt"]["cache"] == "miss"
        assert outcome(reader, ASKED) == "hit"
        assert "s" not in [one["document_id"] for one in answer["hits"]]

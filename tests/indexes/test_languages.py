"""Which language a text is in, and which a query is asked in."""

from __future__ import annotations

import gzip
import json
import threading
import unicodedata
from pathlib import Path

import pytest

from indexes.base.errors import InvalidInput
from indexes.base.languages import (
    SURE_MIN,
    chance_of,
    check_language,
    guess_language,
    language_of,
    probabilities,
)
from indexes.base.model import Upsert
from tests.support.vectors import World, make_collection


def test_languages_of_sentences_are_found(shared_data: Path) -> None:
    """Of eleven languages, by single sentences, from several threads at once."""
    with gzip.open(shared_data / "xquad-r" / "corpus.jsonl.gz", "rt") as file:
        rows = [json.loads(line) for line in list(file)[::20]]
    right: list[bool] = []

    def work(rows: list[dict[str, str]]) -> None:
        right.extend(language_of("", row["text"]) == row["id"].partition("-")[0] for row in rows)

    threads = [threading.Thread(target=work, args=(rows[at::4],)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(right) == len(rows)
    assert sum(right) / len(right) > 0.98


def test_accents_beside_their_letters_change_no_language(shared_data: Path) -> None:
    """Text read from PDFs often has accents as characters of their own."""
    with gzip.open(shared_data / "xquad-r" / "corpus.jsonl.gz", "rt") as file:
        texts = [json.loads(line)["text"] for line in list(file)[::20]]
    for text in [*texts, "\n".join(texts)]:
        assert language_of(text, text) == language_of(*2 * [unicodedata.normalize("NFD", text)])


def test_a_sure_language_is_the_likeliest_of_all(shared_data: Path) -> None:
    """Where the first answer of the detector settles it, all its answers together say the same; also of cut texts."""
    with gzip.open(shared_data / "xquad-r" / "corpus.jsonl.gz", "rt") as file:
        texts = [json.loads(line)["text"] for line in list(file)[::40]]
    settled = 0
    for text in [text[:chars] for text in texts for chars in (4, 12, 40, 400)]:
        found = probabilities(text)
        if (likeliest := max(found.values(), default=0)) >= SURE_MIN:
            assert found[language_of("", text)] == likeliest
            settled += 1
    assert settled > len(texts)


@pytest.mark.parametrize("text", ["E 4711", "...", "4711-0815", ""])
def test_what_has_no_language_is_english(text: str) -> None:
    """Codes and numbers are analysed as English, whatever the collection holds."""
    assert language_of("", text) == "en"


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("papers peppers harbors needles markets clouds number n353", "en"),
        ("Replace filters and hoses of pump n353 twice", "en"),
        ("spare parts for pumps n353", "en"),
        ("\u9000\u6b3e\u5728\u6536\u5230\u5546\u54c1\u540e\u5341\u56db\u5929\u5185\u5b8c\u6210\u3002", "zh"),
        ("\u8a02\u55ae\u5c07\u65bc\u4e09\u65e5\u5167\u51fa\u8ca8\u3002", "zh"),
        ("\u6771\u4eac\u5927\u5b66", "ja"),
        ("Nintendo Switch 2 \u672c\u4f53", "ja"),
        ("API \u3092\u4f7f\u3046", "ja"),
    ],
)
def test_the_script_of_a_text_is_one_of_its_language(text: str, language: str) -> None:
    """The detector took English with numbers, and Chinese, for Japanese."""
    assert language_of("", text) == language


def test_a_query_is_in_a_language_of_the_documents() -> None:
    """The detector chooses among those, weighed by their number; what it cannot tell is in the most frequent one."""
    assert guess_language("Wo ist der Bahnhof?", {"en": 50, "de": 50}) == "de"
    assert guess_language("Wo ist der Bahnhof?", {"en": 50, "fr": 1}) == "en"
    assert guess_language("E 4711", {"ru": 9, "de": 100}) == "de"


@pytest.mark.parametrize("query", ["git rebase", "kubectl drain node", "oom killer"])
def test_the_passages_tell_the_language_of_a_few_odd_words(query: str) -> None:
    """The detector is unsure of them, and may not even name the language that they are in."""
    assert chance_of(query, {"en"}, {"en": 100}) == 1
    assert chance_of(query, {"en"}, {"en": 50, "de": 50}) >= 0.5
    assert chance_of(query, {"en"}, {"ru": 100}) < 0.9
    assert chance_of("Wie funktioniert das", {"en"}, {"en": 100}) < 0.01


def test_a_snapshot_tells_the_language_of_a_query(tmp_path: Path) -> None:
    """And the shares of the others, by which its words are looked up in them."""
    collection = make_collection(tmp_path / "c")
    piece = World().document(0).passages[0]
    codes = ["de"] * 150 + ["en"] * 149 + ["fr"]
    collection.write(
        [Upsert(f"d{at}", "words of text", "", {}, (piece,), language=code) for at, code in enumerate(codes)]
    ).result()
    snapshot = collection.snapshot
    found = snapshot.language_of("the opening of libraries in the morning")
    assert snapshot.languages() == {"de": 150, "en": 149, "fr": 1}
    assert found.language == "en"
    assert found.others == {"de": 144 / 289, "fr": 1 / 289}  # of rounded numbers
    assert snapshot.language_of("anything", "fr-CA").language == "fr"
    collection.close()


GOOD = "en pt-BR zh-Hant-TW gsw es-419 de-CH-1901 sl-rozaj-biske zh-yue en-u-ca-buddhist-x-own auto"
BAD = "english en_US - en- d\u00e9 xx-invalid-zz xx jp en-US-utf8 en-x \u212aa"


@pytest.mark.parametrize("code", GOOD.split())
def test_codes_are_taken_as_they_are(code: str) -> None:
    """Known to a stemmer or not."""
    assert check_language(code, "language") == code


@pytest.mark.parametrize("code", ["", *BAD.split(), "en\n", "en-x" + 40 * "-aa"])
def test_other_codes_are_refused(code: str) -> None:
    """Naming the field."""
    with pytest.raises(InvalidInput, match="no BCP 47 code") as caught:
        check_language(code, "documents[3].language")
    assert caught.value.param == "documents[3].language"


@pytest.mark.parametrize(("code", "shorter"), [("deu", "de"), ("ger", "de"), ("FRA-CA", "fr"), ("eng", "en")])
def test_a_code_of_three_letters_is_told_the_shorter_one(code: str, shorter: str) -> None:
    """Its language would have no stemmer, and its words would not be found by their other forms."""
    with pytest.raises(InvalidInput, match=f"BCP 47 writes {shorter} for this language"):
        check_language(code, "language")

"""The real encoder: shapes, prefixes, cuts, and above all that neighbours do not change a vector."""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from indexes.base.errors import Damaged
from retrieval.base.cgroups import cgroup_cores
from retrieval.embedding.counting import TokenCounter
from retrieval.embedding.encoder import Encoder, by_length
from retrieval.embedding.models import KnownAnswer, Model, load_model
from retrieval.embedding.results import join_windows, shorten
from retrieval.embedding.tokens import TokenizerPool, segments

QUESTION = "how do I reset my password"


@pytest.fixture(scope="module")
def encoder(model_folder: Path) -> Encoder:
    return Encoder(load_model(model_folder), threads=1)


@pytest.fixture(scope="module")
def counter(model_folder: Path) -> TokenCounter:
    return TokenCounter(TokenizerPool(load_model(model_folder).tokenizer_path))


TEXTS = st.text(max_size=60) | st.sampled_from(
    [QUESTION, "x", "SELECT 1;", "word " * 300, "день " * 20, "检索" * 40]
)


@pytest.mark.slow
@pytest.mark.model
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=TEXTS, neighbours=st.lists(TEXTS, min_size=1, max_size=5))
def test_neighbours_do_not_matter(encoder: Encoder, text: str, neighbours: list[str]) -> None:
    """A text has the same vector alone and padded among others: cosine at least .9999."""
    (alone,) = encoder.run(encoder.tokenize([text], "document"))
    among = encoder.run(encoder.tokenize([*neighbours, text], "document"))[-1]
    assert float(alone @ among) >= 0.9999


@pytest.mark.model
def test_weights_are_mapped(encoder: Encoder, model_folder: Path) -> None:
    """A session reads the word table in the model's own file, without a copy of it."""
    maps, weights = Path("/proc/self/maps"), model_folder.resolve() / "model.weights"
    if not maps.is_file() or not weights.is_file():
        pytest.skip(
            "this system does not tell what a process maps, or the model was exported before weights were mapped"
        )
    assert encoder.encode([QUESTION], "query").shape == (1, encoder.dimensions)
    assert str(weights) in maps.read_text()


@pytest.mark.model
def test_vectors_are_units(encoder: Encoder) -> None:
    """Vectors are float32, one row a text in order, of length 1; an empty text has one too."""
    vectors = encoder.encode([QUESTION, "", "a much longer text " * 100, QUESTION], "document")
    assert vectors.dtype == np.float32
    assert vectors.shape == (4, encoder.dimensions)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-4)
    assert float(vectors[0] @ vectors[3]) > 0.9999
    assert encoder.encode([], "query").shape == (0, encoder.dimensions)


@pytest.mark.model
def test_meaning_survives(encoder: Encoder) -> None:
    """The nearest text to a question is the one that answers it."""
    (question,) = encoder.encode([QUESTION], "query")
    answers = [
        "To change a forgotten password, follow the link in the mail.",
        "Bees make honey.",
        "The sky is blue.",
    ]
    assert int(np.argmax(encoder.encode(answers, "document") @ question)) == 0


@pytest.mark.model
def test_long_texts_are_cut(encoder: Encoder) -> None:
    """A text beyond the window is cut and says so, also behind a lot of white space; its end has no influence. Nothing
    is looked for behind ten megabytes of it."""
    short, long, spaced = encoder.tokenize(["hello", "word " * 500_000, " " * 200_000 + "hello"], "document")
    assert (short.truncated, long.truncated, spaced.truncated) == (False, True, False)
    assert len(long) == encoder.tokens_max
    assert short.ids == spaced.ids
    cut = encoder.tokenize(["word " * 400 + "end"], "document")[0]
    assert cut.ids == long.ids
    (empty,) = encoder.tokenize([" " * 10_000_000 + "hello"], "document")
    assert (empty.truncated, empty.ids) == (True, encoder.tokenize([""], "document")[0].ids)


@pytest.mark.model
@pytest.mark.parametrize(
    "text",
    ["a/" * 5000, "plain words of prose " * 800, "x" * 90 + " ", "x" * 120 + " ", "\u4e2d\u6587" * 3000],
)
def test_the_beginning_of_a_long_text_is_read_as_all_of_it(encoder: Encoder, text: str) -> None:
    """As many characters are read as fill the window, and where that ends changes none of its tokens."""
    text = text * (60_000 // len(text) + 1)
    with encoder.tokenizers.borrow() as tokenizer:
        whole = tokenizer.encode(text).ids
    (cut,) = encoder.tokenize([text], "document")
    room = encoder.tokens_max - 1
    assert (cut.ids, cut.truncated) == ([*whole[:room], whole[-1]], True)


@pytest.mark.model
def test_windows_hold_all_of_a_text(encoder: Encoder, counter: TokenCounter) -> None:
    """A long text is spread over windows that fit the model, framed like any text; nothing of it is left out."""
    text = " ".join(f"word{number} of many" for number in range(400))
    pieces = list(encoder.windows(text, "document"))
    assert len(pieces) > 1
    assert all(len(piece) <= encoder.tokens_max and not piece.truncated for piece in pieces)
    cut = encoder.tokenize([text], "document")[0]
    assert pieces[0].ids == cut.ids
    frame = 2
    assert sum(len(piece) - frame for piece in pieces) == len(counter.starts(text))
    assert list(encoder.windows("short", "document")) == encoder.tokenize(["short"], "document")
    assert encoder.tokenize([text], "document")[0] == cut, "the tokenizer must truncate again afterwards"


@pytest.mark.model
def test_windows_repeat_the_prefix(model_folder: Path) -> None:
    """Every window of a text begins with the prefix of its kind: the model was trained to see it."""
    model = load_model(model_folder)
    manifest = msgspec.structs.replace(model.manifest, document_prefix="passage: ", known_answers=[])
    encoder = Encoder(Model(model.folder, manifest), threads=1)
    prefix = encoder.tokenize([""], "document")[0].ids[:-1]
    pieces = list(encoder.windows("word " * 600, "document"))
    assert len(pieces) == 3
    assert all(piece.ids[: len(prefix)] == prefix for piece in pieces)
    assert all(len(piece) <= encoder.tokens_max for piece in pieces)


@pytest.mark.model
def test_windows_of_one_topic_keep_its_meaning(encoder: Encoder) -> None:
    """The mean of a long text's windows lies near the text's own topic, and has length 1 like any vector."""
    sentence = "Bees make honey from the nectar of flowers. "
    text = sentence * 60
    pieces = list(encoder.windows(text, "document"))
    vectors = encoder.run(pieces)
    (mean,) = join_windows(vectors, [len(piece) for piece in pieces], [len(pieces)], normalize=True)
    about, other = encoder.encode(["honey bees and flowers", "reset a password"], "query")
    (once,) = encoder.encode([sentence], "document")
    assert np.linalg.norm(mean) == pytest.approx(1, abs=1e-4)
    assert float(mean @ once) > 0.75
    assert float(mean @ about) > float(once @ about) - 0.25
    assert float(mean @ other) < 0.3


@pytest.mark.model
def test_prefix_by_kind(model_folder: Path) -> None:
    """Queries and documents get the prefix of their kind."""
    model = load_model(model_folder)
    prefixed = Model(model.folder, msgspec.structs.replace(model.manifest, query_prefix="query: "))
    encoder = Encoder(prefixed, threads=1)
    plain, query = encoder.tokenize(["query: hat"], "document")[0], encoder.tokenize(["hat"], "query")[0]
    assert plain.ids == query.ids != encoder.tokenize(["hat"], "document")[0].ids


@pytest.mark.model
def test_strange_kernels_are_refused(model_folder: Path) -> None:
    """A machine on which known texts get other vectors than the exporter's is told at start-up."""
    model = load_model(model_folder)
    wrong = KnownAnswer("hello", [1.0] + [0.0] * (model.manifest.dimensions - 1))
    manifest = msgspec.structs.replace(model.manifest, known_answers=[wrong])
    with pytest.raises(Damaged, match="cosine"):
        Encoder(Model(model.folder, manifest), threads=1)


@pytest.mark.model
def test_threads_share_an_encoder(encoder: Encoder) -> None:
    """Threads may tokenise and run at the same time; all get the same vectors."""
    expected = encoder.encode([QUESTION], "query")
    right: list[bool] = []

    def work() -> None:
        right.extend(np.allclose(encoder.encode([QUESTION], "query"), expected, atol=1e-5) for _ in range(10))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert right == [True] * 40


@given(st.lists(st.integers(1, 40), max_size=40), st.integers(1, 100), st.integers(1, 8))
def test_by_length(lengths: list[int], tokens_max: int, texts_max: int) -> None:
    """Batches hold every position once and stay within both bounds, but for single texts over them."""
    batches = list(by_length(lengths, lambda texts, longest: texts * longest <= tokens_max, texts_max))
    assert sorted(position for batch in batches for position in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) <= texts_max
        assert len(batch) == 1 or max(lengths[at] for at in batch) * len(batch) <= tokens_max


@pytest.mark.parametrize(
    ("files", "membership", "cores"),
    [
        ({"cpu.max": "150000 100000"}, "0::/", 1.5),
        ({"a/cpu.max": "max 100000", "cpu.max": "300000 100000"}, "0::/a/b", 3.0),
        ({"a/cpu.max": "50000 100000", "cpu.max": "300000 100000"}, "0::/a", 0.5),
        ({"cpu/x/cpu.cfs_quota_us": "200000", "cpu/x/cpu.cfs_period_us": "100000"}, "3:cpu,cpuacct:/x", 2.0),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, "3:cpu:/", None),
        ({"cpu.max": "rubbish"}, "0::/", None),
        ({}, "0::/nowhere", None),
    ],
)
def test_cgroup_cores(tmp_path: Path, files: dict[str, str], membership: str, cores: float | None) -> None:
    """The tightest CPU quota from our group up to the root counts, of both versions; none is no limit."""
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    own = tmp_path / "self"
    own.write_text(membership + "\n")
    assert cgroup_cores(tmp_path, own) == cores
    assert cgroup_cores(tmp_path, tmp_path / "absent") is None


@pytest.mark.model
def test_counter(encoder: Encoder, counter: TokenCounter) -> None:
    """Tokens are counted without special ones and without truncation, and begin where the starts say."""
    assert len(counter.starts(QUESTION)) == len(encoder.tokenize([QUESTION], "document")[0]) - 2
    assert len(counter.starts("word " * 5000)) == 5000
    assert len(counter.starts("")) == 0
    text = "Zwölf Boxkämpfer\njagen 検索."
    assert [text[start:] for start in counter.starts(text)][-4:] == ["gen 検索.", "検索.", "索.", "."]


@given(st.text(alphabet="ab \n", max_size=300), st.integers(8, 40))
def test_segments(text: str, chars_max: int) -> None:
    """Segments cover the text in order without gaps, none longer than allowed."""
    cuts = list(segments(text, chars_max))
    assert "".join(text[start:end] for start, end in cuts) == text
    assert all(0 < end - start <= chars_max for start, end in cuts)


def test_shortened_vectors_have_length_1() -> None:
    """Cutting dimensions keeps the first ones, in proportion, and brings the vector to length 1 again."""
    short = shorten(np.array([[3, 4, 12], [0, 0, 5]], np.float32), 2)
    assert short.tolist() == [[pytest.approx(0.6), pytest.approx(0.8)], [0, 0]]
    assert short.dtype == np.float32

"""Cross-encoders: examples mined from a real service, training on them, and their export."""

from __future__ import annotations

import asyncio
import gzip
import importlib.util
import json
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from indexes.base.errors import InvalidInput, NotFound
from jobs.cli import cli
from jobs.commands import train_reranker
from jobs.models.export import running, texts
from jobs.models.export.architectures import build
from jobs.models.export.exporting import ExportOptions, export_model, reference
from jobs.models.export.graph import Graph
from jobs.models.export.recipes import FP32, SCORE_FLOORS
from jobs.models.export.shapes import shape
from jobs.models.export.texts import TokenizedTexts
from jobs.models.export.weights import ModelWeights
from jobs.models.reranker import training
from jobs.models.reranker.mining import TrainingExample, mine
from jobs.models.reranker.training import batches
from jobs.serving.process import ServerProcess
from nearline import AsyncClient
from retrieval.search.reranking import Reranker
from tests.support.encoders import VOCABULARY, write_bert, write_reranker, write_tokenizer
from tests.support.http import Http

pytest.importorskip("onnx", reason="building graphs needs onnx")
TORCH = all(importlib.util.find_spec(name) for name in ("torch", "transformers"))
needs_torch = pytest.mark.skipif(not TORCH, reason="torch and transformers are not installed")

EXAMPLES = [
    TrainingExample(f"question {at}", f"answer {at}", [f"wrong {at} {other}" for other in range(1 + at % 7)])
    for at in range(200)
]


def quiet(_: object, *__: object) -> None:
    pass


# --- examples ------------------------------------------------------------------------------------------------


@pytest.fixture
def judged(http: Http, tmp_path: Path) -> tuple[str, Path, Path]:
    """A collection of ten colours, and a question about each."""
    name = http.new_collection()
    colours = ["red", "green", "blue", "white", "black", "brown", "pink", "grey", "orange", "purple"]
    http.write(
        name,
        *({"id": one, "title": "Colours", "text": f"Things that are {one} look {one}."} for one in colours),
    )
    queries, qrels = tmp_path / "queries.jsonl.gz", tmp_path / "qrels.tsv"
    with gzip.open(queries, "wt") as file:
        file.writelines(
            json.dumps({"id": one, "text": f"what looks {one}?"}) + "\n" for one in [*colours, "x"]
        )
    qrels.write_text("".join(f"{one}\t{one}\t1\n" for one in colours) + "x\tgone\t1\nred\tpink\t0\n")
    return name, queries, qrels


def mined(http: Http, judged: tuple[str, Path, Path], held_out: frozenset[str] = frozenset()) -> Any:
    async def found() -> list[TrainingExample]:
        async with AsyncClient(http.url) as client:
            return [one async for one in mine(client, *judged, held_out=held_out, progress=quiet)]

    return asyncio.run(found())


def test_examples(http: Http, judged: tuple[str, Path, Path]) -> None:
    """The judged document's passage, with its title, is the positive, what else was found the negatives; a grade of 0
    is no answer, and a query whose document is not found is left out."""
    found = mined(http, judged)
    assert [one.query for one in found][:2] == ["what looks red?", "what looks green?"]
    assert len(found) == 10
    for one in found:
        colour = one.query.split()[-1].rstrip("?")
        assert one.positive == f"Colours\nThings that are {colour} look {colour}."
        assert len(one.negatives) == 9
        assert one.positive not in one.negatives


def test_what_is_held_out_is_not_seen(http: Http, judged: tuple[str, Path, Path]) -> None:
    """Held-out documents appear in no example, and no query that they answer does."""
    found = mined(http, judged, frozenset({"red", "blue"}))
    assert len(found) == 8
    seen = " ".join(text for one in found for text in (one.query, one.positive, *one.negatives))
    assert "red" not in seen
    assert "blue" not in seen


# --- training ------------------------------------------------------------------------------------------------


def test_batches_repeat_and_go_on() -> None:
    """The same seed gives the same steps, another one others; from a later step on they are those of the whole run."""
    options = training.TrainingOptions(epochs=2, seed=3)
    whole = list(batches(EXAMPLES, options))
    assert len(whole) == 2 * (200 // options.examples)
    assert list(batches(EXAMPLES, options, 30)) == whole[30:]
    assert next(batches(EXAMPLES, training.TrainingOptions(seed=4))) != whole[0]


def test_a_batch_holds_the_positive_first_and_as_many_negatives() -> None:
    """Every example comes once an epoch; one with few negatives repeats them."""
    options = training.TrainingOptions(epochs=1)
    seen = []
    for batch in batches(EXAMPLES, options):
        for example, passages in batch:
            seen.append(example.query)
            assert passages[0] == example.positive
            assert len(passages) == 1 + options.negatives
            assert set(passages[1:]) <= set(example.negatives)
    assert len(seen) == len(set(seen)) == 200


def test_too_few_examples(tmp_path: Path) -> None:
    """Less than a step's worth is refused before anything is loaded."""
    with pytest.raises(InvalidInput, match="3 examples are too few"):
        training.train(tmp_path, EXAMPLES[:3], tmp_path / "out", training.TrainingOptions(), quiet)


@pytest.mark.skipif(TORCH, reason="torch is installed")
def test_without_torch(tmp_path: Path) -> None:
    """What is missing is named."""
    with pytest.raises(NotFound, match="pip install torch transformers"):
        training.train(write_bert(tmp_path), EXAMPLES, tmp_path / "out", training.TrainingOptions(), quiet)


@needs_torch
@pytest.mark.slow
def test_it_learns_goes_on_and_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that ends early goes on from its checkpoint; afterwards answers score above other passages, also once
    exported."""
    source = write_bert(tmp_path / "source")
    write_reranker(tmp_path / "pairs")  # its tokenizer parts pairs
    for name in ("tokenizer.json",):
        (source / name).write_bytes((tmp_path / "pairs" / name).read_bytes())
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"vocab_size": VOCABULARY + 2}))
    (source / "model.safetensors").write_bytes((tmp_path / "pairs" / "model.safetensors").read_bytes())
    examples = [
        TrainingExample(word, f"{word} {word}", [f"{other} {other}" for other in others])
        for word, *others in zip(*(islice(texts.SENTENCES[at:], 40) for at in range(5)), strict=True)
    ]
    out = tmp_path / "out"
    monkeypatch.setattr(training, "CHECKPOINT_EVERY_S", 0.0)
    said: list[str] = []
    options = training.TrainingOptions(epochs=2, rate=1e-3, examples=8)
    monkeypatch.setattr(training.TrainingRun, "finish", quiet)
    training.train(source, examples, out, options, said.append)
    monkeypatch.undo()
    assert (out / training.CHECKPOINT).is_file()
    training.train(
        source, examples, out, training.TrainingOptions(epochs=30, rate=1e-3, examples=8), said.append
    )
    assert "going on from step 10" in said
    assert not (out / training.CHECKPOINT).exists()
    export_model(str(out), tmp_path / "m", name="m", progress=quiet, options=ExportOptions(only="fp32"))
    reranker = Reranker(tmp_path / "m", threads=1)
    first = [np.argmax(reranker.scores(one.query, [one.positive, *one.negatives])) == 0 for one in examples]
    assert np.mean(first) >= 0.8


def test_the_command_says_what_is_wrong(tmp_path: Path) -> None:
    """Files that are not there are refused before a service is asked."""
    arguments = ["train-reranker", "--judged", "c", str(tmp_path / "q"), str(tmp_path / "r")]
    result = CliRunner().invoke(
        cli, [*arguments, "--out", str(tmp_path / "o"), "--url", "http://127.0.0.1:9"]
    )
    assert isinstance(result.exception, InvalidInput)
    assert "is not a file" in str(result.exception)


def test_examples_are_only_used_again_for_the_same_options(
    service: ServerProcess, judged: tuple[str, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run goes on with the examples it has; other judgments or held-out documents are refused, naming the option."""
    trained: list[int] = []
    monkeypatch.setattr(
        train_reranker, "train", lambda source, examples, *rest: trained.append(len(examples))
    )
    source, hold_out, other = write_bert(tmp_path / "source"), tmp_path / "hold-out", tmp_path / "other"
    hold_out.write_text("red\nblue\n")
    name, queries, qrels = judged
    other.write_text(qrels.read_text() + "x\tred\t1\n")

    def run(qrels: Path, *options: object) -> Any:
        fixed = ["--url", service.url, "--from", source, "--out", tmp_path / "out"]
        arguments = ["train-reranker", *fixed, "--judged", name, queries, qrels, *options]
        return CliRunner().invoke(cli, [str(one) for one in arguments]).exception

    assert [run(qrels), run(qrels)] == [None, None]
    assert trained == [10, 10]
    for refused, option in ((run(qrels, "--hold-out", hold_out), "--hold-out"), (run(other), "--judged")):
        assert isinstance(refused, InvalidInput)
        assert option in refused.message
    assert trained == [10, 10]


# --- export --------------------------------------------------------------------------------------------------


def test_scores_that_are_kept(tmp_path: Path) -> None:
    """The manifest says that the model makes scores, and holds those of pairs, every other one of a passage that does
    not answer; less precise graphs are held against floors for scores, which random weights miss."""
    source = write_reranker(tmp_path / "source")
    manifest = export_model(
        str(source), tmp_path / "m", name="m", progress=quiet, options=ExportOptions(only="fp32")
    )
    assert (manifest.makes, manifest.dimensions, manifest.normalise) == ("scores", 1, False)
    assert [answer.query for answer in manifest.known_answers] == texts.KNOWN_ANSWER_QUERIES
    assert len(Reranker(tmp_path / "m", threads=1).scores("a query", ["one", "two"])) == 2
    with pytest.raises(InvalidInput, match=f"below {SCORE_FLOORS['cosine_mean']}"):
        export_model(
            str(source), tmp_path / "m", name="m", progress=quiet, options=ExportOptions(only="tokens")
        )


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"id2label": {"0": "a", "1": "b"}}, "with 2 labels"),
        ({"model_type": "electra"}, "rerankers have one"),
    ],
)
def test_classifiers_that_are_no_rerankers(tmp_path: Path, change: dict[str, Any], match: str) -> None:
    """More than one score, or a head that is not known, is refused."""
    source = write_reranker(tmp_path / "source")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(InvalidInput, match=match):
        shape(source)


@needs_torch
@pytest.mark.parametrize("kind", ["Bert", "Roberta"])
def test_same_scores(kind: str, tmp_path: Path) -> None:
    """The graph gives the scores of transformers' own model, alone and padded, with both kinds of heads."""
    import torch
    import transformers

    source = write_reranker(tmp_path / "source")
    if kind == "Roberta":
        config = json.loads((source / "config.json").read_text()) | {"type_vocab_size": 1}
        for name in ("architectures", "model_type", "vocab_size"):
            del config[name]
        torch.manual_seed(3)
        model = transformers.RobertaForSequenceClassification(
            transformers.RobertaConfig(vocab_size=VOCABULARY, **config)
        )
        for weight in model.parameters():
            torch.nn.init.normal_(weight, 0, 0.15)
        write_tokenizer(source)
        model.save_pretrained(source)
    found = shape(source)
    lines = [*texts.PASSAGES[:8], *texts.hard_texts()[:8], "x"]
    expected = reference(source, lines, found)
    assert expected is not None
    graph = tmp_path / "graph.onnx"
    running.save(build(Graph(ModelWeights(source), FP32.precision), found), graph)
    material = TokenizedTexts(source, found)
    for together in (1, 5):
        scores = running.vectors(running.session(graph), material.feeds(lines, together))
        assert scores == pytest.approx(expected, abs=1e-4)

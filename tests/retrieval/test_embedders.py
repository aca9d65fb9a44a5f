"""Models in use: opened once, whoever asks and whoever leaves, and closed whole."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from indexes.base.errors import NotFound
from retrieval.base.settings import Config, ModelsSection
from retrieval.embedding.embedders import Embedders, runs_of
from retrieval.embedding.results import EmbeddedTexts, Observer
from tests.support.models import variation

pytestmark = pytest.mark.model


def with_embedders(model: Path, story: Callable[[Embedders, list[str]], Awaitable[None]]) -> None:
    """Run a story with the folder of a model, and with the names that were loaded until now."""
    loads: list[str] = []

    def observer(name: str) -> Observer:
        loads.append(name)
        return Observer()

    async def told() -> None:
        embedders = Embedders(
            msgspec.structs.replace(Config(), models=ModelsSection(folder=str(model.parent))), observer
        )
        try:
            async with asyncio.timeout(60):
                await story(embedders, loads)
        finally:
            await embedders.close()

    asyncio.run(told())


async def asked(embedders: Embedders, name: str) -> asyncio.Task[object]:
    """Somebody who asks for a model, a few steps later."""
    task = asyncio.create_task(embedders.get(name))
    for _ in range(3):
        await asyncio.sleep(0)
    return task


def test_loading_goes_on_without_its_caller(model_folder: Path) -> None:
    """A request that is cancelled while its model is loaded leaves a loaded model behind."""

    async def story(embedders: Embedders, loads: list[str]) -> None:
        impatient = await asked(embedders, model_folder.name)
        impatient.cancel()
        with pytest.raises(asyncio.CancelledError):
            await impatient
        while model_folder.name not in embedders.loaded:  # noqa: ASYNC110 - nobody is told: nobody waits
            await asyncio.sleep(0.01)
        assert (await embedders.loaded[model_folder.name].query("a")).shape == (384,)

    with_embedders(model_folder, story)


def test_a_model_is_loaded_once(model_folder: Path) -> None:
    """Callers of the same moment share one loading, also where the first of them leaves."""

    async def story(embedders: Embedders, loads: list[str]) -> None:
        first, *others = [await asked(embedders, model_folder.name) for _ in range(3)]
        first.cancel()
        found = await asyncio.gather(*others)
        assert found[0] is found[1] is await embedders.get(model_folder.name)
        assert loads == [model_folder.name]

    with_embedders(model_folder, story)


def test_closing_leaves_no_thread(model_folder: Path) -> None:
    """What is being loaded while the service closes is closed with the rest."""
    before = set(threading.enumerate())

    async def story(embedders: Embedders, loads: list[str]) -> None:
        (await asked(embedders, model_folder.name)).cancel()

    with_embedders(model_folder, story)
    left = {one.name for one in set(threading.enumerate()) - before}
    assert not {name for name in left if name.startswith(("embed-", "tokenize"))}


def test_what_is_not_there_can_come_later(model_folder: Path, tmp_path: Path) -> None:
    """An unknown model says how to make it, loaded or only described, and is found once it has been made."""

    async def story(embedders: Embedders, loads: list[str]) -> None:
        for _ in range(2):
            with pytest.raises(NotFound, match="export-model"):
                await embedders.get(model_folder.name)
        with pytest.raises(NotFound, match="export-model"):
            embedders.manifest(model_folder.name)
        (tmp_path / model_folder.name).symlink_to(model_folder, target_is_directory=True)
        described = embedders.manifest(model_folder.name)
        assert (await embedders.get(model_folder.name)).fingerprint == described.fingerprint

    with_embedders(tmp_path / model_folder.name, story)


def test_languages(model_folder: Path, tmp_path: Path) -> None:
    """A model says which languages it reads; one that says nothing, or is not there, leaves it open."""
    variation(model_folder, tmp_path / "some", languages=["en", "pt-BR"])
    variation(model_folder, tmp_path / "none", languages=None)

    async def story(embedders: Embedders, loads: list[str]) -> None:
        some, none = embedders.try_manifest("some"), embedders.try_manifest("none")
        assert some is not None
        assert some.languages == ["en", "pt-BR"]
        assert none is not None
        assert none.languages is None
        assert embedders.try_manifest("absent") is None

    with_embedders(tmp_path / "some", story)


@pytest.mark.parametrize(
    ("threads", "run_threads", "shared"), [(4, 1, (1, 4)), (4, 3, (3, 1)), (2, 8, (2, 1)), (8, 2, (2, 4))]
)
def test_cores_are_shared_out(threads: int, run_threads: int, shared: tuple[int, int]) -> None:
    """Runs side by side use no more cores than there are, and there is always one."""
    models = ModelsSection(threads=threads, run_threads=run_threads)
    assert runs_of(msgspec.structs.replace(Config(), models=models)) == shared


def test_one_text_is_embedded_once_however_many_ask(model_folder: Path) -> None:
    """While it is under way all wait for it; who leaves takes nobody along, and later ones find it kept."""

    async def story(embedders: Embedders, _: list[str]) -> None:
        embedder = await embedders.get(model_folder.name)
        embed, ran = embedder.batcher.embed, list[str]()

        async def counted(texts: list[str], *arguments: Any, **named: Any) -> EmbeddedTexts:
            ran.extend(texts)
            return await embed(texts, *arguments, **named)

        embedder.batcher.embed = counted  # type: ignore[method-assign, assignment]
        asked = [asyncio.create_task(embedder.query("how long do refunds take?")) for _ in range(30)]
        await asyncio.sleep(0)
        asked[0].cancel()
        found = await asyncio.gather(*asked, return_exceptions=True)
        vectors = [one for one in found if isinstance(one, np.ndarray)]
        assert len(vectors) == 29
        assert all(one is vectors[0] for one in vectors)
        assert await embedder.query("how long do refunds take?") is vectors[0]
        assert len(ran) <= 2  # once more for the one who left
        assert embedder.cache.joined >= 28
        await embedder.query("how long do refunds take?", cached=False)
        assert len(ran) <= 3

    with_embedders(model_folder, story)

"""nearline train-reranker"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

from indexes.base.durable import replace_unsynced
from indexes.base.errors import InvalidInput
from indexes.base.model import Progress
from jobs.commands.options import URL, NumberRange
from jobs.commands.output import errors, stages
from jobs.models.export import sources
from jobs.models.reranker.mining import TrainingExample, mine
from jobs.models.reranker.training import TrainingOptions, train
from jobs.sources.judgments import lines_of
from nearline import AsyncClient

EXAMPLES, MADE_FROM = "examples.jsonl", "examples-from.json"
FILE = click.Path(path_type=Path, dir_okay=False)


@click.command(
    epilog="Example: nearline train-reranker --judged docs queries.jsonl qrels.tsv --out rerankers/docs --minutes 60"
)
@URL
@click.option(
    "--judged",
    type=(str, FILE, FILE),
    multiple=True,
    required=True,
    metavar="COLLECTION QUERIES QRELS",
    help="A collection, its queries (JSON lines of id and text) and judgments (query, document, grade). Repeatable.",
)
@click.option("--hold-out", type=FILE, help="Ids of documents, one a line, that training must not see.")
@click.option(
    "--from",
    "source",
    default="auto",
    show_default=True,
    help="The encoder to start from: a folder, a hub repository, 'wheel' or 'hub', as for export-model.",
)
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), required=True, help="Folder to write."
)
@click.option("--minutes", type=NumberRange(0.01), default=60.0, show_default=True, help="To train, at most.")
@click.option(
    "--epochs",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="Passes over the examples, at most.",
)
@click.option("--tokens-max", type=click.IntRange(16, 512), default=128, show_default=True, help="Of a pair.")
@click.option(
    "--seed", default=0, show_default=True, help="Chooses the order of examples and their negatives."
)
@click.option(
    "--bf16", is_flag=True, help="Products in bfloat16: faster where the CPU has instructions for it."
)
def command(
    url: str,
    judged: tuple[tuple[str, Path, Path], ...],
    hold_out: Path | None,
    source: str,
    out: Path,
    minutes: float,
    epochs: int,
    tokens_max: int,
    seed: int,
    bf16: bool,
) -> None:
    """Train a reranker on judged queries of a running service.

    Needs torch and transformers. Export the folder afterwards with `nearline export-model --from`. An interrupted run
    resumes when started again with the same folder, judgments and held-out documents.
    """
    out.mkdir(parents=True, exist_ok=True)
    kept = out / EXAMPLES
    made_from = MadeFrom.of(judged, hold_out)
    if kept.is_file():
        made_from.require(out)
    else:
        held_out = frozenset(line.strip() for _, line in lines_of(hold_out)) if hold_out else frozenset()
        with stages(hidden=False) as on_progress:
            found = asyncio.run(mine_all(url, judged, held_out, on_progress))
        if not found:
            raise InvalidInput(
                "no judged document was found by its query: nothing to train on", param="judged"
            )
        replace_unsynced(out / MADE_FROM, msgspec.json.encode(made_from))
        replace_unsynced(kept, b"".join(msgspec.json.encode(one) + b"\n" for one in found))
    examples = [msgspec.json.decode(line, type=TrainingExample) for _, line in lines_of(kept)]
    options = TrainingOptions(minutes=minutes, epochs=epochs, tokens_max=tokens_max, seed=seed, bf16=bf16)

    def say(text: str) -> None:
        errors.print(text, highlight=False)

    with sources.find(None if source == "auto" else source, sources.DEFAULT_NAME, say) as started:
        say(f"{len(examples)} examples; training from {started.label}")
        train(started.folder, examples, out, options, say)
    click.echo(f"{out}: trained; serve it after nearline export-model --from {out} --name NAME")


class MadeFrom(msgspec.Struct, frozen=True):
    """The sources of examples: each collection with its queries and judgments, files by the SHA-256 of their content.
    `hold_out` is empty without such a file."""

    judged: list[tuple[str, str, str]]
    hold_out: str

    @staticmethod
    def of(judged: Sequence[tuple[str, Path, Path]], hold_out: Path | None) -> MadeFrom:
        """Hash the sources. Raises InvalidInput for a missing file."""
        return MadeFrom(
            [(name, sha256(queries), sha256(qrels)) for name, queries, qrels in judged],
            sha256(hold_out) if hold_out else "",
        )

    def require(self, out: Path) -> None:
        """Raise InvalidInput, naming the option, unless the examples in `out` have the same sources."""
        path = out / MADE_FROM
        before = msgspec.json.decode(path.read_bytes(), type=MadeFrom) if path.is_file() else MadeFrom([], "")
        for name, option in (("judged", "--judged"), ("hold_out", "--hold-out")):
            if getattr(self, name) != getattr(before, name):
                raise InvalidInput(
                    f"the examples in {out} were made with another {option}: name a new folder with --out",
                    param=name,
                )


def sha256(path: Path) -> str:
    if not path.is_file():
        raise InvalidInput(f"{path} is not a file")
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


async def mine_all(
    url: str, judged: tuple[tuple[str, Path, Path], ...], held_out: frozenset[str], progress: Progress
) -> list[TrainingExample]:
    async with AsyncClient(url) as client:
        return [
            example
            for collection, queries, qrels in judged
            async for example in mine(
                client, collection, queries, qrels, held_out=held_out, progress=progress
            )
        ]

"""Makes a data directory as this version leaves it: `python -m tests.compat.make_directory` writes the next fixture.

    directory-<n>.tar.gz
        data/            a data directory: tiers, generations, deletions, aliases, settings and hints in every state
        expected.json    what it holds and what searches find in it, for whichever version reads it (`Expected`)

To be run when a format is raised, by the first version that writes it. Fixtures are added, never replaced: the
directories of users are not made anew either.
"""

from __future__ import annotations

import tarfile
import tempfile
from dataclasses import replace
from hashlib import sha256
from itertools import pairwise
from pathlib import Path

import msgspec

from indexes.base.model import Delete, IndexOptions, Metadata, NewPassage, Tier, Upsert
from indexes.collection.collection import Collection
from indexes.directory import marker
from indexes.directory.catalog import Catalog
from indexes.lexical import analysis
from indexes.log import reader
from indexes.parts import manifest
from indexes.rebuild import chosen
from indexes.rebuild.builder import Rebuild
from indexes.rebuild.chosen import TunedSettings
from retrieval.upkeep import line_file, query_log
from tests.support.vectors import World, settings

FOLDER = Path(__file__).parent
WORLD = World(seed=11, dimensions=16)
NUMBER = 180  # of documents, with twice as many passages: fewer make no cold lists
TUNING = IndexOptions(delta_passages_max=256, segments_max=0)
METADATA: Metadata = {
    "date": "2026-03-01T09:30:00Z",
    "ratio": 0.25,
    "language": "français",
    "nested.key": -3,
    "flags": [True, "mixed", 2],
}


class Document(msgspec.Struct):
    """A live document with its passages; `vectors` is the SHA-256 of theirs."""

    text: str
    title: str
    metadata: Metadata
    passages: list[tuple[int, int, int, str]]  # start, end, tokens, heading
    vectors: str


class CollectionExpected(msgspec.Struct):
    """`passages` by tier, `content` as hex; `words` are in one document each, `vectors` in a passage of one;
    `languages` were given."""

    uid: str
    seq: int
    content: str
    generation: int
    passages: dict[Tier, int]
    recall_target: float
    documents: dict[str, Document]
    deleted: list[str]
    words: dict[str, str]
    vectors: dict[str, list[float]]
    languages: dict[str, str]


class Expected(msgspec.Struct):
    formats: dict[str, int | str]
    aliases: dict[str, str]
    collections: dict[str, CollectionExpected]


def present_formats() -> dict[str, int | str]:
    """Of all that a data directory holds."""
    return {
        "directory": marker.FORMAT,
        "log": reader.FORMAT,
        "generation": manifest.FORMAT,
        "text analysis": analysis.ANALYSIS_VERSION,
        "search settings": chosen.FORMAT,
        "query log": line_file.VERSION,
    }


def document(number: int, version: int = 0, *, passages: int = 1, metadata: Metadata | None = None) -> Upsert:
    """With one word, its title, that no other document and no other version of it has."""
    words = WORLD.text(number, version)
    cuts = [len(words) * at // passages for at in range(passages + 1)]
    pieces = tuple(
        NewPassage(start, end, end - start, WORLD.vector(number, version, at), "Chapter > Part" if at else "")
        for at, (start, end) in enumerate(pairwise(cuts))
    )
    known = WORLD.metadata(number) if metadata is None else metadata
    return Upsert(
        f"d{number}", words, f"unique{number}x{version}", known, pieces, bytes([version, number]) * 16
    )


def make_tiers(docs: Collection) -> list[str]:
    """Hot and cold passages, and newer ones; replaced and deleted ones in each; settings of its own. Returns the ids
    of what was deleted."""
    docs.write([document(number, passages=1 + number % 3) for number in range(NUMBER)]).result()
    docs.write([Delete("d7")]).result()
    rebuild(docs)
    docs.write([document(number, 1) for number in range(0, NUMBER, 25)]).result()
    docs.hits.count([2, 3, 5])
    rebuild(docs)
    live = manifest.read_manifest(docs.shelf.path(2))
    docs.set_search(
        TunedSettings(
            recall_target=0.95, generation=2, seal=live.sha256, ef=live.ef, search=live.search, recall=live.recall,
            evidence=live.evidence,
            chosen_ms=1_790_000_000_000,
        )
    )  # fmt: skip
    docs.write([Delete("d3"), Delete(f"d{NUMBER - 1}"), document(4, 2, passages=2)]).result()
    docs.write([document(number, metadata=METADATA) for number in (NUMBER, NUMBER + 1)]).result()
    docs.write([Delete(f"d{NUMBER + 1}")]).result()
    return ["d3", "d7", f"d{NUMBER - 1}", f"d{NUMBER + 1}"]


def make_delta(notes: Collection) -> list[str]:
    """Documents that brought their own vectors, and one without anything but a text; no generation."""
    own = [replace(one, passages=(replace(one.passages[0], tokens=0),)) for one in map(document, range(5))]
    other = replace(document(6), language="pt-BR")
    notes.write([*own, document(5, metadata={}), other, Delete("d0")]).result()
    return ["d0"]


def rebuild(collection: Collection) -> None:
    collection.adopt(Rebuild(collection.begin_build(), timeout_s=120).run(lambda *_: None))


def expected_of(collection: Collection, deleted: list[str]) -> CollectionExpected:
    ids = [f"d{number}" for number in range(NUMBER + 10)]
    found = {one: collection.log.upsert_of(one) for one in ids}
    live = {one: upsert for one, upsert in found.items() if upsert}
    described = collection.info()
    return CollectionExpected(
        uid=collection.uid,
        seq=described.seq,
        content=collection.snapshot.content.hex(),
        generation=described.generation,
        passages=described.passages,
        recall_target=described.recall_target,
        documents={one: as_expected(upsert) for one, upsert in live.items()},
        deleted=deleted,
        words={upsert.title: one for one, upsert in live.items()},
        vectors={one: live[one].passages[-1].vector.tolist() for one in list(live)[::10]},
        languages={one: upsert.language for one, upsert in live.items()},
    )


def as_expected(upsert: Upsert) -> Document:
    spans = [(one.start, one.end, one.tokens, one.heading) for one in upsert.passages]
    digest = sha256(b"".join(one.vector.tobytes() for one in upsert.passages)).hexdigest()
    return Document(upsert.text, upsert.title, upsert.metadata, spans, digest)


def make(folder: Path) -> None:
    """Write `data/` and `expected.json` into a folder."""
    made = Catalog(folder / "data", TUNING)
    docs = made.create("docs", settings(dimensions=16, hot_capacity=40))
    notes = made.create("notes", settings(dimensions=16))
    deleted = {"docs": make_tiers(docs), "notes": make_delta(notes)}
    made.create("empty", settings(dimensions=16))
    made.set_alias("live", "docs")
    day = query_log.Day(1, [query_log.LoggedQuery(1_790_000_000_000, "word1", 10, None, None)])
    kept = query_log.encode_file(docs.uid, {"2026-09-21": day}, 10_000)
    (docs.folder / query_log.FILE).write_bytes(kept)
    collections = {name: expected_of(one, deleted.get(name, [])) for name, one in made.collections.items()}
    expected = Expected(present_formats(), made.aliases, collections)
    made.close()
    (folder / "expected.json").write_bytes(msgspec.json.encode(expected))


def main() -> None:
    number = 1 + len(list(FOLDER.glob("directory-*.tar.gz")))
    target = FOLDER / f"directory-{number}.tar.gz"
    with tempfile.TemporaryDirectory() as folder, tarfile.open(target, "x:gz") as archive:
        make(Path(folder))
        for name in ("data", "expected.json"):
            archive.add(Path(folder) / name, name, filter=anonymous)
    print(f"{target} has {target.stat().st_size} bytes")  # noqa: T201 - a program


def anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


if __name__ == "__main__":
    main()

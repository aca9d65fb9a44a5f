"""What a search reads of a collection, in the process that writes it (`Collection`) or in another one (`Replica`)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from indexes.base.errors import Damaged, NotFound
from indexes.base.model import Floats, Ids, IndexOptions, StoredDocument, StoredPassage
from indexes.base.work import OnStep, do_nothing
from indexes.dense.exact import nearest
from indexes.filters.grammar import Filter
from indexes.log.reader import LogReader
from indexes.parts.assembly import Assembly
from indexes.parts.generation import Generation
from indexes.parts.learned import RANKING, SYNONYMS, RankingSettings, SettingsFile, SynonymSettings
from indexes.parts.part import Part
from indexes.parts.segment import Segment
from indexes.parts.segment_shelf import SegmentShelf
from indexes.parts.shelf import Shelf
from indexes.parts.snapshot import Snapshot
from indexes.rebuild.chosen import read_chosen

logger = logging.getLogger(__name__)


class HitCounter(Protocol):
    """Counts passages that searches return."""

    def count(self, passages: Iterable[int]) -> None: ...


class CollectionView:
    """An open log and the snapshot that searches read. Reading is safe from any thread."""

    log: LogReader
    documents: int
    hits: HitCounter
    _snapshot: Snapshot

    def __init__(self, folder: Path, options: IndexOptions, log: LogReader) -> None:
        self.options, self.folder, self.name = options, folder, folder.name  # its own name, not an alias
        self.log = log
        self.settings, self.uid = log.settings, log.uid
        self.shelf = Shelf(folder)
        self.segments = SegmentShelf(folder, log.settings, options.resident)
        self.chosen = read_chosen(folder)
        self.ranking = SettingsFile(folder / RANKING, RankingSettings)
        self.synonyms = SettingsFile(folder / SYNONYMS, SynonymSettings)
        self._assembly = Assembly(log.settings, options)

    @property
    def snapshot(self) -> Snapshot:
        """The latest snapshot without what has expired; a new search reads this one."""
        return self._snapshot.unexpired(self.options.now_ms)

    @property
    def generation(self) -> int:
        """The number of the live generation; 0 if there is none."""
        return self._snapshot.generation

    def moved_since(self, snapshot: Snapshot) -> bool:
        """Whether a log read may reflect a later commit than the snapshot does."""
        return self.log.position().seq != snapshot.seq

    def _read_after(
        self, generation: Generation | None, upto: int, known: Mapping[range, Segment], *, whole: bool
    ) -> tuple[list[Part], list[range]]:
        """What was written after a generation, up to a passage: the segments on disk, and deltas read back from the log
        of what is in none, in order; and the passages that died since the generation.

        Segments in `known` are not loaded again; of others, `whole` says whether checksums are verified.
        """
        after, seq = (generation.manifest.last_passage, generation.manifest.seq) if generation else (0, 0)
        parts: list[Part] = []
        on_disk = self.segments.after(after)
        if on_disk and seq < self.log.forgotten():  # it cannot tell what died since
            on_disk = []
        for covers in on_disk:
            try:
                segment = known.get(covers) or self.segments.load(covers, whole=whole)
            except (Damaged, NotFound, OSError) as error:
                logger.warning("segment %s of %s is read from the log: %s", covers, self.name, error)
                continue
            parts += self._assembly.read_back(self.log.entries(after, covers.start - 1))
            parts.append(segment)
            after = covers.stop - 1
        parts += self._assembly.read_back(self.log.entries(after, upto))
        return parts, self.log.dead_since(seq) if generation or on_disk else []

    def passages(self, ids: Sequence[int]) -> dict[int, StoredPassage]:
        """The passages among these that are live in the log. Deleted ones are absent even if an index returned them."""
        return self.log.passages(ids)

    def document(self, document_id: str) -> StoredDocument:
        found = self.log.document(document_id)
        if found is None:
            raise NotFound(f"no document {document_id!r}", param="id")
        return found

    def exact(
        self, queries: Floats, k: int, condition: Filter | None = None, on_step: OnStep = do_nothing
    ) -> list[tuple[Ids, Floats]]:
        """Exact search over the log's float32 vectors: the `k` best ids and scores for each query [n, dimensions].

        Scans every live vector once for all queries: for evaluation, not serving. `on_step` is called between blocks.
        """
        allowed = self.snapshot.allowed(condition)
        return nearest(self.log.vectors(0, self.log.position().last_passage), queries, k, allowed, on_step)

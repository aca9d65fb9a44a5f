"""How a model reads a query: all of it, or the pieces of a long one, and how much of its language."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from indexes.base.languages import chance_of, primary
from indexes.base.model import Floats
from retrieval.embedding.counting import TokenCounter
from retrieval.embedding.encoder import Encoder
from retrieval.embedding.long_queries import pieces_of
from retrieval.embedding.models import ModelManifest
from retrieval.embedding.reading import has_letters, share_read
from retrieval.embedding.results import join_windows

SURE = 0.99  # probability of a language


@dataclass(frozen=True)
class QueryReader:
    """A loaded model, as a reader of queries. Safe from any thread."""

    encoder: Encoder
    manifest: ModelManifest
    counter: TokenCounter

    def vectors_of(self, texts: Sequence[str]) -> list[Floats]:
        """Return the vectors of queries, each float32 [dimensions], from one run of the model on this thread."""
        pieces = [[text] if self.fits(text) else self.pieces(text) for text in texts]
        tokens = self.encoder.tokenize([one for some in pieces for one in some], "query")
        vectors, at, found = self.encoder.run(tokens), 0, list[Floats]()
        for some in pieces:
            own = vectors[at : at + len(some)]
            found.append(own[0] if len(some) == 1 else self.mean_of([own]))
            at += len(some)
        return found

    def mean_of(self, vectors: Sequence[Floats]) -> Floats:
        """Return the vector of a query from those of its pieces, each float32 [pieces, dimensions]."""
        rows = np.concatenate(vectors)
        mean: Floats = join_windows(rows, [1] * len(rows), [len(rows)], normalize=self.encoder.normalizes)[0]
        return mean

    def fits(self, text: str) -> bool:
        """Whether the model surely reads all of a query, without tokenizing it: a token has a byte or more."""
        return len(text.encode()) <= self.encoder.room("query")

    def pieces(self, text: str) -> list[str]:
        """Return what is read of a query: all of it, or of one that is too long what `long_queries` chooses."""
        starts = self.counter.starts(text)
        return [text] if len(starts) <= self.encoder.room("query") else pieces_of(text, starts)

    def is_cut(self, text: str) -> bool:
        """Whether a query has more tokens than the model reads. Not for the event loop."""
        return not self.fits(text) and self.pieces(text) != [text]

    def share_read(self, text: str, language: str | None, held: Callable[[], Mapping[str, int]]) -> float:
        """Return how much of a query the model reads, 0 to 1: all of its own languages, what its tokenizer knows of
        others.

        The language is given, or guessed among those in `held`, which maps languages to numbers of passages.
        """
        # A model without stated languages most likely reads English.
        spoken = {primary(code) for code in self.manifest.languages or ("en",)}
        if language is not None:
            spoken_to = float(primary(language) in spoken)
        else:
            spoken_to = chance_of(text, spoken, held())
        if spoken_to > SURE and has_letters(text):
            return 1.0  # tokenizing takes longer than detection
        with self.encoder.tokenizers.borrow() as tokenizer:
            return share_read(tokenizer, text, least=spoken_to)

"""The texts of a run: real questions and passages of public collections where they are at hand, docstrings where not.

    DATA/squad-sent/    questions, each with the one sentence that answers it: short passages
    DATA/scifact/       claims, and the abstracts that speak of them: long passages

Each folder has corpus.jsonl.gz, queries.jsonl.gz and qrels.tsv. Everybody embeds title and text of a document as one
text, cut at the model's window.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer

from indexes.errors import InvalidInput
from jobs.benchmark.embed.child import QUALITY, SPEED
from jobs.benchmark.embed.timing import Lists, Texts
from jobs.benchmark.service import sample_queries
from jobs.docstrings import docstrings
from jobs.judgements import Judgement, Query, read_judgements, read_queries
from jobs.sources import SourceDocument, read_documents
from retrieval.embedding.models import TOKENIZER, Kind, read_manifest

SQUAD, SCIFACT = "squad-sent", "scifact"
QUERY_TOKENS = range(8, 13)  # special ones included: about ten
CHECKS = 300  # texts that vectors are compared on, a third of them queries
SEED = 0


@dataclass(frozen=True, slots=True)
class Collection:
    """Documents, the chosen queries, and the judgements of those."""

    documents: list[SourceDocument]
    queries: list[Query]
    judgements: list[Judgement]


@dataclass(frozen=True, slots=True)
class Material:
    """What a run embeds. `tokens` are real ones of all passages by collection, special ones included, cut ones not."""

    queries: list[str]
    query_tokens_mean: float
    passages: dict[str, list[str]]
    tokens: dict[str, int]
    collections: dict[str, Collection]

    def write(self, folder: Path, clients: int) -> None:
        """Leave the texts for the child processes of a run."""
        speed = Texts(queries=self.queries, passages=self.passages, clients=clients)
        (folder / SPEED).write_bytes(msgspec.json.encode(speed))
        quality = Lists(
            checks=self.checks(),
            documents={name: texts_of(one.documents) for name, one in self.collections.items()},
            queries={name: [query.text for query in one.queries] for name, one in self.collections.items()},
        )
        (folder / QUALITY).write_bytes(msgspec.json.encode(quality))

    def checks(self) -> list[str]:
        """Queries and passages of every kind, in random order, so that long and short ones share runs."""
        share = CHECKS // (1 + len(self.passages))
        lists = [self.queries, *self.passages.values()]
        chosen = [text for texts in lists for text in texts[:share]]
        random.Random(SEED).shuffle(chosen)
        return chosen

    def describe(self) -> dict[str, Any]:
        return {
            "queries": len(self.queries),
            "query_tokens_mean": round(self.query_tokens_mean, 1),
            "passages": {name: len(texts) for name, texts in self.passages.items()},
            "passage_tokens_mean": {
                name: round(self.tokens[name] / len(texts), 1) for name, texts in self.passages.items()
            },
            "judged": {
                name: {"documents": len(one.documents), "queries": len(one.queries)}
                for name, one in self.collections.items()
            },
        }


def gather(data: Path | None, model: Path, *, queries: int, passages: int, questions: int) -> Material:
    """Read what a run needs. `queries` for time; at most so many `passages` and judged `questions` a collection.

    Without `data`: docstrings and pieces of them, and nothing that rankings could be judged by. Raises InvalidInput
    where a collection is damaged, or `data` has none.
    """
    counter = Counter(model)
    collections = {} if data is None else read_collections(data, questions)
    corpora = {name: one.documents for name, one in collections.items()}
    corpora = corpora or {"docstrings": list(islice(docstrings(), max(passages, queries)))}
    chosen = {
        name: texts_of(random.Random(SEED).sample(documents, min(passages, len(documents))))
        for name, documents in corpora.items()
    }
    short = counter.short(question_texts(data, corpora), queries)
    return Material(
        queries=short,
        query_tokens_mean=counter.total(short, "query") / len(short),
        passages=chosen,
        tokens={name: counter.total(texts, "document") for name, texts in chosen.items()},
        collections=collections,
    )


def read_collections(data: Path, questions: int) -> dict[str, Collection]:
    found = {
        name: read_collection(data / name, questions) for name in (SQUAD, SCIFACT) if (data / name).is_dir()
    }
    if not found:
        raise InvalidInput(f"{data} has neither {SQUAD} nor {SCIFACT}", param="data")
    return found


def read_collection(folder: Path, questions: int) -> Collection:
    """All documents, and a sample of the queries that have judgements."""
    judgements = read_judgements(folder / "qrels.tsv")
    judged = {one.query for one in judgements}
    queries = [query for query in read_queries(folder / "queries.jsonl.gz") if query.id in judged]
    chosen = random.Random(SEED).sample(queries, min(questions, len(queries)))
    asked = {query.id for query in chosen}
    return Collection(
        list(read_documents([folder / "corpus.jsonl.gz"])),
        chosen,
        [one for one in judgements if one.query in asked],
    )


def question_texts(data: Path | None, corpora: dict[str, list[SourceDocument]]) -> list[str]:
    """Everything that may be asked for time: real questions, or pieces of the documents."""
    if data is not None:
        names = [SQUAD] if SQUAD in corpora else list(corpora)
        return [query.text for name in names for query in read_queries(data / name / "queries.jsonl.gz")]
    documents = [document for corpus in corpora.values() for document in corpus]
    return [query.text for query in sample_queries(documents, len(documents), SEED)]


def texts_of(documents: Sequence[SourceDocument]) -> list[str]:
    return [f"{one.title}\n{one.text}" if one.title else one.text for one in documents]


class Counter:
    """Counts tokens as the model reads them: special ones included, cut at its window, no padding."""

    def __init__(self, model: Path) -> None:
        manifest = read_manifest(model)
        self._tokenizer = Tokenizer.from_file(str(model / TOKENIZER))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(manifest.tokens_max)
        self._prefixes: dict[Kind, str] = {
            "query": manifest.query_prefix,
            "document": manifest.document_prefix,
        }

    def total(self, texts: Sequence[str], kind: Kind) -> int:
        """Of texts that are embedded as such, with the prefix that the model puts before them."""
        return sum(self.lengths([self._prefixes[kind] + text for text in texts]))

    def lengths(self, texts: Sequence[str]) -> list[int]:
        return [len(encoding.ids) for encoding in self._tokenizer.encode_batch_fast(list(texts))]

    def short(self, texts: Sequence[str], wanted: int) -> list[str]:
        """So many different texts of about ten tokens, or all there are, chosen at random. A prefix does not count."""
        different = list(dict.fromkeys(texts))
        lengths = self.lengths(different)
        fitting = [text for text, length in zip(different, lengths, strict=True) if length in QUERY_TOKENS]
        if not fitting:
            raise InvalidInput(f"no query has {QUERY_TOKENS[0]} to {QUERY_TOKENS[-1]} tokens", param="data")
        return random.Random(SEED).sample(fitting, min(wanted, len(fitting)))

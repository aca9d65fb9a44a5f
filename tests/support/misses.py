"""Documents planted so that a search misses them, each for a reason that is known.

The texts are the docstrings of the standard library. A miss is made from a search that did find its document, or from
documents written for it; what follows from the search's own answers is asserted here, not believed.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from indexes.base.model import Delete, IndexOptions, Settings
from indexes.collection.collection import Collection
from indexes.dense.cold import ColdSettings
from jobs.sources.docstrings import docstrings
from retrieval.access.auth import ANYBODY, PRINCIPAL, Principal
from retrieval.admission.gates import Gates
from retrieval.base.merge_patch import apply_patch
from retrieval.base.settings import Config, ModelsSection
from retrieval.cache import MemoryStore, ResultCache
from retrieval.documents.writing import write_documents
from retrieval.embedding.embedders import Embedders
from retrieval.embedding.results import Observer
from retrieval.insight.explaining import ExplainedCollection, explain
from retrieval.search.pipeline import Pipeline
from retrieval.wire.documents import SentDocument
from retrieval.wire.explain import ExplainAnswer, ExplainRequest
from retrieval.wire.search import SearchAnswer, SearchRequest
from tests.support.vectors import rebuild

T = TypeVar("T")
JSON = dict[str, Any]

# Questions about programs in languages that the default model does not read.
FOREIGN = [
    "как отсортировать список по нескольким ключам",
    "почему соединение с сервером прерывается",
    "разобрать дату из строки",
    "как сжать файл перед отправкой",
    "удалить повторяющиеся элементы из списка",
    "создать временный каталог",
    "как запустить дочерний процесс и дождаться его",
    "прочитать файл построчно",
    "πώς μπορώ να διαβάσω ένα αρχείο γραμμή προς γραμμή",
    "γιατί διακόπτεται η σύνδεση με τον διακομιστή",
    "πώς να συμπιέσω ένα αρχείο",
    "كيف أقرأ ملفا سطرا بسطر",
    "لماذا ينقطع الاتصال بالخادم",
    "كيف أرتب القائمة حسب المفتاح",
    "ファイルを一行ずつ読む方法",
    "サーバーへの接続が切れる理由",
    "一時ディレクトリを作成する",
    "วิธีอ่านไฟล์ทีละบรรทัด",
    "สร้างไดเรกทอรีชั่วคราว",
    "फ़ाइल को पंक्ति दर पंक्ति कैसे पढ़ें",
]
CONSONANTS, VOWELS = "bdfgklmnprstvz", "aeiou"


@dataclass(frozen=True)
class Miss:
    """A search that misses a document, and what should be said of it: a kind, and what evidence must hold."""

    kind: str
    request: JSON
    document_id: str
    extra: JSON = field(default_factory=dict)
    evidence: JSON = field(default_factory=dict)
    patch: JSON | None = None

    def shown_by(self, answer: ExplainAnswer) -> bool:
        """Whether the evidence holds what was planted, and the change that was foreseen, if one was, is the last."""
        got = answer.cause.evidence
        held = (
            got.get(name) == value or holds(got.get(name), value) for name, value in self.evidence.items()
        )
        changes = [*filter(None, [answer.change]), *answer.others]
        return all(held) and (self.patch is None or self.patch in [one.patch for one in changes[-1:]])


def holds(found: object, value: object) -> bool:
    """Whether a list has a value, or objects with it."""
    each = found if isinstance(found, list) else []
    return any(value == one or (isinstance(one, dict) and value in one.values()) for one in each)


ALL: JSON = {"collapse": False}  # what is planted are copies


@dataclass
class Service:
    """The pipeline of a service with one collection, driven by one event loop."""

    runner: asyncio.Runner
    config: Config
    embedders: Embedders
    pipeline: Pipeline
    collection: Collection

    def run(self, work: Awaitable[T]) -> T:
        async def awaited() -> T:
            return await work

        return self.runner.run(awaited())

    def write(self, *documents: JSON) -> None:
        sent = [msgspec.convert(encoded(one), SentDocument) for one in documents]
        entry = Gates(self.config.admission).enter("write", None, 0)
        self.run(write_documents(self.collection, self.embedders, sent, self.config, entry))

    def delete(self, *ids: str) -> None:
        self.collection.write([Delete(one) for one in ids]).result()

    def search(self, **search: Any) -> SearchAnswer:
        request = msgspec.json.decode(
            msgspec.json.encode({"cache": False, **ALL, **search}), type=SearchRequest
        )
        return self.run(self.pipeline.search("c", self.collection, request))

    def found(self, **search: Any) -> list[str]:
        return [hit.document_id for hit in self.search(**search).hits]

    def explain(self, document_id: str, caller: Principal = ANYBODY, **search: Any) -> ExplainAnswer:
        body = msgspec.json.encode({**ALL, **search, "document_id": document_id})
        wanted = msgspec.json.decode(body, type=ExplainRequest)

        async def explained() -> ExplainAnswer:
            PRINCIPAL.set(caller)
            explained = ExplainedCollection(self.pipeline, self.collection)
            return await explain(explained, self.embedders, wanted, self.config)

        return self.runner.run(explained(), context=copy_context())


def encoded(document: JSON) -> JSON:
    raw: JSON = {
        name: msgspec.Raw(msgspec.json.encode(document[name]))
        for name in ("metadata", "vector")
        if name in document
    }
    return {**document, **raw}


@contextmanager
def serving(folder: Path, model_folder: Path) -> Iterator[Service]:
    config = Config(models=ModelsSection(folder=str(model_folder.parent), default=model_folder.name))
    with asyncio.Runner() as runner:
        embedders = runner.run(made(config))
        embedder = runner.run(embedders.get(model_folder.name))
        settings = Settings(
            embedder.encoder.dimensions, embedder.fingerprint, model_folder.name, hot_capacity=60
        )
        results = ResultCache(MemoryStore(0, time.monotonic), None, ttl_s=60, now=time.time)
        with closing(Pipeline(embedders, results, config)) as pipeline:
            with closing(Collection.create(folder, settings, IndexOptions(recall_floor=0))) as collection:
                yield Service(runner, config, embedders, pipeline, collection)
        runner.run(embedders.close())


async def made(config: Config) -> Embedders:
    return Embedders(config, lambda name: Observer())


class Planter:
    """Plants misses in a collection of docstrings. Ends with the index: what comes after `plant` finds less."""

    def __init__(self, service: Service, documents: int, seed: int = 1) -> None:
        self.service, self.chance = service, random.Random(seed)
        texts = (one for one in docstrings() if len(one.text) > 60)
        step = max(1, 5400 // documents)
        self.documents: list[JSON] = [
            {"id": one.id, "title": one.title, "text": one.text, "metadata": one.metadata}
            for one in islice(texts, 0, None, step)
        ][:documents]
        for at in range(0, len(self.documents), 200):
            service.write(*self.documents[at : at + 200])
        self.names = iter(self.invented())

    def invented(self) -> Iterator[str]:
        """Words that no text holds."""
        known: set[str] = set()
        while True:
            word = "".join(self.chance.choice(CONSONANTS) + self.chance.choice(VOWELS) for _ in range(4))
            if word not in known:
                known.add(word)
                yield word

    def plant(self, each: int) -> Iterator[Miss]:
        """About so many of each kind. The last kind needs the collection for itself."""
        kinds = [
            self.absent,
            self.deleted,
            self.later,
            self.filtered,
            self.outscored,
            self.floored,
            self.distant,
        ]
        kinds += [self.without_words, self.in_metadata, self.cut_titles, self.apart, self.under_headings]
        kinds += [self.unread, self.own_vectors, self.grouped]
        for kind in kinds:
            yield from islice(kind(), each)

    # --- what is asked ------------------------------------------------------------------------------------------

    def questions(
        self, place: Callable[[int], bool] = lambda rank: rank <= 5, **search: Any
    ) -> Iterator[tuple[JSON, JSON, int]]:
        """Documents with a search by their first words, and their place among 50 hits."""
        for document in self.chance.sample(self.documents, len(self.documents)):
            query = " ".join(document["text"].split(". ")[0].split()[:25])
            asked = {"query": query, **search}
            found = self.service.found(**asked, k=50)
            if document["id"] in found and place(rank := found.index(document["id"]) + 1):
                yield document, asked, rank

    def pairs(self, **search: Any) -> Iterator[tuple[JSON, JSON]]:
        """A search, and a document that has nothing to do with it."""
        while True:
            document, other = self.chance.sample(self.documents, 2)
            yield document, {"query": " ".join(other["text"].split(". ")[0].split()[:25]), **search}

    # --- kinds --------------------------------------------------------------------------------------------------

    def absent(self) -> Iterator[Miss]:
        for document, asked, _ in self.questions():
            name = document["id"]
            at = self.chance.randrange(len(name))
            typo = name[:at] + "zz" + name[at + 1 :]
            yield Miss(
                "no_document",
                asked,
                typo,
                evidence={"similar_ids": name},
            )

    def deleted(self) -> Iterator[Miss]:
        for document, asked, _ in self.questions():
            copy = {**document, "id": document["id"] + "-old"}
            self.service.write(copy)
            self.service.delete(copy["id"])
            yield Miss(
                "no_document",
                asked,
                copy["id"],
                evidence={"similar_ids": document["id"]},
            )

    def later(self) -> Iterator[Miss]:
        """Written after an answer that is asked about."""
        for document, asked, _ in self.questions():
            seq = self.service.search(**asked).receipt.seq
            copy = {**document, "id": document["id"] + "-new"}
            self.service.write(copy)
            yield Miss("not_visible", asked, copy["id"], {"answer_seq": seq})
            self.service.delete(copy["id"])

    def filtered(self) -> Iterator[Miss]:
        for document, asked, _ in self.questions():
            metadata = document["metadata"]
            failing, where = self.failing(metadata)
            true = {"type": "exists", "key": "line"}
            shape = self.chance.randrange(4)
            if shape == 0:
                asked["filter"] = failing
            elif shape == 1:
                asked["filter"] = {"type": "and", "filters": [true, failing]}
                where = f"filter.filters[1]{where}"
            elif shape == 2:
                asked["filter"] = {"type": "not", "filter": true}
                where = "filter.filter"
            else:
                asked["filter"] = {"type": "and", "filters": [{"type": "or", "filters": [failing]}, true]}
                where = f"filter.filters[0].filters[0]{where}"
            where = where if where.startswith("filter") else f"filter{where}"
            yield Miss(
                "filtered",
                asked,
                document["id"],
                evidence={"conditions": where},
            )

    def failing(self, metadata: JSON) -> tuple[JSON, str]:
        kind, line = metadata["kind"], metadata["line"]
        other = next(one for one in ("class", "function", "module") if one != kind)
        return self.chance.choice([
            ({"type": "eq", "key": "kind", "value": other}, ""),
            ({"type": "ne", "key": "kind", "value": kind}, ""),
            ({"type": "in", "key": "kind", "value": [other]}, ""),
            ({"type": "nin", "key": "kind", "value": [kind]}, ""),
            ({"type": "gt", "key": "line", "value": line}, ""),
            ({"type": "lt", "key": "line", "value": line}, ""),
            ({"type": "prefix", "key": "module", "value": "zz"}, ""),
            ({"type": "exists", "key": "module", "value": False}, ""),
            ({"type": "not", "filter": {"type": "eq", "key": "kind", "value": kind}}, ".filter"),
        ])  # fmt: skip

    def outscored(self) -> Iterator[Miss]:
        modes = [self.questions(lambda rank: rank > 1, mode=mode) for mode in ("hybrid", "dense", "lexical")]
        for together in zip(*modes):
            for document, asked, rank in together:
                k = self.chance.randrange(1, rank)
                yield Miss(
                    "outscored",
                    {**asked, "k": k},
                    document["id"],
                    evidence={"k_needed": rank},
                    patch={"k": rank},
                )

    def floored(self) -> Iterator[Miss]:
        for document, asked, rank in self.questions():
            hit = self.service.search(**asked).hits[rank - 1]
            floor = self.chance.choice(["min_score", "min_relevance"])
            value = hit.score if floor == "min_score" else hit.relevance
            assert value is not None
            if value < 0.99:
                yield Miss("below_floor", {**asked, floor: value + 0.005}, document["id"])

    def distant(self) -> Iterator[Miss]:
        """In the first hundred of neither ranking."""
        for document, asked in self.pairs():
            if not any(
                document["id"] in self.service.found(**asked, mode=mode, k=100)
                for mode in ("dense", "lexical")
            ):
                yield Miss("beyond_depth", asked, document["id"])

    def without_words(self) -> Iterator[Miss]:
        """By words alone, where it holds none: another's question, or one with a typing error in each word."""
        for document, asked in self.pairs(mode="lexical"):
            if self.chance.random() < 0.5:
                words = [word for word in document["text"].split()[:8] if len(word) > 5]
                asked["query"] = " ".join(word[:2] + "q" + word[3:] for word in words)
            if not asked["query"] or document["id"] in self.service.found(**asked, k=1000):
                continue
            if not self.shares_words(document["id"], asked["query"]):
                yield Miss("missing_terms", asked, document["id"])

    def shares_words(self, document_id: str, query: str) -> bool:
        collection = self.service.collection
        ranked = collection.snapshot.lexical(query, collection.snapshot.live).ids
        return bool(np.isin(collection.log.passages_of(document_id), ranked).any())

    def in_metadata(self) -> Iterator[Miss]:
        for document in self.chance.sample(self.documents, len(self.documents)):
            person = f"{next(self.names).title()} {next(self.names).title()}"
            copy = {
                **document,
                "id": document["id"] + "-by",
                "metadata": {**document["metadata"], "author": person},
            }
            self.service.write(copy)
            asked = {"query": person, "mode": self.chance.choice(["hybrid", "lexical", "dense"])}
            if copy["id"] not in self.service.found(**asked):
                yield Miss(
                    "words_elsewhere",
                    asked,
                    copy["id"],
                    evidence={"where": "metadata"},
                )
            self.service.delete(copy["id"])

    def cut_titles(self) -> Iterator[Miss]:
        """The question stands at the end of the title of another text, behind what is embedded of a title."""
        long = [one for one in self.documents if len(one["text"].split()) >= 70]
        for _, asked, _ in self.questions(mode="dense"):
            filler, body = self.chance.choice(long), self.chance.choice(self.documents)
            title = " ".join(filler["text"].split()[:70]) + " " + asked["query"]
            copy = {**body, "id": body["id"] + "-titled", "title": title}
            self.service.write(copy)
            if copy["id"] not in self.service.found(**asked):
                yield Miss(
                    "words_elsewhere",
                    asked,
                    copy["id"],
                    evidence={"where": "title"},
                )
            self.service.delete(copy["id"])

    def apart(self) -> Iterator[Miss]:
        """The words of the query in different passages of a long document, behind one that repeats half of them."""
        for number in range(10_000):
            first, second = next(self.names), next(self.names)
            fill = " ".join(one["text"] for one in self.chance.sample(self.documents, 8))
            copy = {"id": f"long-{number}", "text": f"{first} {fill} {second}"}
            self.service.write(copy, {"id": f"short-{number}", "text": f"{first} {first}"})
            asked = {"query": f"{first} {second}", "mode": "lexical", "k": 1}
            if copy["id"] not in self.service.found(**asked):
                yield Miss(
                    "words_elsewhere",
                    asked,
                    copy["id"],
                    evidence={"where": "other passages"},
                )
            self.service.delete(copy["id"], f"short-{number}")

    def under_headings(self) -> Iterator[Miss]:
        """One word of the query in the heading of the chapter, the other in a later section of it."""
        for number in range(10_000):
            first, second = next(self.names), next(self.names)
            fill = [" ".join(one["text"].split()) for one in self.chance.sample(self.documents, 8)]
            chapter = f"# {first}\n\n{fill[0]} {fill[1]}\n\n## Part\n\n{second} {' '.join(fill[2:])}"
            copy = {"id": f"chapter-{number}", "text": chapter}
            self.service.write(copy, {"id": f"other-{number}", "text": f"{second} {second}"})
            asked = {"query": f"{first} {second}", "mode": "lexical", "k": 1}
            held = self.service.collection.log.passages_of(copy["id"])
            stored = list(self.service.collection.passages(held).values())
            apart = not any(first in one.text and second in one.text for one in stored)
            if apart and copy["id"] not in self.service.found(**asked):
                last = next(one.ordinal for one in stored if second in one.text)
                yield Miss(
                    "words_elsewhere", asked, copy["id"], {"passage": last}, evidence={"where": "headings"}
                )
            self.service.delete(copy["id"], f"other-{number}")

    def unread(self) -> Iterator[Miss]:
        for query in self.chance.choices(FOREIGN, k=10_000):
            asked, document = {"query": query, "mode": "dense"}, self.chance.choice(self.documents)
            if document["id"] not in self.service.found(**asked):
                yield Miss("unread_query", asked, document["id"])

    def own_vectors(self) -> Iterator[Miss]:
        for document, asked, _ in self.questions(lambda rank: rank == 1, mode="dense"):
            drawn = np.random.default_rng(self.chance.randrange(1 << 30)).normal(
                size=self.service.collection.settings.dimensions
            )
            copy = {**document, "id": document["id"] + "-drawn", "vector": drawn.tolist()}
            self.service.write(copy)
            if copy["id"] not in self.service.found(**asked):
                yield Miss("own_vector", asked, copy["id"])
            self.service.delete(copy["id"])

    def grouped(self) -> Iterator[Miss]:
        """Another passage of the same document is shown."""
        for number in range(10_000):
            word = next(self.names)
            parts = [f"{word} {one['text']}" for one in self.chance.sample(self.documents, 4)]
            name = f"parts-{number}"
            self.service.write({"id": name, "text": "\n\n".join(parts)})
            asked = {"query": word, "mode": "lexical", "group_by_document": True}
            hits = [hit for hit in self.service.search(**asked).hits if hit.document_id == name]
            others = [hit.passage for hit in self.service.search(query=word, mode="lexical").hits[1:]]
            if hits and others:
                yield Miss("grouped", asked, name, {"passage": others[0]})
            self.service.delete(name)

    def missed(self) -> Iterator[Miss]:
        """Builds the indexes, and searches one cold list at most: by exact search each would be a hit."""
        collection = self.service.collection
        rebuild(collection)
        generation = next(one.part for one in collection.snapshot.parts if one.part.tier_rows().get("cold"))
        generation.tune(cold=ColdSettings(probes=1, rescored=10, reach=-2.0))  # type: ignore[attr-defined]
        for _, asked, _ in self.questions(lambda rank: True, mode="dense"):
            found = self.service.found(**asked)
            for name in self.service.found(**asked, exact=True):
                if name not in found:
                    yield Miss(
                        "missed_by_index",
                        asked,
                        name,
                        evidence={"tier": "cold"},
                    )


@dataclass
class Verdict:
    miss: Miss
    answer: ExplainAnswer
    faults: list[str]


def judge(service: Service, miss: Miss) -> Verdict:
    """Explain a miss and check the answer against what was planted; and each change by running it."""
    answer = service.explain(miss.document_id, **miss.request, **miss.extra)
    faults = []
    if answer.found is not None:
        faults.append("found")
    if answer.cause.kind != miss.kind:
        faults.append(f"kind {answer.cause.kind}")
    elif not miss.shown_by(answer):
        faults.append("evidence")
    passage = miss.extra.get("passage")
    for change in [*filter(None, [answer.change]), *answer.others]:
        hits = service.search(**apply_patch(miss.request, change.patch)).hits
        ranks = [
            rank
            for rank, hit in enumerate(hits, 1)
            if hit.document_id == miss.document_id and passage in (None, hit.passage)
        ]
        if ranks[:1] != [change.verified_rank]:
            faults.append(f"{change.patch} gives {ranks[:1]}, not {change.verified_rank}")
    return Verdict(miss, answer, faults)


def shares(verdicts: Sequence[Verdict]) -> dict[str, str]:
    """Right of all, by kind, and how many had a change that finds the document."""
    kinds = dict.fromkeys(one.miss.kind for one in verdicts)
    rows = {}
    for kind in kinds:
        own = [one for one in verdicts if one.miss.kind == kind]
        right, changed = sum(not one.faults for one in own), sum(one.answer.change is not None for one in own)
        rows[kind] = f"{right}/{len(own)} right, {changed} with a change"
    return rows

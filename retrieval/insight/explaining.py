"""Why is this document (not) among the hits of this search, and what is the smallest change that finds it?

    search -> its trail -> the first cause -> changes that may help, each tried in a search
                 ^                                        |
                 +---- none helps: apply the change that the cause requires, go on to the next cause

Searches here run through the service's pipeline, but bypass the caches and are not counted. Every proposed change
was tried and found the document. Those that bring it among the first hits as asked (`mending`) come before a later page
and a larger `k`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import msgspec
from msgspec import UNSET

from indexes.base.errors import DeadlineExceeded, InvalidInput, NotFound, TooLarge, Unavailable
from indexes.base.model import Floats, Settings
from indexes.base.suggestions import similar
from indexes.base.work import WorkBudget
from indexes.collection.collection import Collection
from indexes.filters.dates import date_of
from retrieval.access.auth import PRINCIPAL
from retrieval.base.merge_patch import apply_patch, merge_patch
from retrieval.base.settings import Config
from retrieval.embedding.embedders import Embedders
from retrieval.insight.causes import (
    below_floor,
    beyond_depth,
    cause_of_rank,
    collapsing_cause,
    cut_query,
    filter_cause,
    grouping_cause,
    meant_elsewhere,
    missed_by_index,
    missing_terms,
    nearest_sentence,
    numbers,
    own_vector,
    score_cause,
    unread_query,
    words_elsewhere,
)
from retrieval.insight.mending import MODES, mends_of, modes
from retrieval.insight.trail import Target, Trail, as_json, trail_of
from retrieval.search.option_checks import check_arranged, check_offset
from retrieval.search.pipeline import Pipeline, TracedSearch, wait_for_seq
from retrieval.search.plan import SPARE_HITS, check_k, filter_of
from retrieval.search.shard import DocumentRead, LocalShard, Seqs, What, run_at_once, shard_of
from retrieval.search.stopwatch import Stopwatch
from retrieval.wire.decoding import decode, decode_part, is_absent
from retrieval.wire.explain import Cause, Change, ExplainAnswer, ExplainRequest
from retrieval.wire.search import Mode, SearchRequest, seq_in

JSON = dict[str, Any]

CAUSES_MAX = 5  # in a row
SEARCHES_MAX = 24  # per explanation; most take two to six, contrived ones at most 12
SEARCHED_S_MAX = 0.16  # of CPU time that an explanation's searches may take together
RERANKED_S_MAX = 0.25  # the same if the last of them reads candidates with the cross-encoder
PHRASE_CHARS = 500_000  # that all changes to phrases may look for them in
SIMILAR_MAX = 3
HALVINGS_MAX = 4  # when searching for the fewest hits
# Options that other causes cover, and options that change no answer.
NAMED_OPTIONS = frozenset({
    "cache", "collapse", "deadline_ms", "exact", "explain", "filter", "group_by_document", "k", "min_relevance",
    "min_score", "min_seq", "mode", "query", "rerank", "vector",
})  # fmt: skip
MODES_OF: dict[str, tuple[Mode, ...]] = {
    "exact": ("dense",),
    "fusion": ("hybrid",),
    "vector": ("hybrid", "dense"),
}


class Explainable(Protocol):
    """A collection whose searches are explained."""

    @property
    def settings(self) -> Settings: ...

    async def read(self, document_id: str, alike: int = 0) -> DocumentRead:
        """Read a document, and up to so many similar ids."""
        ...

    async def follow(
        self, request: SearchRequest, vectors: dict[str, Floats], work: WorkBudget | None
    ) -> TracedSearch:
        """Search as `Pipeline.follow` does."""
        ...

    async def wait_for(self, seqs: Seqs) -> None:
        """Wait a while for these operations, unless searches that ask for them do."""
        ...

    def write_down(self, seqs: Seqs) -> int | str: ...

    def read_seqs(self, seq: int | str) -> Seqs:
        """Read what `write_down` wrote. Raises InvalidInput."""
        ...


@dataclass(frozen=True, slots=True)
class ExplainedCollection:
    """A collection in one piece."""

    pipeline: Pipeline
    collection: Collection

    @property
    def settings(self) -> Settings:
        return self.collection.settings

    async def read(self, document_id: str, alike: int = 0) -> DocumentRead:
        shard = LocalShard(self.collection, self.collection.snapshot, Stopwatch())
        return await asyncio.to_thread(run_at_once, partial(shard.read, document_id, alike))

    async def follow(
        self, request: SearchRequest, vectors: dict[str, Floats], work: WorkBudget | None
    ) -> TracedSearch:
        return await self.pipeline.follow(self.collection, request, vectors, work)

    async def wait_for(self, seqs: Seqs) -> None:
        await wait_for_seq(self.collection, seqs[0])

    def write_down(self, seqs: Seqs) -> int:
        return seqs[0]

    def read_seqs(self, seq: int | str) -> Seqs:
        return {0: seq_in(seq)}


async def explain(
    explained: Explainable, embedders: Embedders, wanted: ExplainRequest, config: Config
) -> ExplainAnswer:
    """Explain a search result. Raises what the search would, and InvalidInput for a passage that the document lacks."""
    document_id = str(wanted.document_id)
    if wanted.partial:
        raise InvalidInput("an explanation rests on all shards", param="partial")
    # Checked here too, before its filter is decoded.
    filter_of(wanted.filter, config)
    search: JSON = as_json(wanted, SearchRequest)
    pages: JSON = {}
    page_size = check_k(wanted.k, config)
    if skipped := search.pop("offset", 0):  # earlier pages count as found
        search["k"] = check_offset(skipped, page_size, config)
        check_arranged(wanted, search["k"], max(config.search.candidates, page_size))
        pages = {"offset": None, "k": search["k"]}
    answered = seqs_in(explained, wanted.answer_seq)
    read = await explained.read(document_id)
    try:
        target = target_of(read, document_id, wanted.passage)
    except NotFound:
        absent = await absence(explained, document_id, read)
        found = await explained.follow(request_of(search), {}, None)  # raises what the search would raise
        return ExplainAnswer(None, absent, [], None, [], [], 1, explained.write_down(found.seqs))
    inquiry = Inquiry(explained, embedders, target, search, config, pages, page_size)
    return await inquiry.explain(answered)


def seqs_in(explained: Explainable, answer_seq: int | str | None) -> Seqs | None:
    try:
        return None if answer_seq is None else explained.read_seqs(answer_seq)
    except InvalidInput as error:
        error.param = "answer_seq"
        raise


def target_of(read: DocumentRead, document_id: str, passage: int | None) -> Target:
    """Return the document to follow. Raises NotFound, also for a document that the caller may not see."""
    document = read.document
    if document is None or read.expired or not PRINCIPAL.get().may_read(document.metadata):
        raise NotFound(f"no document {document_id!r}", param="document_id")
    ids = range(read.first, read.first + document.passages)
    if passage is not None and passage >= len(ids):
        raise InvalidInput(f"the document has {len(ids)} passages, and no passage {passage}", param="passage")
    return Target(document, ids, passage)


async def absence(explained: Explainable, document_id: str, read: DocumentRead) -> Cause:
    """Say that the document has expired, as long as the log still has it and if the caller may know, or else that there
    is none."""
    ended = read.document if read.expired else None
    if ended is None or ended.expires_ms is None or not PRINCIPAL.get().may_read(ended.metadata):
        return await no_document(explained, document_id)
    when = date_of(ended.expires_ms)
    reason = f"it expired at {when}: searches hide it from then on, and it will be deleted soon"
    written = explained.write_down({shard_of(read.first): ended.seq})
    return Cause("expired", "log", reason, {"expires_at": when, "written_seq": written})


async def no_document(explained: Explainable, document_id: str) -> Cause:
    """Say that the document was never written or was deleted (the log keeps no deleted ids), and suggest similar
    ids."""
    alike: list[str] = []
    if PRINCIPAL.get().groups is None:  # do not reveal ids to a caller who sees only some documents
        alike = similar(document_id, (await explained.read(document_id, SIMILAR_MAX)).alike, SIMILAR_MAX)
    reason = f"no document has the id {document_id!r}: it was never written, or was deleted"
    if alike:
        reason += f"; similar ids: {', '.join(map(repr, alike))}"
    return Cause("no_document", "log", reason, {"similar_ids": alike})


def not_visible(reason: str, **evidence: int | str) -> Cause:
    return Cause("not_visible", "snapshot", reason, evidence)


@dataclass(slots=True)
class Inquiry:
    """One explanation. `search` is the request as JSON, and `pages` the patch that made it one page from the first hit;
    `patch` collects the changes that causes so far require."""

    explained: Explainable
    embedders: Embedders
    target: Target
    search: JSON
    config: Config
    pages: JSON
    page_size: int
    patch: JSON = field(default_factory=dict)
    vectors: dict[str, Floats] = field(default_factory=dict)
    phrase_work: WorkBudget = field(default_factory=lambda: WorkBudget(phrase_chars=PHRASE_CHARS))
    causes: list[Cause] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    searches: int = 0
    searched_s: float = 0.0
    whole: bool = True

    async def explain(self, answered: Seqs | None) -> ExplainAnswer:
        written = self._label(self.target.written)
        try:
            trail = await self._trail()
        except DeadlineExceeded as error:
            if error.param != "min_seq":
                raise
            self.patch["min_seq"] = None
            trail = await self._trail()
            seq, min_seq = self._label(trail.search.seqs), self.search["min_seq"]
            reason = f"the search fails: it asks for min_seq {min_seq}, and the log is at {seq}"
            await self._next(not_visible(reason, min_seq=min_seq, seq=seq, written_seq=written), [{}])
        first = trail
        if answered is not None and self.target.is_later(answered):
            answer_seq = self._label(answered)
            reason = f"it was written, or last changed, by operation {written}; the answer saw those up to {answer_seq}"
            cause = not_visible(reason, written_seq=written, answer_seq=answer_seq)
            await self._next(cause, [{"min_seq": written}], {"min_seq": written})
        elif trail.rank is not None and not self.causes:
            self.causes.append(await asyncio.to_thread(cause_of_rank, trail))
        while not self.changes and trail.rank is None and len(self.causes) < CAUSES_MAX:
            if not await self._cause(trail):
                break
            if not self.changes:
                if self._spent():
                    break
                trail = await self._trail()
        found = first.rank if self.causes[0].kind == "found" else None
        changes = sorted(self.changes, key=lambda one: not is_within(one, first.plan.k))
        return ExplainAnswer(
            found=found,
            cause=self.causes[0],
            also=self.causes[1:],
            change=changes[0] if changes else None,
            others=changes[1:],
            within_k=UNSET if found else any(is_within(one, first.plan.k) for one in changes[:1]),
            passages=await asyncio.to_thread(first.rows),
            searches=self.searches,
            over_budget=UNSET if self.whole else True,
            seq=self._label(first.search.seqs),
        )

    # --- causes, stage by stage ---------------------------------------------------------------------------------

    async def _cause(self, trail: Trail) -> bool:
        """Find the cause of a miss and try what may help. Return False if nothing more can be done."""
        plan = trail.plan
        if not trail.best:
            written, seq = self._label(self.target.written), self._label(trail.search.seqs)
            reason = f"it was written by operation {written}, and this search saw those up to {seq}"
            await self.explained.wait_for(self.target.written)
            return await self._next(not_visible(reason, written_seq=written, seq=seq), [{"min_seq": written}])
        if kept_out := filter_cause(trail):
            patch: JSON = {"filter": patch_of(condition_of(plan.request), trail.found.relaxed)}
            return await self._next(kept_out, [patch], patch)
        if one := grouping_cause(trail):
            alone: JSON = {"group_by_document": False}
            return await self._next(one, [alone], alone)
        if one := collapsing_cause(trail):
            whole: JSON = {"collapse": False}
            return await self._next(one, [whole], whole)
        if low := below_floor(trail):
            return await self._next(low[0], [dict(low[1])], dict(low[1]))
        if plan.rerank is not None and (change := await self._try({"rerank": False})):
            reason = (
                f"the cross-encoder put it behind the last hit; without it, it is hit {change.verified_rank}"
            )
            self.causes.append(Cause("reranked", "rerank", reason, numbers(trail)))
            self.changes.append(change)
            return True
        return await self._cut_query(trail) or await self._cause_of_scores(trail)

    async def _cut_query(self, trail: Trail) -> bool:
        """Whether one sentence of a query that is longer than the model reads finds the document."""
        if not trail.embedded.query_cut:
            return False
        read = partial(trail.search.shard.fetch, [trail.first.id], What(vectors=True))
        [own] = (await trail.search.run(read)).vectors
        embedder = await self.embedders.of(self.explained)
        sentence = await nearest_sentence(trail, embedder, own) if own.any() else None
        change = await self._try({"query": sentence}) if sentence else None
        if change is None:
            return False
        self.causes.append(cut_query(trail, change.verified_rank))
        self.changes.append(change)
        return True

    async def _cause_of_scores(self, trail: Trail) -> bool:
        if missed := missed_by_index(trail):
            await self._deeper(trail.plan.k + 1, most=4 * trail.plan.k)
            if await self._next(missed, self._modes(trail, MODES)):
                return True
            # Last, because it reads every vector of the log.
            exact = await self._try({**self._mode("dense"), "exact": True})
            self.changes += [exact] if exact else []
            return exact is not None
        deeper = beyond_depth(trail)
        other, needed = await asyncio.to_thread(score_cause, trail)
        if deeper is not None:
            needed = deeper[1]
        cause = await self._confirmed_cause(trail) or await asyncio.to_thread(missing_terms, trail)
        # Lexical search never ranks a passage without query terms.
        lexical = trail.plan.mode == "lexical" and trail.first.lexical is None
        speechless = cause is not None and lexical and self._modes(trail, ["hybrid"])
        mends = await asyncio.to_thread(mends_of, trail)
        tried = [*mends, *self._modes(trail, modes(trail)), *(self._options() if cause is None else [])]
        named = cause or (deeper[0] if deeper else other)
        found = await self._next(named, tried, {"mode": "hybrid"} if speechless else None)
        if not self.changes:
            await self._rerank(trail)
        if not speechless and needed > trail.plan.k and (cause is None or not self.changes):
            await self._deeper(needed)
        return found or bool(self.changes)

    async def _rerank(self, trail: Trail) -> None:
        """Try the cross-encoder, if one is configured, it would read the document, and there is time for it."""
        settings, plan, place = self.config.rerank, trail.plan, trail.place(trail.first)
        possible = settings.model and plan.request.query and not plan.rerank
        in_time = self.searched_s + settings.budget_ms / 1000 < RERANKED_S_MAX
        if possible and in_time and place and place <= settings.candidates:
            change = await self._try({"rerank": True})
            self.changes += [change] if change else []

    async def _confirmed_cause(self, trail: Trail) -> Cause | None:
        """Return a cause that holds only if the document would be a hit without it."""
        embeds = trail.plan.request.query is not None and self.explained.settings.embeds
        if trail.plan.mode == "lexical" or not embeds:
            return await asyncio.to_thread(words_elsewhere, trail)
        embedder = await self.embedders.of(self.explained)
        if vector := await own_vector(trail, embedder):
            return vector
        if trail.plan.mode == "hybrid":
            return await asyncio.to_thread(words_elsewhere, trail)
        return unread_query(trail) or await meant_elsewhere(trail, embedder)

    async def _next(self, cause: Cause, patches: Sequence[JSON], needed: JSON | None = None) -> bool:
        """Note a cause and try patches against it. Keep `needed` for later causes. Return False if there is no way
        forward."""
        self.causes.append(cause)
        self.changes += [change for patch in patches if (change := await self._try(patch))]
        self.patch |= needed or {}
        return bool(self.changes) or needed is not None

    def _modes(self, trail: Trail, wanted: Sequence[Mode]) -> list[JSON]:
        """Return patches to those of these modes that are others, if the search has a text for them, and a vector or
        a model that makes one."""
        plan = trail.plan
        vector = self.explained.settings.embeds or not is_absent(plan.request.vector)
        return (
            [self._mode(mode) for mode in wanted if mode != plan.mode]
            if plan.request.query and vector
            else []
        )

    def _mode(self, mode: Mode) -> JSON:
        """Return the patch to a mode, without options that it refuses."""
        refused = {
            name: None for name, modes in MODES_OF.items() if name in self.search and mode not in modes
        }
        return {"mode": mode, **refused}

    def _options(self) -> list[JSON]:
        """Return patches that each remove one further option of the search."""
        return [{name: None} for name in self.search if name not in NAMED_OPTIONS]

    async def _deeper(self, needed: int, most: int | None = None) -> None:
        """Ask for this many hits, or more if that is not enough: deeper rankings have new candidates. Then for the page
        on which it stands."""
        most, failed = min(most or self.config.limits.k_max, self.config.limits.k_max), 0
        while needed <= most:
            if change := await self._try({"k": needed}):
                least = await self._least(change, failed, needed)
                for one in self.causes:
                    if "k_needed" in one.evidence:  # by its place, which counts copies that collapse
                        one.evidence["k_needed"] = least.patch["k"]
                self.changes += [*await self._page(least.verified_rank), least]
                return
            failed, needed = needed, min(2 * needed + SPARE_HITS, most if needed < most else most + 1)

    async def _page(self, rank: int) -> list[Change]:
        """Return the change to the page with this rank, if the document is on it."""
        size = self.page_size
        skipped = (rank - 1) // size * size
        if not skipped:
            return []
        change = await self._try({"offset": skipped, **({"k": size} if self.pages else {})})
        return [change] if change else []

    async def _least(self, change: Change, failed: int, enough: int) -> Change:
        """Return the change with about the fewest hits that still finds the document, between `failed` and `enough`."""
        guess = max(change.verified_rank, failed + 1)
        for _ in range(HALVINGS_MAX):
            if guess >= enough:
                break
            if fewer := await self._try({"k": guess}):
                change, enough = fewer, guess
                guess = max(change.verified_rank, failed + 1)
            else:
                failed, guess = guess, (guess + enough) // 2 + 1
        return change

    def _label(self, seqs: Seqs) -> int | str:
        return self.explained.write_down(seqs)

    # --- searches -------------------------------------------------------------------------------------------------

    async def _trail(self) -> Trail:
        search = await self._follow(self.patch)
        work = partial(trail_of, search, self.target, condition_of(search.embedded.request))
        try:
            trail: Trail = await search.run(work)
        finally:
            search.watch.left = True
        if not trail.best and not self.target.is_later(search.seqs):
            raise Unavailable(
                "the document was changed, deleted or expired while it was explained; try again"
            )
        return trail

    async def _follow(self, patch: JSON) -> TracedSearch:
        self.searches += 1
        request = request_of(apply_patch(self.search, patch))
        work = self.phrase_work if patch.get("operators") else None
        followed = await self.explained.follow(request, self.vectors, work)
        self.searched_s += followed.cpu_s
        return followed

    def _spent(self) -> bool:
        """Whether another search, if it takes as long as those before, would take too long; the answer then says so."""
        if self.searched_s * (1 + 1 / self.searches) > SEARCHED_S_MAX:
            self.whole = False
        return not self.whole

    async def _try(self, patch: JSON) -> Change | None:
        """Return the change if it finds the document; None if not, if it is refused, or if the searches took too
        long."""
        together = {**self.patch, **patch}
        if self.searches >= SEARCHES_MAX or self._spent():
            return None
        try:
            found = await self._follow(together)
        except (InvalidInput, TooLarge, DeadlineExceeded):
            return None
        rank = self.target.rank_in(found.answer.hits)
        return None if rank is None else Change({**self.pages, **together}, rank)


def is_within(change: Change, k: int) -> bool:
    """Whether it brings the document among the first `k` hits."""
    return change.verified_rank <= k and not change.patch.get("offset")


def request_of(search: JSON) -> SearchRequest:
    return decode(msgspec.json.encode(search), SearchRequest)


def condition_of(request: SearchRequest) -> JSON | None:
    """Return the request's filter, without the conditions for what the caller may see."""
    return None if is_absent(request.filter) else decode_part(request.filter, dict[str, Any], "filter")


def patch_of(condition: JSON | None, relaxed: JSON | None) -> JSON | None:
    """Return what turns one filter into another; None if that is none."""
    return None if relaxed is None else merge_patch(condition or {}, relaxed)

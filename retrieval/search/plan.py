"""A search request, checked against the limits and completed from the configuration: what the stages work on."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import msgspec
from msgspec.structs import replace

from indexes.base.errors import InvalidInput, TooLarge
from indexes.base.languages import AUTO, check_language
from indexes.base.model import StoredPassage
from indexes.base.work import WorkBudget
from indexes.filters.grammar import Filter, parse_filter
from indexes.lexical.analysis import ANALYSIS_VERSION
from indexes.parts.learned import RankingSettings, SynonymSettings
from indexes.parts.query import Candidates, Query
from indexes.reading.facets import FacetQuery
from indexes.reading.surroundings import Reach
from retrieval.access.auth import PRINCIPAL
from retrieval.base.settings import Config
from retrieval.cache.wording import wording
from retrieval.embedding.models import SIMILARITY_FLOOR
from retrieval.search.facets import facet_queries
from retrieval.search.fusion import DEEPER
from retrieval.search.operators import Operators, parse_operators
from retrieval.search.option_checks import boosts_at, check_arranged, check_offset, checked_collapse, reach_of
from retrieval.search.relevance import BUILT_IN, Calibration, Calibrations, calibration_for, calibrations_of
from retrieval.search.similar import ExampleDocuments
from retrieval.wire.decoding import decode_part, is_absent
from retrieval.wire.options import Collapse, Facet, Rerank
from retrieval.wire.search import Degraded, Fusion, Mode, SearchRequest, Weights
from retrieval.wire.vectors import vector_of

ANSWER_VERSION = 11  # of the cached encoding
REWORDED_WORDS_MIN, REWORDED_CHARS_MAX = 3, 500  # of a question that another one may answer
NO_RERANKER = "no reranker is configured: name an exported cross-encoder in rerank.model"
SHARE_READ_MIN = 0.1  # numbers and names are read in any language
SPARE_HITS = 16  # beyond k in a dense ranking, for candidates deleted during the search
EXAMPLE_PASSAGES_MAX = 4096  # a ranking starts at most this much deeper; beyond, `deeper` continues


Method = Literal["rrf", "weighted"]


@dataclass(frozen=True, slots=True)
class RerankOptions:
    """How many of the first candidates the reranker reads, its time budget, and the weight of its scores."""

    candidates: int
    budget_ms: float
    weight: float


class FusionOptions(msgspec.Struct, frozen=True):
    """How the two scores become one. `base_weight` is that of the dense score, from 0 to 1; the lexical score has the
    rest."""

    method: Method
    rrf_k: int
    base_weight: float


class Plan(msgspec.Struct, frozen=True):
    """A checked request with every choice made.

    last        the place of the last hit of the page
    page_depth  how deep the first page goes
    counted     whether the k hits are counted, for the hot tier
    query       what the indexes are asked; its vector is missing until the text is embedded
    identity    equal for requests that must get the same answer
    degraded    what was left out because of the load
    """

    request: SearchRequest
    k: int
    last: int
    page_depth: int
    counted: bool
    query: Query
    operators: Operators | None
    reach: Reach | None
    facets: list[tuple[Facet, FacetQuery]]
    mode: Mode
    fusion: FusionOptions
    calibrations: Calibrations
    rerank: RerankOptions | None
    deadline_ms: int | None
    identity: bytes
    degraded: tuple[Degraded, ...]

    @property
    def text(self) -> str | None:
        """The text to embed; None if the vector is given or not needed."""
        if self.mode == "lexical" or self.query.vector is not None:
            return None
        return (self.operators.text if self.operators else self.request.query) or None

    def uncounted(self) -> Plan:
        """The same search, whose hits are not counted."""
        return replace(self, counted=False, query=replace(self.query, counted=False))


class EmbeddedQuery(msgspec.Struct, frozen=True):
    """A plan whose query has its vector, with what fusion needs to know of the model that made it.

    query             as in the plan, with the vector, and deeper in later rounds
    similarity_floor  of the model
    reads             measures the next two, in some 50 us
    share_read        how much of the text the model reads, from 0 to 1; None if no text was embedded
    query_cut         whether the text is longer than the model reads
    """

    plan: Plan
    query: Query
    similarity_floor: float = SIMILARITY_FLOOR
    reads: Callable[[], tuple[float, bool]] | None = None
    share_read: float | None = None
    query_cut: bool = False
    examples: ExampleDocuments | None = None

    @property
    def request(self) -> SearchRequest:
        return self.plan.request

    @property
    def page_depth(self) -> int:
        """How deep the first page goes."""
        more = len(self.examples.passages) if self.examples else 0
        return self.plan.page_depth + min(more, EXAMPLE_PASSAGES_MAX)

    def with_examples(self, examples: ExampleDocuments) -> EmbeddedQuery:
        """Add the examples to the query's vector, and deepen the search by as many passages as they have themselves."""
        more = min(len(examples.passages), EXAMPLE_PASSAGES_MAX)
        first = (*self.query.steps, self.query.depth)[0] + more
        *steps, depth = depths_to(self.plan.last + more, first)
        query = replace(
            self.query, vector=examples.move_query(self.query.vector), depth=depth, steps=tuple(steps)
        )
        return replace(self, query=query, examples=examples)

    def leaves_out(self, passage: StoredPassage, work: WorkBudget) -> bool:
        """Whether a candidate is not a hit, because it belongs to an example or lacks a phrase, in the part of it that
        `work` allows to read."""
        if self.examples is not None and passage.document_id in self.examples.documents:
            return True
        return self.plan.operators is not None and not self.plan.operators.hold_in(passage, work)

    def with_share_read(self) -> EmbeddedQuery:
        """Measure how much of the query the model reads. Not for the event loop."""
        if self.reads is None:
            return self
        share_read, query_cut = self.reads()
        return replace(self, reads=None, share_read=share_read, query_cut=query_cut)

    @property
    def weight_dense(self) -> float | None:
        """The weight of the dense score, 0 to 1, lower if the model reads less of the query. None unless scores are
        fused."""
        if self.plan.mode != "hybrid" or self.plan.fusion.method != "weighted":
            return None
        return self.weight_as_read(self.plan.fusion.base_weight)

    def weight_as_read(self, weight: float) -> float:
        """Return a weight of the dense score, lowered by what the model does not read."""
        return weight * (1.0 if self.share_read is None else max(self.share_read, SHARE_READ_MIN))

    def deeper(self) -> EmbeddedQuery:
        """Deepen the rankings for another round. Only the first round is counted.

        The cost of each round grows with its depth, so the depth grows fast. An exact round scans everything, so there
        it grows faster.
        """
        depth = (DEEPER**2 if self.request.exact else DEEPER) * self.query.depth
        steps = *self.query.steps, self.query.depth
        return replace(self, query=replace(self.query, k=depth, depth=depth, steps=steps, counted=False))

    def calibration(self, found: Candidates) -> Calibration | None:
        """Return the calibration by which these hits are judged."""
        if self.examples:
            return None
        words = found.lexical_bound > 0
        return calibration_for(self.plan.calibrations, self.plan.mode, self.share_read, words=words)


def make_plan(
    request: SearchRequest,
    dimensions: int,
    config: Config,
    ranking: RankingSettings | None = None,
    synonyms: SynonymSettings | None = None,
    now: Callable[[], float] = time.time,
    *,
    embeds: bool = True,
    strained: bool = False,
) -> Plan:
    """Check a request and complete it from `ranking`, the collection's own settings, or else from the configuration.

    `embeds`: the collection has a model. `strained`: the service has more to do than it can, so searches should cost
    less. Raises InvalidInput or TooLarge naming the field.
    """
    request = replace(request, boosts=boosts_at(request.boosts, now()))
    text = check_query(request, config)
    mode = mode_of(request, text, config, embeds=embeds)
    operators = operators_of(request, text, mode)
    k = check_k(request.k, config)
    last, page_depth = check_offset(request.offset, k, config), max(config.search.candidates, k)
    check_arranged(request, last, page_depth)
    request = replace(request, collapse=checked_collapse(request.collapse, last, config))
    degraded: list[Degraded] = []
    # Boosts, sort, mmr and later pages would give other results among fewer candidates.
    if strained and not (request.exact or request.offset or rearranges(request)):
        fewer = max(config.search.strained_candidates, k)
        if fewer < page_depth and (mode != "dense" or gathers(request)):
            page_depth, degraded = fewer, ["candidates"]
    wanted = reranking = rerank_options(request, text, config, ranking)
    if strained and wanted:
        reranking = None
        degraded.append("rerank")
    query = query_of(request, text, mode, operators, (k, last, page_depth), dimensions, config)
    query = replace(query, synonyms=synonyms and synonyms.synonyms)
    said = asked_words(request, text, mode, config)
    return Plan(
        request=replace(request, query=text),
        k=k,
        last=last,
        page_depth=page_depth,
        counted=query.counted,
        query=query,
        operators=operators,
        reach=reach_of(request.expand, config.limits.expanded_chars_max),
        facets=facet_queries(request.facets),
        mode=mode,
        fusion=fusion_options(request.fusion or Fusion(), config, ranking),
        rerank=reranking,
        deadline_ms=request.deadline_ms or (None if request.exact else config.search.deadline_ms),
        identity=identity_of(canonical_request(request, said, k, mode, wanted), config, ranking, synonyms),
        calibrations=calibrations_of(ranking.coefficients) if ranking else BUILT_IN,
        degraded=tuple(degraded),
    )


def fusion_options(fusion: Fusion, config: Config, ranking: RankingSettings | None) -> FusionOptions:
    """Complete how the two scores become one. Raises InvalidInput if both weights are 0."""
    method, weights = method_of(fusion, config, ranking), fusion.weights or default_weights(config, ranking)
    if weights.dense + weights.lexical <= 0:
        raise InvalidInput("one weight must be above 0", param="fusion.weights")
    share = weights.dense / (weights.dense + weights.lexical)
    return FusionOptions(method, fusion.k or config.search.rrf_k, share)


def query_of(
    request: SearchRequest,
    text: str,
    mode: Mode,
    operators: Operators | None,
    pages: tuple[int, int, int],
    dimensions: int,
    config: Config,
) -> Query:
    """Return what the indexes are asked. `pages` is the size of a page, the place of the last hit, and the depth of the
    first page."""
    k, last, page_depth = pages
    vector = vector_of(request.vector, dimensions, "vector")
    # A fused, grouped or rearranged ranking has a depth independent of k, so that the page size does not change the
    # order, unless that depth does not hold enough hits (`deeper`). A later page continues from the depth of the
    # first one, so that it repeats nothing.
    alone = mode == "dense" and not (gathers(request) or rearranges(request))
    *steps, depth = depths_to(last, k + SPARE_HITS if alone else page_depth)
    return Query(
        k=last,
        depth=depth,
        steps=tuple(steps),
        ranks=k,
        text=None if mode == "dense" else operators.words if operators else text,
        phrases=operators.phrases if operators else (),
        prefixes=operators.prefixes if operators else (),
        vector=None if mode == "lexical" else vector,
        condition=filter_of(request.filter, config),
        language=parse_language(request.language, "language"),
        typos=request.typos,
        visible=PRINCIPAL.get().restrict(None),  # a correction would reveal words of other documents
        # A search that bypasses the cache is a measurement: it moves no passage and trains nothing.
        counted=request.cache and not request.exact,
    )


def gathers(request: SearchRequest) -> bool:
    """Whether many candidates may become one hit."""
    return request.group_by_document or isinstance(request.collapse, Collapse)


def rearranges(request: SearchRequest) -> bool:
    """Whether the candidates are put into another order than that of their scores."""
    return bool(request.boosts or request.sort) or request.mmr is not None


def asked_words(request: SearchRequest, text: str, mode: Mode, config: Config) -> str:
    """Return what of the query's text decides its answer: all of it, or with `cache.reworded` what it asks."""
    exact = (
        not config.cache.reworded
        or mode == "lexical"
        or request.operators
        or request.highlight
        or request.exact
    )
    if exact or len(text) > REWORDED_CHARS_MAX or len(words := wording(text)) < REWORDED_WORDS_MIN:
        return text
    return " ".join(words)


def identity_of(
    asked: SearchRequest, config: Config, ranking: RankingSettings | None, synonyms: SynonymSettings | None
) -> bytes:
    """Encode everything that the answer depends on except the documents. The configuration is included, because a cache
    in Redis outlives a restart with other settings."""
    own = ranking and (ranking.method, ranking.weight_dense, ranking.coefficients)
    bound = config.limits.expanded_chars_max if asked.expand else None
    caller = (
        PRINCIPAL.get()
    )  # with its tenant: a hit would reveal that another has the same documents and query
    meant = synonyms and synonyms.set_ms
    settings = config.search, BUILT_IN, own, meant, bound, caller.tenant, caller.groups
    return msgspec.json.encode((ANSWER_VERSION, ANALYSIS_VERSION, *settings, asked))


def operators_of(request: SearchRequest, text: str, mode: Mode) -> Operators | None:
    """Parse the query's operators. Raises InvalidInput for what the mode cannot do with the query's words."""
    if request.highlight and not text:
        raise InvalidInput("highlight needs a query text, whose words are shown", param="highlight")
    if request.operators and not text:
        raise InvalidInput("operators needs a query text that may hold them", param="operators")
    operators = parse_operators(text) if request.operators else None
    if operators and mode == "dense":
        raise InvalidInput("operators are about words, which mode dense does not search", param="operators")
    return operators


def mode_of(request: SearchRequest, text: str, config: Config, *, embeds: bool) -> Mode:
    """Return the mode of search. Raises InvalidInput for what that mode cannot do."""
    bare, compares = not embeds and is_absent(request.vector), bool(request.like or request.unlike)
    usual: Mode = "lexical" if bare and not compares else config.search.mode
    mode = request.mode or (usual if text else "dense")
    if bare and mode != "lexical" and (text or not compares):
        what = f"mode {mode}" if request.mode else "a search by examples"
        raise InvalidInput(
            f"{what} compares vectors, and the collection has no model to make one of the query: send a vector"
            f"{', or no query,' if compares else ''} or search with mode lexical",
            param="vector",
        )
    if mode != "dense" and not text:
        raise InvalidInput(f"mode {mode} needs a query text", param="query")
    if request.exact and mode != "dense":
        raise InvalidInput(f"exact search is dense search, found mode {mode}", param="exact")
    if request.fusion is not None and mode != "hybrid":
        raise InvalidInput(f"fusion joins two rankings, and mode {mode} has one", param="fusion")
    examples = "like" if request.like else "unlike" if request.unlike else None
    compared = examples or (None if is_absent(request.vector) else "vector")
    if compared and mode == "lexical":
        raise InvalidInput(
            f"{compared} is for comparing vectors, which mode lexical does not do", param=compared
        )
    if request.min_relevance is not None and (
        examples or (mode == "dense" and not is_absent(request.vector))
    ):
        raise InvalidInput(
            f"hits of {'examples' if examples else 'a vector of your own'} have no relevance: only scores of queries "
            "are calibrated",
            param="min_relevance",
        )
    return mode


def method_of(fusion: Fusion, config: Config, ranking: RankingSettings | None) -> Method:
    """Return the method of fusion. Raises InvalidInput for what another method needs."""
    implied: Method | None = "weighted" if fusion.weights else "rrf" if fusion.k else None
    method = fusion.method or implied or (ranking and ranking.method) or config.search.fusion
    if fusion.k is not None and method != "rrf":
        raise InvalidInput(f"fusion.k is for method rrf, found {method}", param="fusion.k")
    if fusion.weights is not None and method != "weighted":
        raise InvalidInput(f"fusion.weights are for method weighted, found {method}", param="fusion.weights")
    return method


def default_weights(config: Config, ranking: RankingSettings | None) -> Weights:
    """Return the collection's own weights, else the configured ones."""
    if ranking is not None and ranking.weight_dense is not None:
        return Weights(dense=ranking.weight_dense, lexical=1 - ranking.weight_dense)
    return Weights(dense=config.search.weight_dense, lexical=config.search.weight_lexical)


def rerank_options(
    request: SearchRequest, query: str, config: Config, ranking: RankingSettings | None
) -> RerankOptions | None:
    """Return the options of reranking; None for none. Raises InvalidInput if it was asked for and is impossible."""
    settings, asked = config.rerank, request.rerank
    if asked is None and ranking is not None and ranking.rerank:
        asked = bool(settings.model and query)
    if asked is None or asked is False:
        return None
    if not settings.model:
        raise InvalidInput(NO_RERANKER, param="rerank")
    if not query:
        raise InvalidInput("rerank needs a query text, which is read beside the candidates", param="rerank")
    wanted = Rerank() if asked is True else asked
    return RerankOptions(
        candidates=wanted.candidates or settings.candidates,
        budget_ms=wanted.budget_ms or settings.budget_ms,
        weight=settings.weight if wanted.weight is None else wanted.weight,
    )


def canonical_request(
    request: SearchRequest, query: str, k: int, mode: Mode, reranking: RerankOptions | None
) -> SearchRequest:
    """Return the request without what does not change the answer. The rerank budget is left out, since answers that it
    cut short are not cached."""
    rerank = Rerank(candidates=reranking.candidates, weight=reranking.weight) if reranking else None
    return replace(
        request,
        query=query or None,
        k=k,
        mode=mode,
        rerank=rerank,
        min_seq=None,
        deadline_ms=None,
        cache=True,
        partial=False,
    )


def filter_of(raw: msgspec.Raw, config: Config) -> Filter | None:
    """Parse a request's filter, restricted to what its caller may see; None for everything. Raises TooLarge before
    decoding it, and InvalidInput."""
    if len(raw) > config.limits.filter_bytes_max:
        raise TooLarge(
            f"filter has {len(raw)} bytes, at most {config.limits.filter_bytes_max} are allowed",
            param="filter",
        )
    value = decode_part(raw, object, "filter")
    asked = None if value is None else parse_filter(value, conditions_max=config.limits.filter_conditions_max)
    return PRINCIPAL.get().restrict(asked)


def check_query(request: SearchRequest, config: Config) -> str:
    if request.query is None:
        if is_absent(request.vector) and not request.like:
            raise InvalidInput(
                "a search needs a query text, a vector, or documents that it should be like", param="query"
            )
        return ""
    query = request.query.strip()
    if not query:
        raise InvalidInput("query is empty, expected text", param="query")
    if len(query) > config.limits.query_chars_max:
        raise TooLarge(
            f"query has {len(query)} characters, at most {config.limits.query_chars_max} are allowed",
            param="query",
        )
    return query


def parse_language(code: str | None, where: str) -> str | None:
    """Return the checked language; None if it is to be detected. Raises InvalidInput naming the field."""
    return None if code in {None, AUTO} else check_language(str(code), where)


def check_k(k: int | None, config: Config) -> int:
    if k is None:
        return config.search.k
    if not 1 <= k <= config.limits.k_max:
        raise InvalidInput(f"k must be from 1 to {config.limits.k_max}, found {k}", param="k")
    return k


def depths_to(last: int, depth: int) -> list[int]:
    """Return the depths of successive searches (`deeper`), from `depth` up to the first that holds `last` hits."""
    depths = [depth]
    while depths[-1] < last:
        depths.append(depths[-1] * DEEPER)
    return depths

"""The parts of an evaluation that need no service: counting, intervals, floors, history, and how it is shown."""

from __future__ import annotations

import asyncio
import io
import re
import xml.etree.ElementTree as ET
from base64 import b64decode
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner
from ir_measures import Qrel, ScoredDoc, calc_aggregate
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from indexes.base.errors import InvalidInput
from indexes.rebuild.shares import share_interval
from jobs.commands.evaluate import command
from jobs.evaluation import textfile
from jobs.evaluation.queries import from_file, from_log
from jobs.evaluation.rankings import NDCG, judged_queries
from jobs.evaluation.recall import TrueNeighbor, add_cohort, compare
from jobs.evaluation.report import Bin, Cohort, CohortKind, Reliability, Report, Score
from jobs.evaluation.sections import show
from jobs.evaluation.survey import Survey
from jobs.evaluation.verdict import below_floors, find_regressions, keep, load_history, parse_floors
from jobs.ingestion.rate_limiter import RateLimiter
from jobs.sources.judgments import GRADE_MAX, Judgment, TextQuery, read_judgments, read_queries
from retrieval.upkeep.query_log import Day, LoggedQuery, encode_file


def hit(name: str, score: float, tier: str = "hot") -> dict[str, Any]:
    return {"document_id": name, "passage": 0, "tier": tier, "scores": {"dense": score}}


def found(truth: list[dict[str, Any]], answer: list[dict[str, Any]]) -> list[bool]:
    return [one.found for one in compare(truth, answer)]


def test_ties_at_the_last_place_are_interchangeable() -> None:
    """Of equals at the k-th place any will do, one for one; a better one that is missing is missing."""
    truth = [hit("a", 0.9), hit("b", 0.5), hit("c", 0.5)]
    assert found(truth, [hit("a", 0.9), hit("x", 0.5), hit("b", 0.5)]) == [True, True, True]
    assert found(truth, [hit("a", 0.9), hit("x", 0.5), hit("y", 0.4)]) == [True, True, False]
    assert found(truth, [hit("x", 0.5), hit("b", 0.5), hit("c", 0.5)]) == [False, True, True]
    assert found(truth, [hit("a", 0.9), hit("x", 0.49), hit("b", 0.5)]) == [True, True, False]
    assert found(truth, []) == [False] * 3
    assert found([], [hit("x", 0.5)]) == []


def test_a_cohort_counts_its_own_neighbors() -> None:
    """A query without a neighbor of the cohort says nothing about it; without any query there is no cohort."""
    hit, miss = TrueNeighbor("a", "cold", True), TrueNeighbor("b", "cold", False)
    report = make_report()
    add_cohort(report, "cold", "tier", [[], [hit, miss], [miss]], "")
    (one,) = report.cohorts
    assert one.value == pytest.approx(1 / 3)
    assert (one.queries, one.neighbours) == (2, 3)
    assert one.low <= one.value <= one.high
    add_cohort(report, "hot", "tier", [[], []], "nothing there")
    assert (len(report.cohorts), report.not_measured["hot"]) == (1, "nothing there")


@pytest.mark.parametrize("spread", [0.02, 0.2, 1.0])
def test_intervals_hold_the_truth_as_often_as_they_say(spread: float) -> None:
    """Of 1,000 samples from known losses by query, few or many lost together, 92 to 98 of 100 intervals have it."""
    rng = np.random.default_rng(3)
    inside = 0
    for _ in range(1000):
        # One of twenty neighbors is lost, on average; the smaller the spread, the more of them by the same queries.
        lost = rng.binomial(10, rng.beta(0.05 * spread * 10, 0.95 * spread * 10, 400))
        _, low, high = share_interval(10 - lost, np.full(400, 10))
        inside += low <= 0.95 <= high
    assert 0.92 <= inside / 1000 <= 0.98


def test_a_sample_without_losses_is_not_certainty() -> None:
    """50 perfect queries leave room for losses, 5,000 for fewer; the same the other way round at 0."""
    share, low, high = share_interval([10] * 50, [10] * 50)
    assert (share, high) == (1, 1)
    assert low == pytest.approx(50 / (50 + 1.959964**2))
    assert 0.99 < share_interval([10] * 5000, [10] * 5000)[1] < 1
    nothing = Score.mean([0.0] * 50)
    assert (nothing.value, nothing.low) == (0, 0)
    assert nothing.high == pytest.approx(1.959964**2 / (50 + 1.959964**2))
    share, low, high = share_interval([3], [10])
    assert 0 < low < share < high < 1


def test_the_newest_are_the_last_tenth_of_passages() -> None:
    """Counted in passages, cut between documents, in the order of writing; judged documents are looked for."""
    survey = Survey(21, {"d3", "d20"})
    for number in range(20):
        survey.add({"id": f"d{number}", "passages": 1 if number < 19 else 2, "metadata": {}})
    assert (survey.documents, survey.passages) == (20, 21)
    assert survey.newest == {"d19"}
    assert survey.present == {"d3"}


def test_the_sample_of_documents_is_fair() -> None:
    """Each document is as likely as any other to be sampled, however late it comes."""
    picked = np.zeros(100)
    for seed in range(300):
        survey = Survey(100, size=10, seed=seed)
        for number in range(100):
            survey.add({"id": str(number), "passages": 1, "metadata": {}})
        assert len({one["id"] for one in survey.sample}) == 10
        picked[[int(one["id"]) for one in survey.sample]] += 1
    assert 200 < picked[:30].sum() / 3 < 400
    assert 200 < picked[-30:].sum() / 3 < 400


def test_pace_spreads_queries() -> None:
    """Ten queries at ten a second are ten tenths apart; a pause is not made up for afterwards."""
    now = [0.0]
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    async def run() -> None:
        pace = RateLimiter(10, clock=lambda: now[0], sleep=sleep)
        for _ in range(3):
            await pace()
        now[0] = 5.0
        await pace(2)
        await pace()

    asyncio.run(run())
    assert slept == pytest.approx([0.1, 0.1, 0.2])


def test_no_pace_is_no_wait() -> None:
    """With 0 a second nothing waits, not even for an instant."""

    async def sleep(seconds: float) -> None:
        raise AssertionError(seconds)

    async def run() -> None:
        pace = RateLimiter(0, clock=lambda: 0.0, sleep=sleep)
        for count in range(3):
            await pace(count)

    asyncio.run(run())


def test_queries_come_from_the_log_with_their_filters(tmp_path: Path) -> None:
    """Texts as asked, and the filters that came with them, the most frequent first; another file is refused."""
    rare, often = ({"type": "eq", "key": "t", "value": value} for value in ("r", "o"))
    filters = [None, rare, often, often]
    kept = [LoggedQuery(at, f"q{at}", None, None, one) for at, one in enumerate(filters)]
    path = tmp_path / "queries.jsonl"
    path.write_bytes(encode_file("0" * 32, {"2026-01-01": Day(4, kept)}, 10_000))
    queries = from_log(path, 10, seed=0)
    assert {one.text for one in queries.chosen} == {"q0", "q1", "q2", "q3"}
    assert [condition for condition, _ in queries.filtered] == [often, rare]
    assert {one.text for one in queries.filtered[0][1]} == {"q2", "q3"}
    path.write_text('{"id": "1", "text": "a query"}\n')
    with pytest.raises(InvalidInput, match="is not a log of queries"):
        from_log(path, 10, seed=0)


def test_files_of_queries_are_told_apart(tmp_path: Path) -> None:
    """By the texts that were chosen: not by their order, their ids, or the name of the file."""

    def digest(*texts: str) -> str:
        lines = [
            msgspec.json.encode({"id": f"{at}-{len(texts)}", "text": text}) for at, text in enumerate(texts)
        ]
        (tmp_path / f"{len(texts)}.jsonl").write_bytes(b"\n".join(lines))
        return from_file(tmp_path / f"{len(texts)}.jsonl", 10, seed=0).digest

    assert digest("a", "b") == digest("b", "a")
    assert (
        len({digest("a", "b"), digest("a", "c"), digest("a"), digest("ab"), digest("a", "b", "b"), ""}) == 6
    )


# --- floors and regressions -------------------------------------------------------------------------------------


def make_cohort(name: str, recall: float, kind: CohortKind = "tier", width: float = 0.01) -> Cohort:
    return Cohort(
        name=name, kind=kind, value=recall, low=recall - width, high=min(1.0, recall + width),
        queries=100, neighbours=1000,
    )  # fmt: skip


def make_report(*cohorts: Cohort, time: str = "2026-03-01T03:15:00.123+00:00", **changes: Any) -> Report:
    times = {"p50": 1.0, "p95": 2.0, "p99": 3.0}
    rankings = {
        name: {label: Score(value=0.7, low=0.65, high=0.75) for label in ("ndcg@10", "mrr@10", "recall@100")}
        for name in ("dense", "hybrid rrf")
    }
    values: dict[str, Any] = {
        "time": time, "took_s": 12.5, "collection": "docs", "model": "m", "generation": 3, "seq": 9,
        "documents": 900, "passages": {"delta": 0, "hot": 100, "cold": 800},
        "source": "query log", "asked": "", "offline": False, "queries": 100, "k": 10, "seed": 0,
        "cohorts": list(cohorts), "not_measured": {"delta": "no true <b>neighbor</b> is in the delta tier"},
        "rankings": rankings,
        "relevance": Reliability(
            calibration_error=0.0312, lost=None, strong=None, false=Score(value=0.5, low=0.4, high=0.6),
            bins=[
                Bin(since=0.0, hits=90, relevance=0.05, relevant=0.02),
                Bin(since=0.9, hits=10, relevance=0.95, relevant=0.9),
            ],
        ),
        "judged": 50, "judged_missing": 2, "cold_skipped": 25,
        "latency_ms": {kind: {"embed": times, "total": times} for kind in ("dense", "dense, filtered")},
        **changes,
    }  # fmt: skip
    return Report(**values)


def test_a_floor_is_for_a_name_a_kind_or_all_tiers() -> None:
    """The nearest floor decides: by name, then by kind, then the general one, which is for tiers and overall."""
    report = make_report(
        make_cohort("overall", 0.97, "overall"), make_cohort("hot", 0.94), make_cohort("cold", 0.94),
        make_cohort("newest", 0.5, "age"), make_cohort("filter-1", 0.8, "filter"),
        make_cohort("tenant=a=b", 0.8, "tenant"), make_cohort("tenant=c", 0.8, "tenant"),
    )  # fmt: skip

    def below(recall: float, ndcg: float, *given: str) -> list[str]:
        report.floors = parse_floors(given, recall, ndcg)
        return below_floors(report)

    def low(*given: str) -> list[str]:
        return [line.split()[1] for line in below(0.95, 0.0, *given)]

    assert low() == ["hot", "cold"]
    assert low("cold=.9", "filter=.9", "tenant=a=b=.9") == ["hot", "filter-1", "tenant=a=b"]
    assert low("tier=.5", "cold=.99", "filter=.9", "filter-1=.7") == ["cold"]
    assert "ndcg@10 hybrid rrf is 0.7000" in below(0.0, 0.8)[0]
    assert "nothing was measured" in below_floors(make_report())[0]


def test_a_floor_that_nothing_could_miss_is_missed() -> None:
    """What has a floor of its own and was not measured is too low, not good enough."""
    names = ["tenant=.9", "overall=.9", "tenant=a=.9", "cold=.8", "filter=.5"]
    report = make_report(
        make_cohort("overall", 1, "overall"), make_cohort("tenant=b", 1, "tenant"), floors=parse_floors(names)
    )
    assert below_floors(report) == [
        "tenant=a was not measured, its floor is 0.9",
        "cold was not measured, its floor is 0.8",
        "filter was not measured, its floor is 0.5",
    ]
    report.rankings, report.floors = {}, parse_floors([], 0.0, 0.5)
    assert below_floors(report) == ["ndcg@10 was not measured, its floor is 0.5"]
    report.floors = parse_floors([])
    assert below_floors(report) == []


@pytest.mark.parametrize("text", ["cold", "cold=", "=0.5", "cold=2", "cold=nan", "warm=.5", "tenant"])
def test_a_wrong_floor_is_refused(text: str) -> None:
    """By name: an unknown cohort would silently guard nothing."""
    with pytest.raises(InvalidInput) as caught:
        parse_floors([text])
    assert caught.value.param == "floor"


def test_worse_is_beyond_the_bound_and_beyond_chance() -> None:
    """A fall counts if it is larger than the bound and the intervals do not overlap."""
    before = make_report(make_cohort("hot", 0.99, width=0.002), make_cohort("cold", 0.98))

    def worse(*cohorts: Cohort, least: float = 0.01, **changes: Any) -> list[str]:
        return find_regressions(before, make_report(*cohorts, **changes), least)

    assert worse(make_cohort("hot", 0.97, width=0.002), make_cohort("cold", 0.93)) == [
        "recall@10 hot fell from 0.9900 to 0.9700",
        "recall@10 cold fell from 0.9800 to 0.9300",
    ]
    assert worse(make_cohort("hot", 0.985, width=0.001)) == []  # certain, but small
    assert worse(make_cohort("cold", 0.965)) == []  # larger, but perhaps chance
    scores = {"dense": {"ndcg@10": Score(value=0.5, low=0.45, high=0.55)}}
    assert worse(rankings=scores) == ["ndcg@10 dense fell from 0.7000 to 0.5000"]


# --- history and outputs ----------------------------------------------------------------------------------------


def test_history_is_read_back_in_order(tmp_path: Path) -> None:
    """The last comparable reports, oldest first; foreign files are passed over, and reports of anything else."""
    folder = tmp_path / "made" / "here"
    reports = [
        make_report(make_cohort("hot", 0.9), time=f"2026-03-{day:02}T03:15:00.123+00:00")
        for day in range(1, 21)
    ]
    for one in reversed(reports):
        keep(folder, one)
    other = msgspec.structs.replace(reports[0], collection="docs-2")
    keep(folder, other)
    incomparable: list[dict[str, Any]] = [{"k": 5}, {"source": "file"}, {"asked": "x"}, {"offline": True}]
    for day, changes in enumerate(incomparable, 1):
        time = f"2026-04-{day:02}T03:15:00.123+00:00"
        keep(folder, msgspec.structs.replace(reports[0], time=time, **changes))
    (folder / "docs-20260399T000000000Z.json").write_text("{")
    assert [one.time for one in load_history(folder, reports[-1])] == [one.time for one in reports[-14:]]
    assert load_history(folder, reports[-1])[-1] == reports[-1]
    assert len(load_history(folder, other)) == 1
    assert load_history(tmp_path / "none", other) == []
    assert not list(folder.glob(".*"))


def test_the_textfile_says_the_same_as_the_report() -> None:
    """Prometheus's own parser reads every gauge back, with its labels and values."""
    report = make_report(make_cohort("cold", 0.93), make_cohort('tenant=a"b', 0.5, "tenant"), below=["x"])
    families = {
        one.name: one for one in text_string_to_metric_families(textfile.render_gauges(report).decode())
    }
    assert all(one.type == "gauge" for one in families.values())
    recall = {
        (one.labels["cohort"], one.labels["bound"]): one.value
        for one in families["nearline_evaluate_recall"].samples
    }
    assert recall["cold", "value"] == 0.93
    assert recall['tenant=a"b', "low"] == pytest.approx(0.49)
    assert families["nearline_evaluate_below_floors"].samples[0].value == 1
    assert families["nearline_evaluate_latency_seconds"].samples[0].value == pytest.approx(0.001)
    assert families["nearline_evaluate_cold_skipped"].samples[0].value == 0.25
    assert all(one.samples[0].labels["collection"] == "docs" for one in families.values())


class Page(HTMLParser):
    """Collects what an HTML page refers to, and whether its elements are closed in order."""

    VOID = frozenset({"meta", "link", "br", "img", "input", "hr"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.sections: list[int] = []  # plots in each
        self.references: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "section":
            self.sections.append(0)
        if tag == "img":
            self.sections[-1] += 1
        self.references += [value or "" for name, value in attributes if name in ("src", "href", "srcset")]

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


def check_page(text: str) -> Page:
    """Well-formed, loads nothing, and has a plot in each section that is an image in itself."""
    page = Page()
    page.feed(text)
    assert page.open == []
    assert page.sections == [1] * len(page.sections)
    assert not re.search(r"https?:|@import|url\(", text)
    assert not page.tags & {"script", "link", "iframe"}
    for one in page.references:
        image = b64decode(one.removeprefix("data:image/svg+xml;base64,"), validate=True)
        assert ET.fromstring(image).tag.endswith("svg")
    return page


def test_the_page_needs_nothing_else() -> None:
    """It parses, loads nothing, has a plot in each section, and what it shows is escaped."""
    pytest.importorskip("matplotlib")
    from jobs.evaluation import page

    reports = [
        make_report(make_cohort("overall", 0.98, "overall"), make_cohort("cold", 0.9), make_cohort(name, 1.0, "tenant"))
        for name in ("tenant=<script>", "tenant=b & $c", "tenant=$5_$")
    ]  # fmt: skip
    text = page.render_page(reports[-1], reports[:-1])
    assert len(check_page(text).sections) == 5
    assert "true &lt;b&gt;neighbor" in text
    assert "tenant=$5_$" in text
    assert "prefers-color-scheme: dark" in text
    check_page(page.render_page(reports[0], []))


def test_the_plot_warns_below_a_floor() -> None:
    """By the floor itself, whatever the cohort is called."""
    pytest.importorskip("matplotlib")
    from jobs.evaluation.page import BAD, plot_recall, svg

    floors = parse_floors(["tenant=this is it=.9"])
    low, high = (
        svg(plot_recall, [make_report(make_cohort("tenant=this is it", recall, "tenant"), floors=floors)])
        for recall in (0.89, 0.9)
    )
    assert BAD.encode() in low
    assert BAD.encode() not in high


def test_a_page_about_nothing() -> None:
    """An empty collection has a page too."""
    pytest.importorskip("matplotlib")
    from jobs.evaluation import page

    text = page.render_page(make_report(rankings={}, relevance=None, latency_ms={}), [])
    assert "nothing was measured" in text
    assert len(check_page(text).sections) == 1


def test_the_terminal_shows_names_as_they_are() -> None:
    """A name in brackets is no markup; what is too low, and what fell, is said in words."""
    cohorts = make_cohort("overall", 0.9, "overall"), make_cohort("tenant=[red]a[/]", 0.9, "tenant")
    earlier = [make_report(make_cohort("overall", 0.98, "overall"))]
    report = make_report(
        *cohorts, below=["below"], regressions=find_regressions(earlier[0], make_report(*cohorts), 0.01)
    )
    console = Console(width=200, file=io.StringIO(), record=True)
    show(console, report, earlier)
    shown = console.export_text()
    assert "tenant=[red]a[/]" in shown
    assert "calibration error 0.0312" in shown
    assert "25 of 100 dense searches skipped the cold tier (25.0%)" in shown
    assert "-0.0800" in shown
    assert "recall@10 overall fell from 0.9800 to 0.9000\nbelow\n" in shown


# --- the call ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--data", ".", "--url", "http://127.0.0.1:9"], "--data and --url"),
        (["--regression", "0.1"], "--history"),
        (["--config", "x.toml"], "--data"),
        (["--qrels", "x.tsv"], "--queries"),
        (["--queries", "x.jsonl", "--query-log", "y.jsonl"], "exclude each other"),
        (["--ndcg-floor", ".5"], "--qrels"),
        (["--floor", "tenant=acme=.9"], "--tenant-key"),
        (["--floor", "tenant=.9"], "--tenant-key"),
        (["--floor", "filter-1=.9", "--no-filters"], "--no-filters"),
        (["--floor", "warm=1"], "'warm=1' is no floor"),
        (["--out", "nowhere/r.json"], "nowhere"),
        (["--html", "nowhere/r.html"], "nowhere"),
        (["--prometheus", "nowhere/r.prom"], "nowhere"),
    ],
)
def test_a_wrong_call_is_told_before_anything_is_measured(
    arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With exit code 2: 1 is for numbers that are too low. No service has to be there, and no file is made."""
    monkeypatch.chdir(tmp_path)
    ended = CliRunner().invoke(command, ["-c", "docs", *arguments])
    assert ended.exit_code == 2
    assert words in ended.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ('{"id": "a", "text": "one"}\n{"id": "b", "text": " "}\n', "line 2: the text of query 'b' is empty"),
        (
            '{"id": "a", "text": "one"}\n\n{"id": "a", "text": "two"}\n',
            "line 3: an earlier query has the id 'a'",
        ),
        ('{"id": 1, "text": "one"}\n', "line 1: expected a query with id and text"),
    ],
)
def test_a_query_that_cannot_be_asked_is_named(lines: str, words: str, tmp_path: Path) -> None:
    """The error for an unusable query names its file and line."""
    (tmp_path / "queries.jsonl").write_text(lines)
    with pytest.raises(InvalidInput, match=f"queries.jsonl.*{re.escape(words)}"):
        read_queries(tmp_path / "queries.jsonl")


@pytest.mark.parametrize(
    "grade", ["1.5", "nan", "1000001", "-1000001", "4294967295", "-4294967296", "9" * 5000]
)
def test_a_grade_that_cannot_be_measured_is_named(grade: str, tmp_path: Path) -> None:
    """The error for an unusable grade names its file and line."""
    (tmp_path / "qrels.tsv").write_text(f"a\td1\t1\na\td2\t{grade}\n")
    with pytest.raises(InvalidInput, match=r"qrels.tsv, line 2: expected"):
        read_judgments(tmp_path / "qrels.tsv")


@pytest.mark.parametrize("grade", [-GRADE_MAX, -1, 0, 1, 3, 1000, GRADE_MAX])
def test_a_grade_is_the_gain(grade: int, tmp_path: Path) -> None:
    """nDCG is right up to the largest grade that is read, and those below 0 gain nothing."""
    (tmp_path / "qrels.tsv").write_text(f"q\ta\t{grade}\nq\tb\t2\n")
    qrels = [Qrel(one.query, one.document, one.grade) for one in read_judgments(tmp_path / "qrels.tsv")]
    run = [ScoredDoc("q", "b", 2.0), ScoredDoc("q", "a", 1.0)]
    gains = np.array([2, max(grade, 0)])
    weights = 1 / np.log2([2, 3])
    expected = gains @ weights / (np.sort(gains)[::-1] @ weights)
    assert calc_aggregate(list(NDCG.values()), qrels, run)[NDCG["ndcg@10"]] == pytest.approx(expected)


def test_without_a_relevant_document_there_is_no_ranking_to_measure() -> None:
    """A grade of 0 says that a document is not relevant, so that no order is better than another one."""
    queries = [TextQuery("a", "one"), TextQuery("b", "two")]
    assert judged_queries(queries, [Judgment("a", "d1", 0), Judgment("b", "d2", 1)]) == queries[1:]
    assert judged_queries(queries, []) == []
    with pytest.raises(InvalidInput, match="no judgment has a grade above 0"):
        judged_queries(queries, [Judgment("a", "d1", 0), Judgment("b", "d2", -1)])


def test_no_service_is_not_a_low_recall() -> None:
    """Exit code 2 and one line: whoever waits for code 1 must not take an outage for it."""
    ended = CliRunner().invoke(command, ["-c", "docs", "--url", "http://127.0.0.1:9"])
    assert ended.exit_code == 2
    assert "cannot be reached" in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1


def test_a_survey_reads_values_in_objects_and_lists() -> None:
    """Under the dotted paths that filters take."""
    survey = Survey(1, size=1, seed=0)
    survey.add(
        {"id": "a", "passages": 2, "metadata": {"items": [{"sku": "A"}, {"sku": "B"}], "at": {"n": None}}}
    )
    assert survey.values() == {"items.sku": {"A": 2, "B": 2}}

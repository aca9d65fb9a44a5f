// The last report that `nearline evaluate --publish` sent, with its plots.

import { get, names, of } from "./api.js";
import { failure, field, fixed, h, number, plural, select, svg, table, time } from "./dom.js";
import { encoded } from "./numbers.js";

const VERSION = 2; // of jobs/evaluation/report.py
const PERCENTILES = ["p50", "p95", "p99"];

export async function evaluationView(place, params, signal) {
  const known = await names();
  const wanted = params.get("c") || known[0]?.[0] || "";
  const body = h("div", { class: "report" });
  const choice = select(known, wanted, { name: "collection", onchange: () => (location.hash = `#/evaluation?c=${encodeURIComponent(choice.value)}`) });
  place.append(h("h1", {}, "Evaluation"), h("div", { class: "row" }, field("Collection", choice)), body);
  if (!wanted) return;
  try {
    const { received_ms, report } = await get(of(wanted, "evaluation"), { signal });
    body.replaceChildren(...(report.version === VERSION ? shown(report, received_ms) : [
      h("p", { class: "notice warn" }, `This report has version ${report.version}, and this page shows version ${VERSION}.`),
      h("pre", { tabindex: 0 }, encoded(report, 2))]));
  } catch (error) {
    if (signal.aborted) return;
    body.replaceChildren(error.status === 404 ? h("div", { class: "empty" }, h("p", {}, `No evaluation of ${wanted} was sent yet. This measures its recall and sends the report here:`), h("pre", { tabindex: 0 }, `nearline evaluate -c ${wanted} --publish`)) : failure(error));
  }
}

function shown(report, received_ms) {
  const cohorts = report.cohorts || [];
  const overall = cohorts.find((one) => one.name === "overall");
  const trouble = [report.changed_meanwhile && "the collection changed while it was measured", ...(report.regressions || []), ...(report.below || [])].filter(Boolean);
  const rankings = Object.entries(report.rankings || {});
  const dense = report.latency_ms?.dense;
  return [
    h("p", { class: "headline" }, h("b", { class: trouble.length ? "bad" : "ok" }, overall ? `recall@${report.k} ${fixed(overall.recall, 4)}` : "nothing was measured"),
      h("span", { class: "muted" }, ` ${[
        received_ms && time(received_ms), report.generation !== undefined && `build ${report.generation} of the indexes`, report.model,
        report.documents !== undefined && plural(report.documents, "document"), report.queries !== undefined && `${plural(report.queries, "query", "queries")} (${report.source})`,
      ].filter(Boolean).join(" · ")}`)),
    trouble.length > 0 && h("ul", { class: "notice bad" }, trouble.map((one) => h("li", {}, one))),
    cohorts.length > 0 && section("Recall", "The share of the true nearest passages that the indexes find, by group, with 95 percent intervals. The tick is the floor.",
      dots(cohorts.map((one) => [one.name, [[one.recall, one.low, one.high]]]), { floors: cohorts.map((one) => floorOf(one, report.floors || {})) }),
      table(["group", "recall", "95%", "queries"], cohorts.map((one) => [one.name, fixed(one.recall, 4), `${fixed(one.low, 3)} to ${fixed(one.high, 3)}`, number(one.queries)]), { label: "Recall" })),
    rankings.length > 0 && section("Ranking", "By judgments, for each kind of search, with 95 percent intervals.",
      dots(Object.keys(rankings[0][1]).map((label) => [label, rankings.map(([, scores]) => [scores[label].value, scores[label].low, scores[label].high])]), { series: rankings.map(([name]) => name), from: 0 }),
      table(["search", ...Object.keys(rankings[0][1])], rankings.map(([name, scores]) => [name, ...Object.values(scores).map((one) => fixed(one.value, 4))]), { label: "Ranking" })),
    report.relevance && section("Relevance", `How far the relevance of hits holds: on the line it equals the share that is relevant by judgments. Mean distance ${fixed(report.relevance.calibration_error, 3)}. The plot leaves out groups of fewer than ${SURE} hits.`,
      reliability(report.relevance.bins.filter((one) => one.hits >= SURE)),
      table(["from", "hits", "relevance", "relevant"], report.relevance.bins.map((one) => [fixed(one.since, 1), number(one.hits), fixed(one.relevance, 3), fixed(one.relevant, 3)]), { label: "Relevance" })),
    dense && section("Latency", "Milliseconds of each stage of an unfiltered search by meaning, at the rate of the evaluation.",
      dots(Object.entries(dense).map(([stage, times]) => [stage, PERCENTILES.map((one) => [times[one], times[one], times[one]])]), { series: PERCENTILES, from: 0, to: Math.max(...Object.values(dense).map((times) => times.p99 || 0)), digits: 1 }),
      table(["stage", ...PERCENTILES], Object.entries(dense).map(([stage, times]) => [stage, ...PERCENTILES.map((one) => fixed(times[one], 2))]), { label: "Latency" })),
    h("p", { class: "muted" }, "The report of ", h("code", {}, "nearline evaluate --html"), " has the same, with its history."),
  ].filter(Boolean);
}

function section(title, words, plot, numbers) {
  return h("section", { class: "panel plot" }, h("h2", {}, title), h("p", { class: "muted" }, words), h("div", { class: "pair" }, plot, numbers));
}

// The one for its name, else for its kind, as jobs/evaluation/verdict.py has it.
const floorOf = (cohort, floors) => floors[cohort.name] ?? floors[cohort.kind];

const ROW = 26; // at least: further series make a row higher
const APART = 8;
const SURE = 10; // hits of a group that say something

// Rows of [label, one [value, low, high] for each series].
function dots(rows, { series = [""], from = null, to = 1, floors = [], digits = 2 }) {
  const values = rows.flatMap(([, points]) => points.flat()).concat(floors).filter(Number.isFinite);
  const step = stepOf((to - (from ?? Math.min(...values, to - 0.01))) / 4);
  const least = from ?? Math.floor(Math.min(...values) / step) * step;
  const most = Math.ceil(to / step - 1e-9) * step;
  const [width, left] = matchMedia("(max-width: 620px)").matches ? [330, 104] : [520, 120]; // drawn at about its size
  const x = (value) => left + ((value - least) / (most - least)) * (width - left - 24);
  const high = Math.max(ROW, series.length * APART + 12);
  const height = rows.length * high + 26;
  const ticks = Array.from({ length: Math.round((most - least) / step) + 1 }, (_, at) => least + at * step);
  const label = rows.map(([name, points]) => `${name}: ${points.map(([value], at) => `${series[at]} ${fixed(value, 3)}`).join(", ")}`).join("; ");
  const chart = svg("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label },
    ticks.map((value) => [
      svg("line", { class: "grid", x1: x(value), x2: x(value), y1: 0, y2: height - 22 }),
      svg("text", { class: "axis", x: x(value), y: height - 6, "text-anchor": "middle" }, fixed(value, digits))]),
    rows.map(([name, points], row) => {
      const middle = row * high + high / 2;
      return [
        svg("text", { class: "name", x: left - 10, y: middle + 4, "text-anchor": "end" }, name.length > 16 ? `${name.slice(0, 15)}…` : name),
        Number.isFinite(floors[row]) && svg("line", { class: "floor", x1: x(floors[row]), x2: x(floors[row]), y1: middle - 9, y2: middle + 9 }),
        points.map(([value, lower, upper], at) => {
          const y = middle + (at - (points.length - 1) / 2) * APART;
          const below = Number.isFinite(floors[row]) && value < floors[row];
          return Number.isFinite(value) && svg("g", { class: `series-${at} ${below ? "below" : ""}` },
            svg("line", { class: "interval", x1: x(lower), x2: x(upper), y1: y, y2: y }), svg("circle", { cx: x(value), cy: y, r: 4 }));
        })];
    }));
  return h("figure", {}, chart, series.length > 1 && h("figcaption", { class: "legend" }, series.map((name, at) => h("span", {}, h("i", { class: `swatch series-${at}`, "aria-hidden": "true" }), name))));
}

// A round number, at least as large: 1, 2 or 5 times a power of ten.
function stepOf(least) {
  const power = 10 ** Math.floor(Math.log10(Math.max(least, 0.001)));
  return [1, 2, 5, 10].map((one) => one * power).find((one) => one >= least - 1e-12);
}

function reliability(bins) {
  const size = 260;
  const at = (value) => 40 + value * (size - 50);
  const up = (value) => size - 30 - value * (size - 45);
  return h("figure", { class: "square" }, svg("svg", { class: "chart", viewBox: `0 0 ${size} ${size}`, role: "img", "aria-label": bins.map((one) => `relevance ${fixed(one.relevance, 2)}: ${fixed(one.relevant, 2)} relevant`).join("; ") },
    [0, 0.5, 1].map((value) => [
      svg("line", { class: "grid", x1: at(value), x2: at(value), y1: up(0), y2: up(1) }), svg("line", { class: "grid", x1: at(0), x2: at(1), y1: up(value), y2: up(value) }),
      svg("text", { class: "axis", x: at(value), y: size - 14, "text-anchor": "middle" }, String(value)), svg("text", { class: "axis", x: 32, y: up(value) + 4, "text-anchor": "end" }, String(value))]),
    svg("line", { class: "diagonal", x1: at(0), y1: up(0), x2: at(1), y2: up(1) }),
    svg("text", { class: "axis", x: at(0.5), y: size - 1, "text-anchor": "middle" }, "mean relevance"),
    svg("g", { class: "series-0" }, svg("polyline", { class: "line", points: bins.map((one) => `${at(one.relevance)},${up(one.relevant)}`).join(" ") }), bins.map((one) => svg("circle", { cx: at(one.relevance), cy: up(one.relevant), r: 4 })))));
}

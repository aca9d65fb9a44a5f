// Search: the form, the hits, what was searched and the stages; and why a document is, or is not, among the hits.

import { names, of, post, prefer, preferred, valuesByPath } from "./api.js";
import { announce, bar, failure, field, fixed, h, milliseconds, plural, select, svg } from "./dom.js";
import { explained } from "./explain.js";
import { Filters } from "./filters.js";
import { encoded } from "./numbers.js";
import { RECEIPT, STAGES, TIERS, tier, word } from "./words.js";

const MODES = [["hybrid", "Hybrid"], ["dense", "Meaning"], ["lexical", "Words"]];

export async function searchView(place, params, signal) {
  let known = [], lists = true;
  try {
    known = await names();
  } catch (error) {
    if (error.status !== 403) throw error; // a key that sees some documents only may search, and list nothing
    lists = false;
  }
  if (signal.aborted) return;
  const wanted = params.get("c") || preferred(known);
  const collection = known.length
    ? select(known.some(([name]) => name === wanted) ? known : [[wanted, wanted || "Choose one…"], ...known], wanted, { name: "collection", required: true })
    : h("input", { name: "collection", value: wanted, placeholder: "collection", autocomplete: "off" });
  const query = h("input", { id: "query", type: "search", name: "query", value: params.get("q") || "", placeholder: "Ask, or type words", autocomplete: "off", "aria-label": "Query", "aria-keyshortcuts": "/" });
  const mode = select(MODES, params.get("mode") || "hybrid", { name: "mode" });
  const k = h("input", { type: "number", name: "k", min: 1, max: 1000, value: params.get("k") || "10" });
  const grouped = h("input", { type: "checkbox", name: "grouped" });
  grouped.checked = params.has("grouped");
  const filters = new Filters(JSON.parse(params.get("filters") || "[]"), () => collection.value.trim());
  const results = h("section", { class: "results", "aria-label": "Results", "aria-busy": "false" });

  let running = new AbortController();
  signal.addEventListener("abort", () => running.abort());

  const form = h("form", { role: "search", class: "search-form", onsubmit: (event) => { event.preventDefault(); submit(); } },
    h("div", { class: "query-row" }, query, h("kbd", { title: "The key / comes here" }, "/"), h("button", { type: "submit", class: "primary" }, "Search")),
    h("div", { class: "options" },
      field("Collection", collection), field("Mode", mode), field("Hits", k),
      h("label", { class: "check" }, grouped, " One hit per document"), filters.element));
  place.append(h("h1", { class: "sr" }, "Search"), form, results);
  collection.addEventListener("change", () => filters.set([]));
  if (!wanted) results.append(unnamed());
  else if (query.value) await run(asked());
  else results.append(h("p", { class: "empty" }, "Press ", h("kbd", {}, "/"), " to search ", h("b", {}, wanted), "."));
  if (matchMedia("(hover: hover)").matches && !signal.aborted) query.focus({ preventScroll: true });

  function unnamed() {
    if (!lists) return h("p", { class: "empty" }, "This key lists no collection. Type the name of the one to search.");
    if (known.length) return h("p", { class: "empty" }, "Choose a collection to search.");
    return h("p", { class: "empty" }, "There is no collection yet. ", h("a", { href: "#/ingest" }, "Ingest a file"), " to make one.");
  }

  function asked() {
    const filter = filters.filter;
    const bare = known.some(([name, , embeds]) => name === collection.value && !embeds); // only words can be asked here
    return {
      query: query.value, mode: bare && mode.value === "hybrid" ? "lexical" : mode.value, k: Number(k.value) || 10, highlight: true, explain: true,
      ...(grouped.checked && { group_by_document: true }), ...(filter && { filter }),
    };
  }

  // The address keeps the search, so that it can be sent to others; the part behind # reaches no server.
  async function submit() {
    if (!collection.value.trim()) return results.replaceChildren(unnamed());
    prefer(collection.value.trim());
    await filters.learn();
    const kept = new URLSearchParams({ c: collection.value.trim(), q: query.value, mode: mode.value, k: k.value });
    if (grouped.checked) kept.set("grouped", "1");
    if (filters.rows.length) kept.set("filters", JSON.stringify(filters.rows));
    history.pushState(null, "", `#/search?${kept}`);
    await run(asked());
  }

  async function run(search, changed = null) {
    running.abort();
    running = new AbortController();
    const latest = running;
    if (filters.rows.length && !changed) {
      await filters.learn();
      search = { ...search, ...(filters.filter && { filter: filters.filter }) };
    }
    results.setAttribute("aria-busy", "true");
    try {
      if (!changed) filters.check();
      const answer = await post(of(collection.value.trim(), "search"), search, { signal: latest.signal });
      results.replaceChildren(...shown(answer, search, changed));
      announce(`${plural(answer.hits.length, "hit")} in ${milliseconds(answer.timings_ms.total)}`);
    } catch (error) {
      if (!latest.signal.aborted) results.replaceChildren(failure(error));
    } finally {
      if (latest === running) results.setAttribute("aria-busy", "false");
    }
  }

  function shown(answer, search, changed) {
    const context = { collection: collection.value.trim(), search, rerun: (body, patch) => run(body, patch) };
    const most = Object.fromEntries(["dense", "lexical"].map((one) => [one, Math.max(0, ...answer.hits.map((hit) => hit.scores[one] ?? 0))]));
    const { evidence } = answer.receipt;
    const missing = h("div", { class: "below" });
    return [
      h("div", { class: "results-main" },
        h("p", { class: "summary" },
          h("b", {}, plural(answer.hits.length, "hit")), ` in ${milliseconds(answer.timings_ms.total)}`,
          evidence === "none" && h("span", { class: "tag warn" }, "nothing here seems to be about this")),
        missing,
        changed && h("p", { class: "notice" }, "Changed search: ", h("code", {}, encoded(changed)), " ",
          h("button", { type: "button", class: "quiet", onclick: () => run(asked()) }, "Back to the form's")),
        answer.hits.length ? h("ol", { class: "hits" }, answer.hits.map((hit, at) => hitItem(hit, at + 1, most, context))) : h("p", { class: "empty" }, "Nothing was found.")),
      h("aside", { "aria-label": "About this answer" },
        panel("Stages", waterfall(answer.timings_ms)),
        panel("What was searched", receipt(answer.receipt)),
        panel("Why not that document?", whyNot(context, missing))),
    ];
  }
}

const panel = (title, ...children) => h("section", { class: "panel" }, h("h2", {}, title), children);

function hitItem(hit, rank, most, context) {
  const below = h("div", { class: "below" });
  const whole = h("button", { type: "button", "aria-expanded": "false", onclick: () => toggle() }, "Whole passage");
  const text = h("p", { class: "snippet" }, marked(hit, hit.snippet));
  let open = false;
  function toggle() {
    open = !open;
    text.replaceChildren(...marked(hit, open ? null : hit.snippet));
    text.classList.toggle("whole", open);
    whole.setAttribute("aria-expanded", String(open));
  }
  const why = h("button", {
    type: "button",
    onclick: () => explained(below, { ...context, document_id: hit.document_id, passage: hit.passage }, why),
  }, "Why this hit");
  return h("li", { class: "hit" },
    h("div", { class: "hit-head" },
      h("span", { class: "rank" }, rank),
      h("h2", {}, hit.title || hit.document_id),
      h("span", { class: `tag tier ${hit.tier}` }, word(TIERS, hit.tier))),
    h("div", { class: "hit-columns" },
      h("div", { class: "hit-body" },
        h("p", { class: "where" }, h("span", { class: "id" }, hit.document_id), ` · passage ${hit.passage}`, hit.heading && [" · ", h("span", { class: "heading" }, hit.heading.split("\n").join(" › "))]),
        text,
        hit.collapsed > 0 && h("p", { class: "where" }, `and ${hit.collapsed} more like it`),
        h("ul", { class: "chips", "aria-label": "Metadata" }, [...valuesByPath(hit.metadata)].map(([name, values]) =>
          h("li", {}, h("span", {}, name), " ", values.join(", ")))),
        h("div", { class: "row" }, why, whole)),
      h("dl", { class: "scores" },
        score("score", fixed(hit.score, 3)),
        score("meaning", fixed(hit.scores.dense, 3), most.dense ? hit.scores.dense / most.dense : 0, "dense", hit.ranks?.dense),
        score("words", fixed(hit.scores.lexical, 2), most.lexical ? hit.scores.lexical / most.lexical : 0, "lexical", hit.ranks?.lexical),
        "relevance" in hit && score("relevance", `${Math.round(hit.relevance * 100)}%`, hit.relevance, "relevance"))),
    below);
}

function score(label, value, share = null, kind = "", rank = null) {
  return h("div", { title: rank ? `${label}: ranked ${rank}` : null }, h("dt", {}, label), h("dd", {}, value, rank ? h("small", {}, ` #${rank}`) : null), share === null ? null : bar(share, kind));
}

// The text, or its part from snippet[0] to snippet[1], with the query's words marked. Places count code points.
function marked(hit, snippet) {
  const points = Array.from(hit.text);
  const [start, end] = snippet || [0, points.length];
  const parts = [start > 0 ? "… " : ""];
  let at = start;
  for (const [from, to] of hit.highlights || []) {
    if (from < at || to > end) continue;
    parts.push(points.slice(at, from).join(""), h("mark", {}, points.slice(from, to).join("")));
    at = to;
  }
  parts.push(points.slice(at, end).join(""), end < points.length ? " …" : "");
  return parts;
}

// Stages one after the other; each bar begins where the one before ends.
function waterfall(timings) {
  const stages = Object.keys(STAGES).filter((name) => timings[name] > 0);
  const total = timings.total || 1;
  let before = 0;
  const rows = stages.map((name) => {
    const ms = timings[name];
    const x = (100 * before) / total;
    before += ms;
    return h("li", {},
      word(STAGES, name),
      svg("svg", { viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true" },
        svg("rect", { class: "track", width: 100, height: 8 }),
        svg("rect", { class: `fill stage-${name}`, x, width: Math.max(0.8, (100 * ms) / total), height: 8 })),
      h("span", { class: "num" }, milliseconds(ms)));
  });
  return h("ol", { class: "waterfall" }, rows, h("li", { class: "total" }, h("span", {}, "total"), h("span"), h("span", { class: "num" }, milliseconds(timings.total))));
}

const percent = (value) => `${Math.round(value * 100)}%`;
const FACTS = {
  tiers: (tiers) => tiers.map(tier).join(", ") || "none",
  share_read: percent, weight_dense: percent, evidence_from: ({ some, strong }) => `some from ${percent(some)}, strong from ${percent(strong)}`,
  reranked: ({ passages, of: wanted, model }) => `${passages} of ${wanted} by ${model}`,
  corrected: (words) => Object.entries(words).map(([from, to]) => `${from} → ${to}`).join(", "),
  degraded: (parts) => parts.join(", "),
  query_cut: () => "read in part",
};

// Fields that this page does not know are shown as they are.
function receipt(found) {
  const written = (value) => (typeof value === "object" ? encoded(value) : String(value));
  const lines = Object.entries(found).filter(([, value]) => value !== null).map(([name, value]) =>
    h("div", {}, h("dt", {}, word(RECEIPT, name)), h("dd", {}, (FACTS[name] || written)(value))));
  return h("dl", { class: "facts" }, lines);
}

// The explanation has the room of the hits: it goes to `below`.
function whyNot(context, below) {
  const id = h("input", { name: "missing", required: true, autocomplete: "off", spellcheck: "false" });
  const ask = h("button", { type: "submit" }, "Explain");
  return h("form", {
    class: "why-not",
    onsubmit: (event) => {
      event.preventDefault();
      explained(below, { ...context, document_id: id.value.trim() }, ask);
    },
  }, h("div", { class: "row" }, field("Document id", id), ask));
}

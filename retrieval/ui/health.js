// The strip below the bar: readiness, refusals, memory, and what /metrics says of searches and caches, every five seconds.

import { get } from "./api.js";
import { bar, bytes, fixed, h, milliseconds, number, table } from "./dom.js";

const EVERY_MS = 5000;
const SEARCHES = "nearline_searches_total";
const TOTAL = "nearline_search_stage_seconds_bucket";

// "name{a="b"} 1.0" as [name, {a: "b"}, 1]
export function samples(text) {
  return text.split("\n").filter((line) => line && line[0] !== "#").map((line) => {
    const at = line.lastIndexOf(" ");
    const [, name, labels] = /^([^{]+)(?:\{(.*)\})?$/s.exec(line.slice(0, at)) || [];
    const pairs = [...(labels || "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)].map(([, one, value]) => [one, value]);
    return [name, Object.fromEntries(pairs), Number(line.slice(at + 1))];
  });
}

// Seconds that a share of the searches stayed below, between the bounds of the histogram: [[le, count], ...].
export function quantile(buckets, share) {
  const total = buckets.at(-1)?.[1] || 0;
  if (!total) return NaN;
  let [low, before] = [0, 0];
  for (const [bound, count] of buckets) {
    if (count >= share * total) return bound === Infinity ? low : low + ((bound - low) * (share * total - before)) / (count - before);
    [low, before] = [bound, count];
  }
  return low;
}

function figures(text) {
  const memory = {};
  const buckets = new Map();
  const caches = new Map();
  let searches = 0;
  for (const [name, labels, value] of samples(text)) {
    if (name === SEARCHES) searches += value;
    const [, cache] = /^nearline_((?:.*_cache|cache_store|redis_up)\w*?)(?:_total)?$/.exec(name) || [];
    if (cache) caches.set([cache, ...Object.values(labels).sort()].join(" "), value);
    if (name === "nearline_memory_bytes") memory[labels.kind] = value;
    if (name === TOTAL && labels.stage === "total") buckets.set(labels.le === "+Inf" ? Infinity : Number(labels.le), value);
  }
  return { at: performance.now(), searches, memory, caches, buckets: [...buckets].sort(([a], [b]) => a - b) };
}

// Of the searches since the figures before; of all where there were none.
function recent(now, before) {
  if (!before || now.searches < before.searches) return { buckets: now.buckets, since: "since the start" };
  const earlier = new Map(before.buckets);
  const buckets = now.buckets.map(([bound, count]) => [bound, count - (earlier.get(bound) || 0)]);
  return buckets.at(-1)?.[1] > 0 ? { buckets, since: "just now" } : { buckets: now.buckets, since: "since the start" };
}

const percent = (share) => (Number.isFinite(share) ? `${Math.round(100 * share)} %` : "–");

// A row for each cache: found, not found, their share, and what else happened there, since the start.
function cacheRows(caches) {
  const count = (...words) => caches.get(words.join(" ")) || 0;
  const row = (name, hits, misses, ...others) => [name, number(hits), number(misses), percent(hits / (hits + misses)),
    others.filter(([value]) => value).map(([value, text]) => `${typeof value === "number" ? number(value) : value} ${text}`).join(", ")];
  const events = (event) => count("result_cache_events", event);
  const rows = [
    row("answers", count("result_cache", "hit"), count("result_cache", "miss"), [events("survived"), "outlived a write"],
      [events("outdated"), "ended by one"], [events("joined"), "joined"], [events("bypassed"), "bypassed"],
      [count("cache_store", "evicted", "memory"), "evicted"], [fixed(count("result_cache_saved_seconds"), 1), "s saved"]),
    row("query vectors", count("embedding_cache", "hit"), count("embedding_cache", "miss"),
      [count("embedding_cache_events", "joined"), "joined"], [count("embedding_cache_events", "evicted"), "evicted"]),
  ];
  if (caches.has("redis_up")) {
    const redis = (event) => count("cache_store", ...[event, "redis"].sort());
    rows.push(row("Redis", redis("hits"), redis("misses"), [caches.get("redis_up") ? "" : "not", "usable"], [redis("timeouts") + redis("failures"), "failed"], [redis("dropped"), "dropped"]));
  }
  return rows;
}

function item(label, value, more = null, title = null) {
  return h("span", { class: "item", title }, h("span", { class: "label" }, label), " ", h("b", {}, value), more);
}

export function showHealth(place) {
  let before = null;
  let allowed = true;
  const strip = h("span", { class: "items" });
  // Kept in place, so that it stays open and focused.
  const [hits, rows] = [h("b"), h("div")];
  const caches = h("details", { hidden: true }, h("summary", { title: "Answers found in the cache, since the start" }, h("span", { class: "label" }, "cache hits"), " ", hits), rows);
  place.replaceChildren(strip, caches);
  document.addEventListener("key-changed", () => {
    allowed = true;
    refresh();
  });
  async function refresh() {
    const items = [];
    try {
      const { status, starting, refusing = [], quarantined = [] } = await get("readyz", { also: [503] });
      items.push(h("span", { class: `item state ${status === "ready" && !refusing.length ? "ok" : "bad"}` }, h("i", { class: "dot", "aria-hidden": "true" }), starting ? `starting: ${starting.stage} ${starting.done} of ${starting.total}` : status));
      if (refusing.length) items.push(item("refuses", refusing.join(", "), null, "Classes of requests that there is no memory for"));
      if (quarantined.length) items.push(item("quarantined", quarantined.join(", ")));
    } catch {
      items.push(h("span", { class: "item state bad" }, h("i", { class: "dot", "aria-hidden": "true" }), "no answer"));
    }
    if (allowed) {
      try {
        const now = figures(await get("metrics", { text: true }));
        const { held, ceiling } = now.memory;
        const share = ceiling > 0 ? held / ceiling : 0;
        items.push(item("memory", `${bytes(held)} of ${bytes(ceiling)}`, bar(share, share > 0.9 ? "bad" : ""), "Held by the process, and its ceiling"));
        const seconds = before && (now.at - before.at) / 1000;
        items.push(item("searches/s", before ? fixed(Math.max(0, now.searches - before.searches) / seconds, 1) : "–"));
        const { buckets, since } = recent(now, before);
        items.push(item("p99", milliseconds(1000 * quantile(buckets, 0.99)), null, `Of searches ${since}, from the histogram of /metrics`));
        const found = cacheRows(now.caches);
        hits.textContent = found[0][3];
        if (caches.open) rows.replaceChildren(table(["cache", "found", "not found", "share", "besides"], found, { label: "Caches since the start", text: [4] }));
        before = now;
      } catch (error) {
        allowed = ![401, 403].includes(error.status);
      }
    }
    if (!allowed) items.push(h("span", { class: "item muted" }, "figures need a key with the scope metrics"));
    strip.replaceChildren(...items);
    caches.hidden = !allowed || !before;
  }
  caches.addEventListener("toggle", refresh);
  async function forever() {
    if (!document.hidden) await refresh();
    setTimeout(forever, EVERY_MS);
  }
  forever();
}

// The strip below the bar: readiness, refusals, memory, and what /metrics says of searches, every five seconds.

import { get } from "./api.js";
import { bar, bytes, fixed, h, milliseconds } from "./dom.js";

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
  let searches = 0;
  for (const [name, labels, value] of samples(text)) {
    if (name === SEARCHES) searches += value;
    if (name === "nearline_memory_bytes") memory[labels.kind] = value;
    if (name === TOTAL && labels.stage === "total") buckets.set(labels.le === "+Inf" ? Infinity : Number(labels.le), value);
  }
  return { at: performance.now(), searches, memory, buckets: [...buckets].sort(([a], [b]) => a - b) };
}

// Of the searches since the figures before; of all where there were none.
function recent(now, before) {
  if (!before || now.searches < before.searches) return { buckets: now.buckets, since: "since the start" };
  const earlier = new Map(before.buckets);
  const buckets = now.buckets.map(([bound, count]) => [bound, count - (earlier.get(bound) || 0)]);
  return buckets.at(-1)?.[1] > 0 ? { buckets, since: "just now" } : { buckets: now.buckets, since: "since the start" };
}

function item(label, value, more = null, title = null) {
  return h("span", { class: "item", title }, h("span", { class: "label" }, label), " ", h("b", {}, value), more);
}

export function showHealth(place) {
  let before = null;
  let allowed = true;
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
        before = now;
      } catch (error) {
        allowed = ![401, 403].includes(error.status);
      }
    }
    if (!allowed) items.push(h("span", { class: "item muted" }, "figures need a key with the scope metrics"));
    place.replaceChildren(...items);
  }
  async function forever() {
    if (!document.hidden) await refresh();
    setTimeout(forever, EVERY_MS);
  }
  forever();
}

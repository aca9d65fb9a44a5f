// Jobs since the start, followed while any of them is under way.

import { get } from "./api.js";
import { announce, failure, h, number, svg, time } from "./dom.js";
import { encoded } from "./numbers.js";

const FAST_MS = 700;
const SLOW_MS = 4000;
export const ACTIVE = ["queued", "running"];

export async function jobsView(place, _, signal) {
  const list = h("div", { class: "jobs" });
  place.append(h("h1", {}, "Jobs"), h("p", { class: "muted" }, "Rebuilds, tunings and erasures since the start of the service, newest first. A job that has begun runs to its end."), list);
  await followJobs(list, signal, {
    empty: h("p", { class: "empty" }, "No job has run since the start. Collections has a button for rebuilds."),
    refused: (error) => list.replaceChildren(failure(error)),
  })();
}

// A function that looks at once, and from then on again and again until `signal`. Shows the jobs that `wanted` takes;
// `ended` learns when one of them ends, `refused` each error; without a key that may, looking stops.
export function followJobs(list, signal, { wanted = () => true, empty = null, ended = () => {}, refused = () => {} }) {
  let before = new Map();
  let shown = "";
  let timer = null;
  async function look() {
    const jobs = (await get("v1/jobs", { signal })).jobs.filter(wanted);
    // Drawn again only when something has changed, and with the focus where it was.
    const now = encoded(jobs);
    if (now === shown && !jobs.some((job) => ACTIVE.includes(job.status))) return false;
    shown = now;
    const focused = list.contains(document.activeElement) ? document.activeElement.closest("[data-job]")?.dataset.job : null;
    const open = new Set([...list.querySelectorAll("details[open]")].map((one) => one.dataset.job));
    list.replaceChildren(...jobs.map((job) => jobItem(job, open.has(job.id))), ...(jobs.length || !empty ? [] : [empty]));
    if (focused) list.querySelector(`[data-job="${CSS.escape(focused)}"] summary`)?.focus();
    const over = jobs.some((job) => before.has(job.id) && ACTIVE.includes(before.get(job.id)) && !ACTIVE.includes(job.status));
    before = new Map(jobs.map((job) => [job.id, job.status]));
    if (over) {
      announce("A job has ended.");
      ended();
    }
    return jobs.some((job) => ACTIVE.includes(job.status));
  }
  return async function follow() {
    clearTimeout(timer);
    let fast = false;
    try {
      fast = await look();
    } catch (error) {
      shown = "";
      if (!signal.aborted) refused(error);
      if ([401, 403].includes(error.status)) return; // and so it will be again
    }
    if (!signal.aborted) timer = setTimeout(follow, fast ? FAST_MS : SLOW_MS);
  };
}

function jobItem(job, open) {
  const { stage, done, total } = job.progress;
  const active = ACTIVE.includes(job.status);
  const kind = { succeeded: "ok", failed: "bad", refused: "warn" }[job.status] || "";
  const share = total > 0 ? Math.min(1, done / total) : 0;
  const seconds = ((job.finished_ms ?? Date.now()) - job.created_ms) / 1000;
  return h("article", { class: "job" },
    h("div", { class: "job-head" }, h("b", {}, job.kind), " ", job.collection ? h("a", { href: `#/collections?c=${encodeURIComponent(job.collection)}` }, job.collection) : "of shards", h("span", { class: `tag ${kind}` }, job.status), h("span", { class: "muted" }, `${time(job.created_ms)} · ${seconds < 100 ? seconds.toFixed(1) : Math.round(seconds)} s`)),
    active && h("div", { class: "progress" },
      svg("svg", { class: "meter", viewBox: "0 0 100 6", preserveAspectRatio: "none", role: "img", "aria-label": `${Math.round(share * 100)} percent` }, svg("rect", { class: "track", width: 100, height: 6 }), svg("rect", { class: "fill", width: 100 * share, height: 6 })),
      h("span", {}, total > 0 ? `${stage}, ${number(done)} of ${number(total)}` : stage)),
    job.error && h("p", { class: "notice bad" }, job.error),
    Object.keys(job.result).length > 0 && h("details", { "data-job": job.id, open }, h("summary", {}, "Outcome"), h("pre", { tabindex: 0 }, encoded(job.result, 2))));
}

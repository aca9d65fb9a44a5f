// The services of all nodes as the one that was asked sees them, their shards, and buttons that move shards.

import { get, post } from "./api.js";
import { announce, confirmed, failure, h, number, plural, table } from "./dom.js";
import { followJobs } from "./jobs.js";

const EVERY_MS = 2000;
const KINDS = ["move", "balance"];

export async function clusterView(place, _, signal) {
  const [services, jobs, refusals] = [h("div"), h("div", { class: "jobs" }), h("div")];
  const follow = followJobs(jobs, signal, { wanted: (job) => KINDS.includes(job.kind), ended: look });
  place.append(h("h1", {}, "Cluster"), h("p", { class: "muted" }, "Shards are parts of collections. Each node has some of them, and of its services one writes."), refusals, services, jobs);
  let timer = null;
  async function look() {
    clearTimeout(timer);
    try {
      const { services: found, missing } = await get("v1/cluster", { signal });
      const focused = services.contains(document.activeElement) ? document.activeElement.dataset.moves : null;
      services.replaceChildren(...shown(found, missing, start));
      if (focused !== null) services.querySelector(`[data-moves="${CSS.escape(focused)}"]`)?.focus();
      refusals.replaceChildren();
      if (!found.length) return; // and there will be none
    } catch (error) {
      if (signal.aborted) return;
      services.replaceChildren(failure(error));
      if ([401, 403].includes(error.status)) return; // and so it will be again
    }
    if (!signal.aborted) timer = setTimeout(look, EVERY_MS);
  }
  async function start(without) {
    const text = without.length ? `All shards of ${without[0]} move to the other nodes. They are read and written all the time.` : "Shards move until each node has as many as any other. They are read and written all the time.";
    if (!(await confirmed(without.length ? `Empty ${without[0]}` : "Balance", text, "Move"))) return;
    try {
      await post("v1/cluster/balance", { without });
      announce("Shards are being moved.");
    } catch (error) {
      refusals.replaceChildren(failure(error));
    }
    await follow();
  }
  await look();
  await follow();
}

function shown(services, missing, start) {
  if (!services.length) return [h("p", { class: "empty" }, "This service is in no cluster: its nodes are named in the configuration.")];
  const newest = new Map();
  for (const one of services) for (const [name, seq] of Object.entries(one.shards)) newest.set(name, Math.max(seq, newest.get(name) ?? 0));
  const nodes = new Set(services.map((one) => one.node));
  const rows = services.map((one) => {
    const names = Object.keys(one.shards);
    const behind = names.reduce((most, name) => Math.max(most, newest.get(name) - one.shards[name]), 0);
    const state = !one.up ? h("span", { class: "tag bad" }, one.why) : h("span", { class: "tag ok" }, one.writes ? "writes" : "replica");
    const empty = one.writes && names.length > 0 && nodes.size > 1 && h("button", { type: "button", "data-moves": one.node, onclick: () => start([one.node]) }, "Empty");
    return [one.node, one.url, state, h("span", { title: names.join(", ") }, number(names.length)), number(one.moving.length), one.up ? number(behind) : "–", empty];
  });
  return [
    ...(missing.length ? [h("p", {}, h("span", { class: "tag bad" }, `No service that answers has ${missing.join(", ")}`))] : []),
    table(["node", "service", "state", "shards", "moving", "behind", ""], rows, { label: "Services of the cluster", text: [1, 2, 6] }),
    h("p", { class: "row" }, h("button", { type: "button", "data-moves": "", onclick: () => start([]) }, "Balance"), h("span", { class: "muted" }, `${plural(newest.size, "shard")} on ${plural(nodes.size, "node")}; behind: operations of a shard that the service does not have yet`)),
  ];
}

// Collections: what they hold in which tier, their generations, and what an operator does with them.

import { get, of, post, send } from "./api.js";
import { announce, bar, bytes, confirmed, failure, field, fixed, h, number, plural, table } from "./dom.js";
import { ACTIVE, followJobs } from "./jobs.js";
import { TIERS as WORDS, word } from "./words.js";

const TIERS = ["hot", "cold", "delta"];

export async function collectionsView(place, params, signal) {
  const list = h("div", { class: "cards" });
  const jobs = h("div", { class: "jobs" });
  const mine = new Set(); // jobs that were started here stay when they end
  const follow = followJobs(jobs, signal, { wanted: (job) => ACTIVE.includes(job.status) || mine.has(job.id), ended: refresh });
  place.append(h("h1", {}, "Collections"), creation(refresh), jobs, list);
  await refresh();
  if (signal.aborted) return;
  const chosen = params.get("c");
  if (chosen) document.getElementById(`collection-${chosen}`)?.scrollIntoView();
  // A key without the scope admin sees no jobs; that is said where it would start one.
  await follow();

  async function refresh() {
    try {
      const { collections, quarantined, unavailable } = await get("v1/collections", { signal });
      const again = list.contains(document.activeElement) ? document.activeElement.dataset.focus : null;
      list.replaceChildren(
        ...quarantined.map((one) => sick(one, "quarantined", refresh)),
        ...unavailable.map((one) => sick(one, "unavailable", refresh)),
        ...collections.map((one) => card(one, refresh, started)));
      if (!list.children.length) list.append(h("p", { class: "empty" }, "There is no collection yet."));
      if (again) list.querySelector(`[data-focus="${CSS.escape(again)}"]`)?.focus();
    } catch (error) {
      if (!signal.aborted) list.replaceChildren(failure(error));
    }
  }

  async function started(job) {
    announce(`Job ${job} has started`);
    mine.add(job);
    await follow();
  }
}

function creation(refresh) {
  const name = h("input", { name: "name", required: true, pattern: "[a-z0-9][a-z0-9_\\-]{0,62}", title: "1 to 63 of a-z, 0-9, - and _, beginning with a letter or digit", autocomplete: "off", spellcheck: "false" });
  const language = h("input", { name: "language", placeholder: "auto", autocomplete: "off" });
  const hot = h("input", { name: "hot_capacity", type: "number", min: 0, placeholder: "as configured" });
  const title = h("input", { name: "title_weight", type: "number", min: 0, max: 5, placeholder: "1" });
  const said = h("div", {});
  return h("details", { class: "panel" }, h("summary", {}, "New collection"),
    h("form", {
      class: "row",
      onsubmit: async (event) => {
        event.preventDefault();
        const wanted = { name: name.value, ...(language.value && { language: language.value }), ...(hot.value && { hot_capacity: Number(hot.value) }), ...(title.value && { field_weights: { title: Number(title.value) } }) };
        await tried(said, async () => {
          await post("v1/collections", wanted);
          event.target.reset();
          announce(`Collection ${wanted.name} was created`);
          await refresh();
        });
      },
    }, field("Name", name), field("Language", language), field("Recent passages kept in the fast (hot) tier", hot), field("How often words of titles count", title), h("button", { type: "submit", class: "primary" }, "Create")), said);
}

// Runs `work`; its failure is shown in `place`.
async function tried(place, work) {
  place.replaceChildren();
  try {
    await work();
  } catch (error) {
    place.replaceChildren(failure(error));
  }
}

// A collection that does not serve. Shards at nodes that do not answer come back by themselves.
function sick(one, why, refresh) {
  const said = h("div", {});
  return h("article", { class: "card" }, h("div", { class: "card-head" }, h("h2", {}, one.name), h("span", { class: "tag bad" }, why)),
    h("p", {}, one.reason), why === "quarantined" && h("div", { class: "row" }, removal(one.name, null, said, refresh)), said);
}

function card(one, refresh, started) {
  const said = h("div", {});
  const act = (work) => tried(said, work);
  const older = one.generations.filter((number) => number < one.generation);
  const rebuild = h("button", {
    type: "button", "data-focus": `rebuild ${one.name}`,
    onclick: () => act(async () => {
      const sure = await confirmed(`Rebuild ${one.name}?`, `All indexes of ${plural(total(one.passages), "passage")} are built anew beside those in use, measured, and swapped in. Searches go on meanwhile.`, "Rebuild");
      if (sure) await started((await post(of(one.name, "reindex"))).job);
    }),
  }, "Rebuild");
  const rollback = h("button", {
    type: "button", disabled: !older.length, title: older.length ? null : "There is no older build of the indexes", "data-focus": `rollback ${one.name}`,
    onclick: () => act(async () => {
      const sure = await confirmed(`Roll back ${one.name}?`, `Build ${older.at(-1)} of the indexes serves again instead of ${one.generation}. Documents written since stay searchable.`, "Roll back");
      if (!sure) return;
      const { generation } = await post(of(one.name, "rollback"));
      announce(`Build ${generation} of the indexes serves`);
      await refresh();
    }),
  }, "Roll back");
  return h("article", { class: "card", id: `collection-${one.name}` },
    h("div", { class: "card-head" },
      h("h2", {}, h("a", { href: `#/search?c=${encodeURIComponent(one.name)}` }, one.name)),
      h("span", { class: "muted" }, `${one.model ?? "vectors of your own"} · ${languages(one)}`),
      one.rebuild_due && h("span", { class: "tag warn", title: one.rebuild_due.error || "" }, `rebuild due: ${one.rebuild_due.reason}`)),
    h("dl", { class: "figures" },
      figure("documents", number(one.documents)), figure("passages", number(total(one.passages)), one.dead_passages ? `${number(one.dead_passages)} dead` : null),
      figure("indexes", bytes(one.memory_bytes)), figure("files in memory", bytes(one.resident_bytes)), figure("mapped", bytes(one.mapped_bytes)),
      figure("to erase", bytes(one.owed_bytes))),
    tiers(one),
    h("div", { class: "generations" },
      h("span", { class: "label", title: "Each rebuild makes a new one (API: generation); the older ones are kept for a rollback" }, "Builds of the indexes"),
      one.generations.length ? one.generations.map((each) => h("span", { class: `tag ${each === one.generation ? "ok" : ""}` }, each === one.generation ? `${each} serves` : String(each))) : h("span", { class: "muted" }, "none before the first rebuild"),
      one.recall_evidence && h("span", { class: "muted" }, `recall@10 ${recall(one, "all")} by ${plural(one.recall_evidence.queries, "query", "queries")} (${one.recall_evidence.source}), target ${fixed(one.recall_target, 2)}`)),
    aliases(one, act, refresh),
    h("div", { class: "row" }, rebuild, rollback,
      h("a", { class: "button", href: `#/evaluation?c=${encodeURIComponent(one.name)}` }, "Evaluation"),
      h("a", { class: "button", href: `#/ingest?c=${encodeURIComponent(one.name)}` }, "Ingest"),
      removal(one.name, one.documents, said, refresh)),
    said);
}

const total = (counts) => Object.values(counts).reduce((sum, count) => sum + count, 0);
const figure = (label, value, more = null) => h("div", {}, h("dt", {}, label), h("dd", {}, value, more && h("small", {}, ` ${more}`)));

function languages(one) {
  const found = Object.keys(one.languages);
  return found.length ? found.slice(0, 4).join(", ") + (found.length > 4 ? "…" : "") : `language ${one.language}`;
}

function tiers(one) {
  const all = total(one.passages) || 1;
  const rows = TIERS.filter((tier) => tier in one.passages).map((tier) => [
    h("span", { class: `tier-name ${tier}` }, word(WORDS, tier)), number(one.passages[tier]), bar(one.passages[tier] / all, tier),
    bytes(one.tier_bytes[tier]), recall(one, tier),
  ]);
  return table(["among", "passages", "share", "memory", "recall@10, 95%"], rows, { label: `Tiers of ${one.name}`, text: [2] });
}

// With its interval, where one was measured.
function recall(one, tier) {
  const [low, high] = one.recall_evidence?.intervals[tier] || [];
  return fixed(one.recall[tier], 3) + (low === undefined ? "" : ` (${fixed(low, 3)}–${fixed(high, 3)})`);
}

function aliases(one, act, refresh) {
  const input = h("input", { name: "alias", required: true, placeholder: "new alias", "aria-label": `New alias of ${one.name}`, autocomplete: "off", spellcheck: "false", "data-focus": `alias ${one.name}` });
  const remove = (alias) => act(async () => {
    if (!await confirmed(`Remove the alias ${alias}?`, `Callers that use it get an error; the collection ${one.name} stays.`, "Remove")) return;
    await send("DELETE", `v1/aliases/${encodeURIComponent(alias)}`);
    await refresh();
  });
  return h("form", {
    class: "aliases",
    onsubmit: (event) => {
      event.preventDefault();
      act(async () => {
        await send("PUT", `v1/aliases/${encodeURIComponent(input.value.trim())}`, { collection: one.name });
        await refresh();
      });
    },
  }, h("span", { class: "label" }, "Aliases"),
  one.aliases.map((alias) => h("span", { class: "tag" }, alias, " ", h("button", { type: "button", class: "quiet", "aria-label": `Remove the alias ${alias}`, onclick: () => remove(alias) }, "×"))),
  input, h("button", { type: "submit" }, "Add"));
}

function removal(name, documents, said, refresh) {
  return h("button", {
    type: "button", class: "danger-quiet", "data-focus": `delete ${name}`,
    onclick: () => tried(said, async () => {
      const lost = documents === null ? "all its documents" : plural(documents, "document");
      if (!await confirmed(`Delete ${name}?`, `The collection goes with ${lost}. This cannot be undone.`, "Delete", name)) return;
      await send("DELETE", of(name));
      announce(`Collection ${name} was deleted`);
      await refresh();
    }),
  }, "Delete");
}

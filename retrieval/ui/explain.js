// What POST explain says of one document and a search.

import { of, post } from "./api.js";
import { announce, failure, fixed, h, number, plural, table } from "./dom.js";
import { encoded } from "./numbers.js";
import { tier } from "./words.js";

// Fills `place`; closing it, also by Escape, gives the focus back to `opener`.
export async function explained(place, { collection, search, document_id, passage, rerun }, opener) {
  const close = h("button", { type: "button", class: "quiet", "data-close": "", "aria-label": "Close the explanation" }, "×");
  const box = h("section", { class: "explanation", "aria-label": `Explanation of ${document_id}`, tabindex: -1, "data-closes": "" }, close, h("p", { class: "muted" }, "Searching for the reason…"));
  close.addEventListener("click", () => {
    place.replaceChildren();
    opener.focus();
  });
  place.replaceChildren(box);
  try {
    const { highlight, explain, ...options } = search;
    const found = await post(of(collection, "explain"), { ...options, document_id, ...(passage !== undefined && { passage }) });
    box.replaceChildren(close, ...body(found, search, document_id, rerun));
    announce(`${found.found ? `Found at ${found.found}` : "Not found"}: ${found.cause.reason}`);
  } catch (error) {
    box.replaceChildren(close, failure(error));
  }
  box.focus();
}

function body(found, search, document_id, rerun) {
  const changes = [found.change, ...found.others].filter(Boolean);
  return [
    h("h2", {}, h("span", { class: `tag ${found.found ? "ok" : "warn"}` }, found.found ? `hit ${found.found}` : "no hit"), " ", h("span", { class: "id" }, document_id)),
    h("p", {}, sentence(found.cause.reason), " ", h("small", { class: "muted" }, `${found.cause.kind}, in the stage ${found.cause.stage}`)),
    found.also.length > 0 && h("ul", { class: "also" }, found.also.map((one) => h("li", {}, "Then: ", sentence(one.reason), " ", h("small", { class: "muted" }, one.kind)))),
    changes.length > 0 && h("div", { class: "changes" }, h("p", {}, found.within_k ? "Changes that find it; each was tried:" : "No change brings it among the first hits; these find it further down, and each was tried:"), h("ul", {}, changes.map((one) =>
      h("li", {}, h("code", {}, encoded(one.patch)), ` finds it at ${one.verified_rank} `,
        h("button", { type: "button", onclick: () => rerun(merged(search, one.patch), one.patch) }, "Search so"))))),
    found.passages.length > 0 && table(
      ["passage", "among", "meaning", "words", "exact rank", "rank here", "place"],
      found.passages.slice(0, 5).map((one) => [
        String(one.passage), tier(one.tier), fixed(one.scores.dense, 3), fixed(one.scores.lexical, 2),
        `${number(one.exact.dense)} / ${number(one.exact.lexical)}`, `${number(one.candidate.dense)} / ${number(one.candidate.lexical)}`, number(one.place),
      ]), { label: "Passages of the document", text: [1] }),
    found.passages[0]?.words.length > 0 && h("div", { class: "words" },
      h("p", {}, `Words of the query in passage ${found.passages[0].passage}:`),
      h("ul", { class: "chips" }, found.passages[0].words.map((one) => h("li", { class: one.score > 0 ? "" : "off" },
        h("span", {}, one.word), " ", one.score > 0 ? `+${fixed(one.score, 2)} (${Math.round(one.share * 100)}%)` : one.near ? `absent, has ${one.near}` : "absent")))),
    Object.keys(found.cause.evidence).length > 0 && h("details", {}, h("summary", {}, "Evidence"), h("pre", { tabindex: 0 }, encoded(found.cause.evidence, 2))),
    h("p", { class: "muted" }, `${plural(found.searches, "search", "searches")} run, with all writes up to ${found.seq}. Ranks are by meaning / by words.`),
  ].filter(Boolean);
}

const sentence = (text) => `${text.charAt(0).toUpperCase()}${text.slice(1)}.`;

// JSON merge patch, RFC 7396.
export function merged(target, patch) {
  if (patch === null || typeof patch !== "object" || Array.isArray(patch)) return patch;
  const made = target && typeof target === "object" && !Array.isArray(target) ? { ...target } : {};
  for (const [name, value] of Object.entries(patch)) {
    if (value === null) delete made[name];
    else made[name] = merged(made[name], value);
  }
  return made;
}

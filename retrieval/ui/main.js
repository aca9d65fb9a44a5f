// The frame of the page: views by the part of the address behind #, the key, the color scheme, and keys of the keyboard.

import { key, setKey } from "./api.js";
import { failure, field, h, opened } from "./dom.js";
import { showHealth } from "./health.js";
import { clusterView } from "./cluster.js";
import { collectionsView } from "./collections.js";
import { evaluationView } from "./evaluation.js";
import { ingestView } from "./ingest.js";
import { jobsView } from "./jobs.js";
import { searchView } from "./search.js";

const VIEWS = {
  search: ["Search", searchView],
  collections: ["Collections", collectionsView],
  jobs: ["Jobs", jobsView],
  evaluation: ["Evaluation", evaluationView],
  ingest: ["Ingest", ingestView],
  cluster: ["Cluster", clusterView],
};
const THEMES = ["auto", "light", "dark"];
const root = document.getElementById("view");
let leaving = new AbortController();

// A view fills `root` and stops what it began when `signal` says that it was left.
async function show() {
  leaving.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const name = Object.hasOwn(VIEWS, path) ? path : "search";
  const [title, view] = VIEWS[name];
  document.title = `${title} – Nearline`;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#/${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const place = h("div", { class: `view ${name}` });
  root.replaceChildren(place);
  try {
    await view(place, new URLSearchParams(query), signal);
  } catch (error) {
    if (!signal.aborted) place.replaceChildren(h("h1", {}, title), failure(error));
  }
}

function askForKey() {
  const input = h("input", { type: "password", name: "key", autocomplete: "off", spellcheck: "false", value: key(), placeholder: "nl_..." });
  const done = (text) => {
    dialog.close();
    setKey(text.trim());
  };
  const dialog = opened("Access key", [
    h("p", {}, "It is kept in this tab and forgotten when the tab is closed. Without keys, the service needs none."),
    field("Key", input),
    h("div", { class: "row end" },
      h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"),
      h("button", { type: "button", onclick: () => done("") }, "Forget"),
      h("button", { type: "submit", class: "primary" }, "Use")),
  ], () => done(input.value));
}

function showKey() {
  document.getElementById("key-button").textContent = key() ? "Key ✓" : "Key";
}

function showTheme() {
  const theme = document.documentElement.dataset.theme || "auto";
  const button = document.getElementById("theme-button");
  button.textContent = theme[0].toUpperCase() + theme.slice(1);
  button.setAttribute("aria-label", `Color scheme: ${theme}`);
  return theme;
}

function nextTheme() {
  const theme = THEMES[(THEMES.indexOf(showTheme()) + 1) % THEMES.length];
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  localStorage.setItem("nearline-theme", theme);
  showTheme();
}

document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, textarea, select, dialog");
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    const box = document.getElementById("query");
    if (box) box.select();
    else location.hash = "#/search";
  }
  if (event.key === "Escape" && !event.target.closest("dialog")) {
    const open = [...document.querySelectorAll("[data-closes]")].at(-1);
    open?.querySelector("[data-close]").click();
  }
});
document.getElementById("key-button").addEventListener("click", askForKey);
document.getElementById("theme-button").addEventListener("click", nextTheme);
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address behind # names the view
  root.focus();
});
document.addEventListener("key-changed", () => {
  showKey();
  show();
});
window.addEventListener("hashchange", show);
showKey();
showTheme();
showHealth(document.getElementById("health"));
show();

// Elements, numbers and dialogs. All text becomes text nodes: what documents hold is never read as markup.

const SVG = "http://www.w3.org/2000/svg";

// h("button", {class: "x", onclick: f, hidden: true}, "text", child, [more], null)
export function h(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

const counts = new Intl.NumberFormat("en-US");

export const number = (value) => (value === null || value === undefined ? "–" : counts.format(value));
export const fixed = (value, digits) => (Number.isFinite(value) ? value.toFixed(digits) : "–");
export const plural = (count, one, many = `${one}s`) => `${number(count)} ${count === 1 ? one : many}`;

export function bytes(count) {
  if (!Number.isFinite(count)) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let power = 0;
  while (count >= 1024 && power < units.length - 1) {
    count /= 1024;
    power += 1;
  }
  return `${count >= 100 || power === 0 ? Math.round(count) : count.toFixed(1)} ${units[power]}`;
}

export function milliseconds(value) {
  if (!Number.isFinite(value)) return "–";
  return value >= 1000 ? `${(value / 1000).toFixed(1)} s` : `${value >= 10 ? value.toFixed(0) : value.toFixed(1)} ms`;
}

export const time = (ms) => new Date(ms).toLocaleString("sv-SE").slice(0, 16); // 2026-01-05 10:00, local

// A bar of `share`, 0 to 1; its figure stands beside it as text.
export function bar(share, kind = "") {
  const width = Math.round(Math.max(0, Math.min(1, share || 0)) * 100);
  return svg("svg", { class: `meter ${kind}`, viewBox: "0 0 100 6", preserveAspectRatio: "none", "aria-hidden": "true" },
    svg("rect", { class: "track", width: 100, height: 6 }), svg("rect", { class: "fill", width, height: 6 }));
}

export function table(header, rows, options = {}) {
  const align = (at) => (options.text?.includes(at) || at === 0 ? null : "num");
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": options.label || "Table" },
    h("table", {},
      h("thead", {}, h("tr", {}, header.map((one, at) => h("th", { scope: "col", class: align(at) }, one)))),
      h("tbody", {}, rows.map((row) => h("tr", {}, row.map((one, at) =>
        h(at === 0 ? "th" : "td", { class: align(at), scope: at === 0 ? "row" : null }, one)))))));
}

export const field = (label, control) => h("label", { class: "field" }, h("span", {}, label), control);

export function select(options, value, attributes = {}) {
  const element = h("select", attributes, options.map(([name, label]) => h("option", { value: name }, label)));
  element.value = value;
  return element;
}

// What screen readers say.
export function announce(text) {
  document.getElementById("status").textContent = text;
}

export function failure(error) {
  return h("p", { class: "notice bad", role: "alert" }, error.shown || error.message || String(error));
}

// Resolves to true or false. With `typed`, that word has to be typed first. Escape and Cancel are no.
export function confirmed(title, text, action, typed = null) {
  return new Promise((resolve) => {
    const word = typed && h("input", { name: "typed", autocomplete: "off", spellcheck: "false", "aria-label": `Type ${typed}` });
    const go = h("button", { type: "submit", class: typed ? "danger" : "primary", disabled: Boolean(typed) }, action);
    word?.addEventListener("input", () => (go.disabled = word.value !== typed));
    const dialog = opened(title, [
      h("p", {}, text),
      typed && field(`Type ${typed} to confirm`, word),
      h("div", { class: "row end" }, h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"), go),
    ], () => {
      resolve(true);
      dialog.close();
    });
    dialog.addEventListener("close", () => resolve(false));
  });
}

// A modal dialog with a form, removed when it closes.
export function opened(title, children, onsubmit) {
  const submitted = (event) => {
    event.preventDefault();
    onsubmit();
  };
  const dialog = h("dialog", { "aria-label": title }, h("form", { onsubmit: submitted }, h("h2", {}, title), children));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

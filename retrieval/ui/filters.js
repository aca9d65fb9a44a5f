// Rows of key, operator and value, which together are a filter. Keys come from a sample of documents, values from facets.

import { of, post, valuesByPath } from "./api.js";
import { h, select } from "./dom.js";

const SAMPLE = 100; // documents that are looked at for their metadata keys
const OPERATORS = [
  ["eq", "is"], ["ne", "is not"], ["gt", "above"], ["gte", "at least"], ["lt", "below"], ["lte", "at most"],
  ["in", "one of"], ["nin", "none of"], ["prefix", "begins with"], ["exists", "exists"], ["missing", "is missing"],
];
const WITHOUT_VALUE = ["exists", "missing"];

// [{key, operator, value}] as a filter, or null. Values get the type that the key's values have: types never mix.
export function filterOf(rows, types) {
  const filters = rows.filter((row) => row.key && (row.value !== "" || WITHOUT_VALUE.includes(row.operator))).map((row) => {
    if (WITHOUT_VALUE.includes(row.operator)) return { type: "exists", key: row.key, value: row.operator === "exists" };
    const several = ["in", "nin"].includes(row.operator);
    const typed = (text) => converted(text.trim(), types.get(row.key));
    return { type: row.operator, key: row.key, value: several ? listed(row.value).map(typed) : typed(row.value) };
  });
  return filters.length > 1 ? { type: "and", filters } : filters[0] || null;
}

// The values between commas; one that holds a comma stands in quotes.
function listed(text) {
  return [...text.matchAll(/\s*"([^"]*)"\s*(?:,|$)|([^,]+)/g)].map(([, quoted, plain]) => quoted ?? plain);
}

function converted(text, type) {
  if (type !== "string" && text !== "" && Number.isFinite(Number(text))) {
    return /^-?\d+$/.test(text) && !Number.isSafeInteger(Number(text)) ? BigInt(text) : Number(text);
  }
  if (type === "boolean" || type === undefined) {
    if (text === "true" || text === "false") return text === "true";
  }
  return text;
}

export class Filters {
  constructor(rows, collection) {
    this.collection = collection; // () => its name
    this.types = new Map();
    this.values = new Map();
    this.keys = h("datalist", { id: "metadata-keys" });
    this.list = h("div", { class: "filters", role: "group", "aria-label": "Filters" });
    const add = h("button", { type: "button", class: "quiet", onclick: () => this.add({}).focus() }, "+ Filter");
    this.element = h("div", { class: "filter-box" }, this.keys, this.list, add);
    this.set(rows);
  }

  set(rows) {
    this.list.replaceChildren();
    for (const row of rows) this.add(row);
  }

  get rows() {
    return [...this.list.children].map(({ inputs }) => ({ key: inputs.key.value.trim(), operator: inputs.operator.value, value: inputs.value.value }));
  }

  get filter() {
    return filterOf(this.rows, this.types);
  }

  // Throws for a row that is half filled in: without it, a search would find more than was asked for.
  check() {
    for (const { key, operator, value } of this.rows) {
      if (key && value === "" && !WITHOUT_VALUE.includes(operator)) throw new Error(`The filter on ${key} needs a value.`);
      if (!key && value !== "") throw new Error(`The filter with the value ${value} needs a key.`);
    }
  }

  add({ key = "", operator = "eq", value = "" }) {
    const values = h("datalist", { id: `values-${crypto.randomUUID()}` });
    const inputs = {
      key: h("input", { value: key, list: "metadata-keys", placeholder: "key", "aria-label": "Filter: key", autocomplete: "off", onfocus: () => this.learn() }),
      operator: select(OPERATORS, operator, { "aria-label": "Filter: operator", onchange: () => this.fit(inputs) }),
      value: h("input", { value, list: values.id, placeholder: "value", "aria-label": "Filter: value", autocomplete: "off", onfocus: () => this.propose(inputs.key.value.trim(), values) }),
    };
    const remove = h("button", { type: "button", class: "quiet", "aria-label": "Remove this filter", onclick: () => row.remove() }, "×");
    const row = h("div", { class: "filter-row" }, inputs.key, inputs.operator, inputs.value, values, remove);
    row.inputs = inputs;
    this.fit(inputs);
    this.list.append(row);
    return inputs.key;
  }

  fit(inputs) {
    inputs.value.hidden = WITHOUT_VALUE.includes(inputs.operator.value);
    inputs.value.placeholder = ["in", "nin"].includes(inputs.operator.value) ? 'value, "a, b"' : "value";
  }

  // Once for each collection; who asks while it is on its way waits for it too.
  learn() {
    const collection = this.collection();
    if (collection && this.learnt !== collection) {
      this.learnt = collection;
      this.learning = this.look(collection);
    }
    return this.learning;
  }

  // The metadata keys of the first documents, and the types of their values.
  async look(collection) {
    this.types.clear();
    this.values.clear();
    try {
      const { documents } = await post(of(collection, "documents", "scroll"), { limit: SAMPLE, text: false });
      for (const { metadata } of documents) {
        for (const [name, [value]] of valuesByPath(metadata)) this.types.set(name, typeof value);
      }
    } catch {
      this.learnt = null; // they can still be typed
    }
    this.keys.replaceChildren(...[...this.types.keys()].sort().map((name) => h("option", { value: name })));
  }

  async propose(key, list) {
    if (!key) return;
    try {
      if (!this.values.has(key)) {
        const asked = { query: key, k: 1, mode: "lexical", facets: [{ key, top: 100 }] };
        this.values.set(key, (await post(of(this.collection(), "search"), asked)).facets[0].values);
      }
      list.replaceChildren(...this.values.get(key).map(({ value, count }) => h("option", { value: String(value) }, `${count}`)));
    } catch {
      list.replaceChildren(); // a key that no document has
    }
  }
}

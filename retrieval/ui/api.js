// Calls of the API, with the key of this tab. The key is kept in sessionStorage alone: closing the tab forgets it.

import { decoded, encoded } from "./numbers.js";

const ROOT = new URL("../../", import.meta.url); // of the service, also below a proxy's prefix
const KEY = "nearline-key";

export const key = () => sessionStorage.getItem(KEY) || "";

export function setKey(text) {
  if (text) sessionStorage.setItem(KEY, text);
  else sessionStorage.clear();
  document.dispatchEvent(new CustomEvent("key-changed"));
}

// `shown` is for people: what happened, and what to do about it.
export class ApiError extends Error {
  constructor(status, message, param = null, retryMs = null) {
    super(message);
    this.status = status;
    this.param = param;
    this.shown = message;
    if (status === 401) this.shown = key() ? `The access key is not accepted: ${message}` : "This service needs an access key: press Key above and enter one.";
    if (status === 403) this.shown = `This key may not do that: ${message}`;
    this.retryMs = retryMs;
    if (status === 0) this.shown = "The service does not answer.";
  }
}

export async function send(method, path, body, options = {}) {
  const headers = {};
  if (/[^\x21-\x7e]/.test(key())) throw new ApiError(401, "it holds characters that no key has");
  if (key()) headers.Authorization = `Bearer ${key()}`;
  const form = body instanceof FormData;
  if (body !== undefined && !form) headers["Content-Type"] = "application/json";
  let answer;
  try {
    answer = await fetch(new URL(path, ROOT), {
      method, headers, signal: options.signal, credentials: "omit",
      body: body === undefined || form ? body : encoded(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, String(error));
  }
  const text = await answer.text();
  if (options.text && answer.ok) return text;
  let found = null;
  try {
    found = text ? decoded(text) : null;
  } catch {
    if (answer.ok) throw new ApiError(answer.status, "the answer is not JSON");
  }
  // Of /readyz, 503 is an answer.
  if (!answer.ok && !(options.also || []).includes(answer.status)) {
    const detail = found?.error || {};
    throw new ApiError(answer.status, detail.message || text.slice(0, 300) || answer.statusText, detail.param, Number(answer.headers.get("Retry-After-Ms")) || null);
  }
  return found;
}

export const get = (path, options) => send("GET", path, undefined, options);
export const post = (path, body = {}, options = {}) => send("POST", path, body, options);
export const of = (collection, ...below) =>
  ["v1/collections", ...[collection, ...below].map(encodeURIComponent)].join("/");

const COLLECTION = "nearline-collection";

// The collection that this tab worked with last, where it is still there; the only one, where there is one. Otherwise
// "", so that nobody searches or fills the first of the alphabet by mistake.
export function preferred(known) {
  const last = sessionStorage.getItem(COLLECTION);
  if (known.some(([name]) => name === last)) return last;
  return known.length === 1 ? known[0][0] : "";
}

export const prefer = (collection) => sessionStorage.setItem(COLLECTION, collection);

// Names to choose from: collections, then their aliases. A key that sees some documents only may not list them.
// Each name and alias, what it is shown as, and whether the collection has a model.
export async function names() {
  const { collections } = await get("v1/collections");
  return collections.flatMap((one) => [[one.name, one.name], ...one.aliases.map((alias) => [alias, `${alias} → ${one.name}`])]
    .map((named) => [...named, one.model !== null]));
}

// The values in metadata under the dotted paths by which filters find them.
export function valuesByPath(metadata, path = "", found = new Map()) {
  if (metadata === null) return found;
  if (Array.isArray(metadata)) for (const inner of metadata) valuesByPath(inner, path, found);
  else if (typeof metadata === "object") for (const [key, inner] of Object.entries(metadata)) valuesByPath(inner, path ? `${path}.${key}` : key, found);
  else found.set(path, [...(found.get(path) ?? []), metadata]);
  return found;
}

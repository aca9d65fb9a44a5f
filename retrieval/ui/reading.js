// Files as documents, by the rules of `nearline ingest`: a text is one document, a line or row of a table one each.

import { markdownOf } from "./markup.js";
import { decoded } from "./numbers.js";

const TEXTS = ["md", "markdown", "txt", "text", "rst", "adoc", "org", "log", "xml"];
const LANGUAGES = { // of programming, with their endings
  c: "c h", "c#": "cs", "c++": "cc cpp hpp", clojure: "clj", css: "css", dart: "dart", elixir: "ex exs", erlang: "erl", go: "go",
  haskell: "hs", ini: "ini", java: "java", javascript: "js jsx mjs", julia: "jl", kotlin: "kt", lua: "lua", ocaml: "ml", perl: "pl pm",
  php: "php", powershell: "ps1", protobuf: "proto", python: "py pyi", r: "r", ruby: "rb", rust: "rs", scala: "scala",
  shell: "bash sh", sql: "sql", swift: "swift", terraform: "tf", toml: "toml", typescript: "ts tsx", yaml: "yaml yml", zig: "zig",
};
const CODE = Object.fromEntries(Object.entries(LANGUAGES).flatMap(([name, endings]) => endings.split(" ").map((one) => [one, name])));
const BARE = /^(readme|license|changelog|contributing|authors|notice|todo|makefile|dockerfile)$/i;
const TEXT = "text";
const CHARSET = /<meta[^>]{0,200}?charset\s*=\s*["']?([\w-]{1,40})/i;
const HEAD_BYTES = 1024; // in which an HTML file names its charset
const ACL = /^(?:---|\+\+\+)[ \t]*\r?\n(?:(?!---|\+\+\+).*\n)*?[ \t]*["']?acl["']?[ \t]*[:=]/;
const IDS = ["id", "_id"];
const INFERRED_FROM = 1000; // rows of a table, for the types of its columns

// Rows that cannot be read have an `error`: [{document} or {id, error}]. Null for a kind of file that the browser cannot read.
export async function read(file, textField = TEXT) {
  const kind = file.name.toLowerCase().split(".").at(-1);
  if (["jsonl", "ndjson"].includes(kind)) return lines(await textOf(file), file.name, textField);
  if (kind === "json") return json(await textOf(file), file.name, textField);
  if (["csv", "tsv"].includes(kind)) return rows(await textOf(file), file.name, textField, kind === "tsv" ? "\t" : ",");
  if (["html", "htm", "xhtml"].includes(kind)) return [{ document: { id: file.name, ...markdownOf(await textOf(file, CHARSET)) } }];
  if (TEXTS.includes(kind) || CODE[kind] || BARE.test(file.name)) {
    const text = (await textOf(file)).replace(/\r\n?/g, "\n");
    if (ACL.test(text)) return [{ id: file.name, error: "its front matter names an acl, which only nearline ingest reads: here everybody could see it" }];
    if (!text.trim()) return [{ id: file.name, error: "the file is empty" }];
    const title = ["md", "markdown"].includes(kind) ? firstHeading(text) : null;
    return [{ document: { id: file.name, title: title || file.name, text, ...(CODE[kind] && { metadata: { programming_language: CODE[kind] } }) } }];
  }
  return null;
}

// The first Markdown heading, `# like this` or underlined; headings inside fenced code do not count.
function firstHeading(text) {
  let [fence, previous] = ["", ""];
  for (const line of text.split("\n")) {
    const opened = /^ {0,3}(`{3,}|~{3,})/.exec(line)?.[1];
    if (fence) {
      if (opened?.startsWith(fence)) fence = "";
      continue;
    }
    if (opened) {
      [fence, previous] = [opened, ""];
      continue;
    }
    const marks = /^ {0,3}#{1,6}[ \t]+/.exec(line);
    if (marks) {
      const title = line.slice(marks[0].length).trim();
      const without = title.replace(/#+$/, "");
      const found = (without === "" || /\s$/.test(without) ? without : title).trim();
      if (found) return found;
    }
    if (/^ {0,3}[^\s\-*+>|#=`~]/.test(previous) && /^ {0,3}(?:=+|-{2,})[ \t]*$/.test(line)) return previous.trim();
    previous = line;
  }
  return null;
}

// By its byte order mark, else by the charset that it names, else as UTF-8.
async function textOf(file, charset = null) {
  const bytes = await file.arrayBuffer();
  const mark = String(new Uint8Array(bytes.slice(0, 2)));
  const named = charset?.exec(new TextDecoder("latin1").decode(bytes.slice(0, HEAD_BYTES)))?.[1];
  const encoding = { "255,254": "utf-16le", "254,255": "utf-16be" }[mark] ?? named ?? "utf-8";
  try {
    const text = new TextDecoder(encoding, { fatal: true }).decode(bytes);
    if (!text.includes("\0")) return text;
  } catch {
    // as below
  }
  throw new Error("the file is not text in UTF-8, nor in UTF-16 with a byte order mark; nearline ingest reads others, with --encoding");
}

function lines(text, name, textField) {
  return text.split("\n").flatMap((line, at) => {
    if (!line.trim()) return [];
    const id = `${name}#${at + 1}`;
    try {
      return [record(decoded(line), id, textField)];
    } catch (error) {
      return [{ id, error: `not JSON: ${error.message}` }];
    }
  });
}

function json(text, name, textField) {
  const found = decoded(text);
  const list = Array.isArray(found) ? found : [found];
  if (!list.some((one) => one && typeof one === "object" && textField in one)) return [{ document: { id: name, title: name, text } }];
  return list.map((one, at) => record(one, `${name}#${at + 1}`, textField));
}

function record(one, fallback, textField) {
  if (!one || typeof one !== "object" || Array.isArray(one)) return { id: fallback, error: "not an object" };
  const named = IDS.find((name) => name in one);
  if (named && !isId(one[named])) return { id: fallback, error: `${named} is neither a text nor an integer` };
  const id = named ? String(one[named]) : fallback;
  if (typeof one[textField] !== "string") return { id, error: `has no text in the field ${textField}` };
  const { [textField]: text, title, metadata, ...others } = one;
  if (named) delete others[named];
  // A column called metadata that is an object already is what others call so, too.
  const nested = metadata && typeof metadata === "object" && !Array.isArray(metadata);
  return { document: { id, text, ...(title && { title: String(title) }), metadata: nested ? { ...others, ...metadata } : { ...others, ...(metadata !== undefined && { metadata }) } } };
}

// Others would be equal as text: each null is "null", and only the last of their documents would stay.
const isId = (value) => (typeof value === "string" && value !== "") || typeof value === "bigint" || Number.isInteger(value);

function rows(text, name, textField, separator) {
  const [named, ...cells] = separated(text, separator);
  const header = named?.map((column) => column.trim());
  if (!header) return [{ id: name, error: "the file is empty" }];
  const twice = header.find((column, at) => header.indexOf(column) < at);
  if (twice !== undefined) throw new Error(`the header names a column twice: ${twice}`);
  const types = header.map((_, at) => typeOf(cells.slice(0, INFERRED_FROM).map((row) => row[at]?.trim()).filter((cell) => cell)));
  return cells.map((row, line) => {
    const one = header.includes("acl") ? { acl: null } : {}; // an empty cell would hide nothing, and the service refuses it
    if (row.length !== header.length) return { id: `${name}#${line + 2}`, error: `expected ${header.length} cells as in the header, found ${row.length}` };
    header.forEach((column, at) => {
      const cell = row[at];
      if (cell === undefined || (!cell.trim() && column !== textField)) return;
      one[column] = [textField, "title", ...IDS].includes(column) ? cell : types[at](types[at] === String ? cell : cell.trim());
    });
    return record(one, `${name}#${line + 2}`, textField);
  });
}

// Numbers and booleans where all these filled cells are; others of the column stay texts.
function typeOf(cells) {
  if (cells.length && cells.every(isNumber)) return (cell) => (isNumber(cell) ? Number(cell) : cell);
  if (cells.length && cells.every(isBoolean)) return (cell) => (isBoolean(cell) ? cell.toLowerCase() === "true" : cell);
  return String;
}

// Of more than 15 digits a number would not be the same.
const isNumber = (cell) => /^-?(0|[1-9]\d*)(\.\d+)?$/.test(cell) && cell.replace(/\D/g, "").length <= 15;
const isBoolean = (cell) => /^(true|false)$/i.test(cell);

// RFC 4180: quoted cells may hold separators, line ends and doubled quotes.
export function separated(text, separator) {
  const found = [];
  let [row, cell, quoted] = [[], "", false];
  const endRow = () => {
    row.push(cell);
    if (row.some((one) => one !== "")) found.push(row);
    [row, cell] = [[], ""];
  };
  for (let at = 0; at < text.length; at += 1) {
    const char = text[at];
    if (quoted) {
      if (char !== '"') cell += char;
      else if (text[at + 1] === '"') cell += text[(at += 1)];
      else quoted = false;
    } else if (char === '"' && cell === "") quoted = true;
    else if (char === separator) {
      row.push(cell);
      cell = "";
    } else if (char === "\n") endRow();
    else if (char !== "\r") cell += char;
  }
  endRow();
  return found;
}

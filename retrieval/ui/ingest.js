// Ingest: files that are dropped or chosen become documents; what fails is listed with its reason.

import { get, names, of, post, prefer, preferred, send } from "./api.js";
import { announce, failure, field, h, number, plural, select, table } from "./dom.js";
import { encoded } from "./numbers.js";
import { read } from "./reading.js";

const NEW = ""; // of the choices
const FAILURES_SHOWN = 100;
const BATCH_MAX = 100; // documents in a request, so that progress shows
const WAITS_MAX = 30; // for a busy service, in a row
const ENVELOPE_BYTES = 4096; // of a request, beside its documents

export async function ingestView(place, params) {
  const known = (await names()).filter(([name, label]) => name === label);
  const wanted = params.get("c") || preferred(known) || NEW;
  const choice = select([...known, [NEW, "New collection…"]], wanted, { name: "collection", onchange: () => fit() });
  const fresh = h("input", { name: "new", placeholder: "name", autocomplete: "off", spellcheck: "false" });
  const freshField = field("Its name", fresh);
  const textField = h("input", { name: "text_field", value: "text", autocomplete: "off", spellcheck: "false" });
  const input = h("input", { type: "file", multiple: true, class: "sr", id: "files", onchange: () => take([...input.files]) });
  const drop = h("div", { class: "drop", ondragover: over, ondragleave: () => drop.classList.remove("over"), ondrop: dropped },
    input, h("label", { for: "files", class: "button primary" }, "Choose files"), h("p", {}, "or drop them here"),
    h("p", { class: "muted" }, "Text, Markdown, HTML, source code, JSON, JSON lines, CSV and TSV are read in this browser. PDF, DOCX, PPTX, XLSX and EPUB are uploaded and read by the service, other files if they are text in UTF-8, or in UTF-16 with a byte order mark; for mail, archives and whole folders use ", h("code", {}, "nearline ingest"), "."));
  const said = h("div", { class: "taken" });
  place.append(h("h1", {}, "Ingest"), h("div", { class: "row" }, field("Into", choice), freshField, field("Column of the text, in JSON and tables", textField)), drop, said);
  fit();

  function fit() {
    freshField.hidden = choice.value !== NEW;
  }

  function over(event) {
    event.preventDefault();
    drop.classList.add("over");
  }

  function dropped(event) {
    event.preventDefault();
    drop.classList.remove("over");
    take([...event.dataTransfer.files]);
  }

  async function take(files) {
    if (!files.length) return;
    input.disabled = true;
    said.replaceChildren(h("p", { class: "muted" }, `Reading ${plural(files.length, "file")}…`));
    try {
      const name = choice.value || fresh.value.trim();
      if (!name) throw new Error("Say into which collection: the new one has no name yet.");
      if (choice.value === NEW) {
        await post("v1/collections", { name });
        choice.prepend(h("option", { value: name }, name));
        choice.value = name;
        fit();
      }
      prefer(name);
      await ingested(files, name, textField.value.trim() || "text", said);
    } catch (error) {
      said.replaceChildren(failure(error));
    } finally {
      input.disabled = false;
      input.value = "";
    }
  }
}

async function ingested(files, collection, textField, said) {
  const { limits } = await get(of(collection));
  const done = [];
  const taken = new Map(); // by id, the file of the document that has it
  for (const file of files) {
    const one = { name: file.name, read: 0, written: 0, unchanged: 0, passages: 0, failed: [] };
    done.push(one);
    said.replaceChildren(h("p", { class: "muted", role: "status" }, `Sending ${file.name} (${done.length} of ${files.length})…`));
    try {
      const found = await read(file, textField);
      if (found === null) await upload(file, collection, one);
      else {
        one.failed.push(...found.filter((each) => each.error));
        const documents = [];
        for (const { document } of found.filter((each) => each.document)) {
          if (taken.has(document.id)) one.failed.push({ id: document.id, error: `not written, a document of ${taken.get(document.id)} has its id` });
          else documents.push(document);
          taken.set(document.id, taken.get(document.id) ?? file.name);
        }
        one.read = documents.length;
        for (const batch of batches(documents, limits)) {
          await write(collection, batch, one);
          const sent = one.written + one.unchanged;
          said.replaceChildren(h("p", { class: "muted", role: "status" }, `Sending ${file.name}: ${number(sent)} of ${plural(documents.length, "document")}…`));
        }
      }
    } catch (error) {
      one.failed.push({ id: file.name, error: error.shown || error.message });
    }
    said.replaceChildren(...report(done, collection));
  }
  const sum = (key) => done.reduce((all, one) => all + one[key], 0);
  const failed = done.reduce((all, one) => all + one.failed.length, 0);
  announce(`${plural(sum("written"), "document")} written, ${number(failed)} failed`);
}

function* batches(documents, limits) {
  const most = limits.request_bytes - ENVELOPE_BYTES;
  const encoder = new TextEncoder();
  let [batch, size] = [[], 0];
  for (const one of documents) {
    const length = encoder.encode(encoded(one)).length + 1;
    if (batch.length && (batch.length >= Math.min(BATCH_MAX, limits.documents_per_request) || size + length > most)) {
      yield batch;
      [batch, size] = [[], 0];
    }
    batch.push(one);
    size += length;
  }
  if (batch.length) yield batch;
}

// A request is written all or none, so one that is refused for a document is halved until that stands alone.
async function write(collection, documents, one) {
  try {
    const answer = await patiently(() => post(of(collection, "documents"), { documents }));
    one.written += answer.documents;
    one.unchanged += answer.unchanged;
    one.passages += answer.passages;
  } catch (error) {
    if (![400, 413, 422].includes(error.status)) throw error;
    if (documents.length === 1) {
      one.failed.push({ id: documents[0].id, error: error.shown });
      return;
    }
    const half = Math.ceil(documents.length / 2);
    await write(collection, documents.slice(0, half), one);
    await write(collection, documents.slice(half), one);
  }
}

// As long as the service says when to come back.
async function patiently(work) {
  for (let waits = 0; ; waits += 1) {
    try {
      return await work();
    } catch (error) {
      if (!error.retryMs || waits >= WAITS_MAX) throw error;
      await new Promise((resolve) => setTimeout(resolve, error.retryMs));
    }
  }
}

// The service decides whether it can read the file. An upload that does not become a document is not left behind.
async function upload(file, collection, one) {
  const form = new FormData();
  form.append("purpose", "assistants");
  form.append("file", file, file.name);
  const { id } = await post("v1/files", form);
  try {
    await post(`v1/vector_stores/${encodeURIComponent(collection)}/files`, { file_id: id });
  } catch (error) {
    await send("DELETE", `v1/files/${id}`).catch(() => {});
    throw error;
  }
  one.read += 1;
  one.written += 1;
}

function report(done, collection) {
  const failures = done.flatMap((one) => one.failed.map((each) => [one.name, each.id, each.error]));
  return [
    table(["file", "documents", "written", "unchanged", "passages", "failed"],
      done.map((one) => [one.name, number(one.read), number(one.written), number(one.unchanged), number(one.passages), one.failed.length ? h("span", { class: "tag bad" }, number(one.failed.length)) : "0"]), { label: "What was taken" }),
    failures.length > 0 && h("section", { class: "panel" }, h("h2", {}, "Failed"), table(["file", "document", "reason"], failures.slice(0, FAILURES_SHOWN), { label: "What failed", text: [1, 2] }),
      failures.length > FAILURES_SHOWN && h("p", { class: "muted" }, `and ${number(failures.length - FAILURES_SHOWN)} more`)),
    h("p", {}, h("a", { href: `#/search?c=${encodeURIComponent(collection)}` }, `Search ${collection}`)),
  ].filter(Boolean);
}

// What the API's terms are called on the page, and what they mean. The command line has the same: jobs/commands/labels.py.

import { h } from "./dom.js";

export const STAGES = {
  cache: ["cache", "Looking for an answer that was kept"],
  wait: ["waiting", "Waiting for other searches"],
  embed: ["reading the query", "The model turns the query into a vector"],
  dense: ["by meaning", "Passages whose vectors are nearest to the query's"],
  lexical: ["by words", "Passages that hold the query's words (BM25)"],
  fuse: ["joining both", "One ranking from the two (API: fuse)"],
  rerank: ["reranking", "A second model reads the first candidates"],
  hydrate: ["reading the hits", "Their texts and metadata come from the log (API: hydrate)"],
  shards: ["waiting for shards", "Other services search the shards of the collection that they have"],
};

export const TIERS = {
  delta: ["new", "Written since the last rebuild of the indexes (API: delta)"],
  hot: ["recent", "In the hot tier: the newest passages and those found most often"],
  cold: ["older", "In the cold tier: all others, compressed"],
};

export const RECEIPT = {
  collection: ["collection", "The collection that was searched, also where an alias was asked for"],
  generation: ["build of the indexes", "Each rebuild makes one, counted from 1 (API: generation)"],
  seq: ["writes included", "The answer holds every write up to this one, counted from the first (API: seq)"],
  tiers: ["passages searched", "New: since the last rebuild. Recent: the hot tier. Older: the cold tier"],
  cold_skipped: ["older not searched", "Why the cold tier was left out"],
  cache: ["cache", "Whether the answer was kept from an equal search"],
  model: ["model", "The model that turns texts into vectors"],
  share_read: ["query understood", "The share of the query that the model reads; for the rest, words decide (API: share_read)"],
  query_cut: ["long query", "The query is longer than the model reads: its questions, or its beginning and end, were compared by meaning (API: query_cut)"],
  weight_dense: ["weight of meaning", "The share of the score that comes from meaning; the rest comes from words"],
  reranked: ["reranked", "How many passages a second model has read"],
  corrected: ["spelling corrected", "Words of the query that are in no document, and what was searched instead"],
  shards_missing: ["shards left out", "They did not answer, and the search allowed that (API: partial)"],
  degraded: ["left out under load", "What the service does without while it has too much to do"],
  evidence: ["evidence", "None: no hit is about the question. Some: one is. Strong: one is so relevant that it likely answers it"],
  evidence_from: ["evidence from", "The relevance of the best hit from which there is some evidence, and strong evidence (API: evidence_from)"],
};

/** The word for a term, with its meaning where the pointer rests. A term without one is shown as it is. */
export function word(terms, name) {
  const [said, meaning] = terms[name] || [name.replaceAll("_", " "), null];
  return h("span", { title: meaning }, said);
}

export const tier = (name) => (TIERS[name] || [name])[0];

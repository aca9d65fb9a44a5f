// Load on your own collection by k6 (https://k6.io), with checks of every answer. Requests arrive at a fixed rate, however
// long the service takes; `nearline bench load` does the same against a collection of its own.
//
//   k6 run -e COLLECTION=docs -e KEY=nl_... -e RATE=50 -e DURATION=60s k6.js
//
// URL (http://127.0.0.1:8080), QUERIES (a file with a question on each line), RATE of searches a second (20), CONTEXTS and
// WRITES a second (1 and 0), DEADLINE_MS (1000). Writes leave documents `load-...` in the collection: use one for it.
//
// Refusals (429, 503) are counted, and fail a check only without Retry-After. The stages that the header Server-Timing
// tells are trends: stage_embed, stage_dense and so on.

import http from 'k6/http';
import { check } from 'k6';
import { SharedArray } from 'k6/data';
import { Counter, Trend } from 'k6/metrics';

const URL = __ENV.URL || 'http://127.0.0.1:8080';
const COLLECTION = __ENV.COLLECTION || 'docs';
const DEADLINE_MS = Number(__ENV.DEADLINE_MS || 1000);
const DURATION = __ENV.DURATION || '60s';
const RATES = {
  search: Number(__ENV.RATE || 20),
  context: Number(__ENV.CONTEXTS || 1),
  write: Number(__ENV.WRITES || 0),
};
const STAGES = { search: ['embed', 'dense', 'lexical', 'total'], context: ['embed', 'total'], write: [] };

const questions = new SharedArray('questions', () =>
  __ENV.QUERIES
    ? open(__ENV.QUERIES).split('\n').filter(Boolean)
    : ['refund', 'opening hours', 'how do I start'],
);
const refused = new Counter('refused');
const trends = {};
for (const stage of ['embed', 'dense', 'lexical', 'fuse', 'rerank', 'hydrate', 'wait', 'total']) {
  trends[stage] = new Trend(`stage_${stage}`, true);
}

http.setResponseCallback(http.expectedStatuses(200, 429, 503));

export const options = {
  scenarios: Object.fromEntries(
    Object.entries(RATES)
      .filter(([, rate]) => rate > 0)
      .map(([name, rate]) => [
        name,
        {
          executor: 'constant-arrival-rate',
          exec: name,
          rate: Math.round(60 * rate),
          timeUnit: '60s',
          duration: DURATION,
          preAllocatedVUs: Math.ceil(rate),
          maxVUs: Math.ceil(10 * rate) + 10,
        },
      ]),
  ),
  thresholds: { checks: ['rate==1'], http_req_failed: ['rate==0'] },
};

export function search() {
  ask('search', 'search', { query: question(), deadline_ms: DEADLINE_MS, cache: false });
}

export function context() {
  ask('context', 'context', { query: question(), deadline_ms: DEADLINE_MS, token_budget: 1000 });
}

export function write() {
  const id = `load-${__VU}-${__ITER}-${Date.now()}`;
  ask('write', 'documents', { documents: [{ id, text: question() }] });
}

function question() {
  return questions[Math.floor(Math.random() * questions.length)];
}

function ask(name, path, body) {
  const headers = { 'Content-Type': 'application/json' };
  if (__ENV.KEY) headers.Authorization = `Bearer ${__ENV.KEY}`;
  const url = `${URL}/v1/collections/${COLLECTION}/${path}`;
  const answer = http.post(url, JSON.stringify(body), { headers, tags: { name } });
  if (answer.status === 429 || answer.status === 503) {
    refused.add(1, { name });
    check(answer, { 'a refusal says when to come back': (one) => 'Retry-After' in one.headers });
    return;
  }
  const stages = stagesOf(answer);
  check(answer, {
    'answered with 200': (one) => one.status === 200,
    'Server-Timing has the stages': () => STAGES[name].every((stage) => stage in stages),
  });
  for (const [stage, ms] of Object.entries(stages)) {
    if (trends[stage]) trends[stage].add(ms, { name });
  }
}

function stagesOf(answer) {
  const timing = answer.headers['Server-Timing'] || '';
  const parts = timing.split(', ').filter(Boolean).map((part) => part.split(';dur='));
  return Object.fromEntries(parts.map(([stage, ms]) => [stage, Number(ms)]));
}

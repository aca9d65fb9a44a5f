// A stand-in for k6's modules, which sends requests for real, one after the other. Run it by
//   node k6.mjs SCRIPT NAME=VALUE...
// with a script whose imports lead here: each of its scenarios runs once, and what came of the checks is printed as JSON.

import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { pathToFileURL } from 'node:url';

const SEND = `
const { url, body, headers } = JSON.parse(require('fs').readFileSync(0));
const request = require('http').request(url, { method: 'POST', headers }, (answer) => {
  const named = {};
  for (let at = 0; at < answer.rawHeaders.length; at += 2) named[answer.rawHeaders[at]] = answer.rawHeaders[at + 1];
  answer.resume();
  answer.on('end', () => console.log(JSON.stringify({ status: answer.statusCode, headers: named })));
});
request.end(body);
`;

const found = { statuses: [], checks: {}, metrics: {} };

export default {
  expectedStatuses: (...statuses) => statuses,
  setResponseCallback: () => {},
  post(url, body, { headers }) {
    const sent = spawnSync(process.execPath, ['-e', SEND], { input: JSON.stringify({ url, body, headers }) });
    const answer = JSON.parse(sent.stdout);
    found.statuses.push(answer.status);
    return answer;
  },
};

export function check(answer, checks) {
  for (const [name, holds] of Object.entries(checks)) (found.checks[name] ||= []).push(Boolean(holds(answer)));
}

export function SharedArray(name, make) {
  return make();
}

export class Trend {
  constructor(name) {
    this.name = name;
  }
  add(value) {
    (found.metrics[this.name] ||= []).push(value);
  }
}
export const Counter = Trend;

const [script, ...values] = process.argv.slice(2);
globalThis.__ENV = Object.fromEntries(values.map((value) => value.split('=')));
globalThis.__VU = 1;
globalThis.__ITER = 0;
globalThis.open = (path) => readFileSync(path, 'utf8');

// Later, when this module is complete: the script imports it.
setImmediate(async () => {
  const tested = await import(pathToFileURL(script));
  for (const { exec } of Object.values(tested.options.scenarios)) tested[exec]();
  console.log(JSON.stringify({ ...found, scenarios: tested.options.scenarios }));
});

// A row for each deployment: concurrency, queue, retry budget and latencies.

import { isPassThrough } from "./breakers.js";
import { byId, el, keyed, parts, setText } from "./dom.js";
import { UNKNOWN, ago, count, rate, ratio, seconds, share } from "./format.js";
import { link } from "./links.js";
import { rowsOf } from "./rows.js";

const FIGURES = [
  "flight",
  "waiting",
  "rate",
  "tokens",
  "ratio",
  "success",
  "timeouts",
  "d50",
  "d95",
  "d99",
  "attempts",
  "last",
];
const FIRST_OF_GROUP = new Set(["tokens", "d50"]);

const TROUBLE = { healthy: 0, degraded: 1e9, unhealthy: 2e9, failed: 2e9 };
const weight = ({ health, attempts }) => (TROUBLE[health] ?? 0) + attempts;

export function showLoad(snapshot) {
  keyed(
    byId("load").tBodies[0],
    rowsOf("load", snapshot.deployments, weight, "deployments", () => showLoad(snapshot)),
    (one) => one.deployment,
    newRow,
    (row, one) => fillRow(row, one, snapshot.at),
  );
}

function newRow(one) {
  const cells = FIGURES.map((name) =>
    el("td", { class: FIRST_OF_GROUP.has(name) ? "number first" : "number", "data-part": name }),
  );
  const kind = isPassThrough(one) ? el("small", {}, " pass-through") : null;
  const name = link("deployment", one.deployment, one.deployment, { class: "name" });
  return el("tr", {}, el("th", { scope: "row" }, name, kind), ...cells);
}

function fillRow(row, one, now) {
  const { gate, budget } = one;
  const figures = {
    flight: gate.limit === null ? count(gate.in_flight) : `${count(gate.in_flight)} of ${count(gate.limit)}`,
    waiting: count(gate.waiting),
    rate: gate.rate === null ? UNKNOWN : rate(gate.rate),
    tokens: rate(budget.tokens),
    ratio: ratio(budget.ratio),
    success: share(one.success_rate),
    timeouts: share(one.timeout_rate),
    d50: seconds(one.duration.p50_s),
    d95: seconds(one.duration.p95_s),
    d99: seconds(one.duration.p99_s),
    attempts: count(one.attempts),
    last: one.last_success === null ? "never" : ago(one.last_success, now),
  };
  for (const [name, text] of Object.entries(figures)) setText(parts(row)[name], text);
  parts(row).flight.dataset.state = gate.limit !== null && gate.in_flight >= gate.limit ? "warn" : "";
  parts(row).waiting.dataset.state = gate.waiting > 0 ? "warn" : "";
  parts(row).tokens.dataset.state = budget.tokens < 1 ? "bad" : "";
}

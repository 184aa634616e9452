// Traffic: totals, and a row for each model, which leads to its page.

import { byId, el, keyed, parts, setHidden, setText, svg } from "./dom.js";
import { count, rate, ratio, seconds, share } from "./format.js";
import { link } from "./links.js";
import { POOR } from "./parts.js";
import { rowsOf } from "./rows.js";

const ALL = ""; // no model has an empty name
const WIDTH = 120;
const HEIGHT = 22;
const SHOWN_S = 900;
const MOST = 0.5; // share of refused calls from which on it is marked as bad
const OF_HEALTH = { healthy: "", degraded: "warn", unhealthy: "bad", failed: "bad" };

export function showTraffic(snapshot) {
  showDials(snapshot.total);
  const models = rowsOf("models", snapshot.models, weight, "models", () => showTraffic(snapshot));
  const rows = [{ model: ALL, traffic: snapshot.total }, ...models];
  keyed(byId("models").tBodies[0], rows, (row) => row.model, newRow, fillRow);
}

const weight = ({ health, traffic }) => (OF_HEALTH[health] ? 2e9 : 0) + traffic.calls;

export function showSparklines(history) {
  for (const row of byId("models").tBodies[0].rows) {
    const series = row.dataset.model === ALL ? history.total : history.models[row.dataset.model];
    draw(parts(row), history.at, series);
  }
}

/** Percentiles by outcome: refusals take milliseconds, and would make an outage look fast. */
function durations({ duration, failed_duration, refused_duration }) {
  const others = [
    ["failed", failed_duration],
    ["refused", refused_duration],
  ].filter(([, found]) => found.p95_s !== null);
  const ok = `p95 ${seconds(duration.p95_s)} · p99 ${seconds(duration.p99_s)}`;
  return [ok, ...others.map(([outcome, found]) => `${outcome} p95 ${seconds(found.p95_s)}`)].join(" · ");
}

function showDials(total) {
  const figures = [
    ["Success rate", share(total.success_rate), "of the last 100 calls"],
    ["Calls", rate(total.calls_per_second), "per second, last minute"],
    ["In flight", count(total.in_flight), "now"],
    [
      "Duration",
      seconds(total.duration.p50_s),
      durations(total),
    ],
    [
      "Time to first token",
      seconds(total.time_to_first_token.p50_s),
      `p95 ${seconds(total.time_to_first_token.p95_s)} · p99 ${seconds(total.time_to_first_token.p99_s)}`,
    ],
    ["Retries", ratio(total.retries_per_call), "per call"],
    ["Timeouts", share(total.timeout_rate), "of attempts"],
    ["Refused", share(total.refused_rate), "of calls, by the gateway"],
  ];
  const list = byId("dials");
  if (!list.children.length) list.append(...figures.map(([name]) => newDial(name)));
  figures.forEach(([, value, note], at) => {
    const { value: figure, note: small } = parts(list.children[at]);
    setText(figure, value);
    setText(small, note);
  });
  list.firstElementChild.dataset.state = total.success_rate !== null && total.success_rate < POOR ? "bad" : "";
  setHidden(list.lastElementChild, !total.refused_rate);
  list.lastElementChild.dataset.state = total.refused_rate >= MOST ? "bad" : "";
}

function newDial(name) {
  return el(
    "div",
    {},
    el("dt", {}, name),
    el("dd", { "data-part": "value" }),
    el("dd", { class: "note", "data-part": "note" }),
  );
}

const FIGURES = ["success", "calls", "flight", "d50", "d95", "d99", "t50", "t95", "t99", "retries", "timeouts"];
const FIRST_OF_GROUP = new Set(["d50", "t50"]);

function newRow({ model }) {
  const name = model === ALL ? "All models" : link("model", model, model, { class: "name" });
  const cell = (name) => {
    const kinds = FIRST_OF_GROUP.has(name) ? "number first" : "number";
    return el("td", { class: kinds, "data-part": name });
  };
  const [success, calls, ...others] = FIGURES.map(cell);
  return el(
    "tr",
    { "data-model": model },
    el("th", { scope: "row" }, name),
    success,
    calls,
    newSparkline(),
    ...others,
  );
}

function newSparkline() {
  return el(
    "td",
    { class: "spark" },
    svg(
      "svg",
      { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" },
      svg("path", { class: "all", "data-part": "all" }),
      svg("path", { class: "failed", "data-part": "failed" }),
    ),
  );
}

function fillRow(row, { traffic, health = "healthy", reasons = [] }) {
  const figures = {
    success: share(traffic.success_rate),
    calls: rate(traffic.calls_per_second),
    flight: count(traffic.in_flight),
    d50: seconds(traffic.duration.p50_s),
    d95: seconds(traffic.duration.p95_s),
    d99: seconds(traffic.duration.p99_s),
    t50: seconds(traffic.time_to_first_token.p50_s),
    t95: seconds(traffic.time_to_first_token.p95_s),
    t99: seconds(traffic.time_to_first_token.p99_s),
    retries: ratio(traffic.retries_per_call),
    timeouts: share(traffic.timeout_rate),
  };
  for (const [name, text] of Object.entries(figures)) setText(parts(row)[name], text);
  const isPoor = traffic.success_rate !== null && traffic.success_rate < POOR;
  parts(row).success.dataset.state = isPoor ? "bad" : OF_HEALTH[health];
  parts(row).success.title = reasons.join("; ");
}

/** Draws calls as an area, and failed calls as an area in front of it. */
function draw({ all, failed }, at, series) {
  const calls = (series?.calls_per_second ?? []).map((value) => value ?? 0);
  const top = Math.max(...calls, 0.001);
  all.setAttribute("d", field(at, calls, top));
  failed.setAttribute(
    "d",
    field(
      at,
      calls.map((value, step) => value * (1 - (series.success_rate[step] ?? 1))),
      top,
    ),
  );
}

/** The path of an area whose newest point is at the right edge. */
function field(at, values, top) {
  if (values.length < 2 || !values.some((value) => value > 0)) return "";
  const x = at.map((end) => WIDTH - ((at.at(-1) - end) * WIDTH) / SHOWN_S);
  const points = values.map(
    (value, step) => `${x[step].toFixed(1)} ${(HEIGHT - (value / top) * (HEIGHT - 1)).toFixed(1)}`,
  );
  return `M${x[0].toFixed(1)} ${HEIGHT}L${points.join("L")}L${WIDTH} ${HEIGHT}Z`;
}

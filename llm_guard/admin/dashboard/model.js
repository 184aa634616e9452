// A model's page: its route with live state, its history and state changes, its failed calls, and its config.

import { loaded } from "./calls.js";
import { Charts } from "./charts.js";
import { showConfig } from "./config_keys.js";
import { byId, el, mark, rebuild, setText } from "./dom.js";
import { count, rate, ratio, share } from "./format.js";
import { MARKS, POOR, none, outcomes, pairs, placesOf, quantiles, section, showFailedCalls } from "./parts.js";
import { routes, showRoute } from "./route.js";
import { showTimeline } from "./timeline.js";

let snapshot = null;
let past = null;
let shown = null;
let route = null;
let charts = null;

/** Keeps the snapshot for the page, and updates the page if it is open. */
export function noteSnapshot(found) {
  snapshot = found;
  if (byId("model").open) fillLive();
}

/** Keeps the history of the selected period, and draws it if the page is open. */
export function noteHistory(found) {
  past = found;
  if (byId("model").open) draw();
}

/** Shows the model with this key of the config in the dialog. */
export async function showModel(name) {
  shown = name;
  route = null;
  setText(byId("model-head"), name);
  const places = placesOf("state", "route", "figures", "outcomes", "timeline", "calls", "config");
  byId("model-body").places = places;
  byId("model-top").replaceChildren(places.state, section("Route", places.route));
  byId("model-body").replaceChildren(
    section("Figures", places.figures),
    section("Calls since the start, by result", places.outcomes),
    section("State changes", places.timeline),
    section("Recent failed calls", places.calls),
    section("Effective config", places.config),
  );
  fillLive();
  draw();
  showFailedCalls(places.calls, "model", name);
  showConfig(places.config, { model: name });
  const problem = await loaded(() => loadRoute(name));
  if (problem.length) places.route.replaceChildren(...problem);
  else if (shown === name) fillLive();
}

/** Returns what to show if there is no such route. */
async function loadRoute(name) {
  const found = (await routes()).find(({ model }) => model === name) ?? null;
  if (shown === name) route = found;
  return found === null ? [none("The config has no model with this name.")] : [];
}

function draw() {
  if (past === null) return;
  charts ??= new Charts(byId("model-charts"));
  charts.show(past, past.models[shown]);
}

/** Fills the parts that change with each poll. */
function fillLive() {
  const { places } = byId("model-body");
  const one = snapshot?.models.find(({ model }) => model === shown);
  if (!one) {
    const problem = snapshot === null ? "Loading…" : "There is no model with this name in the config.";
    places.state.replaceChildren(el("p", { class: "verdict" }, problem));
    return;
  }
  const degraded = snapshot.degraded.models.find(({ model }) => model === shown);
  rebuild(places.state, [one, degraded], () => state(one, degraded));
  rebuild(places.figures, one.traffic, () => [figures(one.traffic)]);
  rebuild(places.outcomes, one.outcomes, () => [outcomes(one.outcomes, "No calls.")]);
  if (route === null) return;
  const own = route.steps.flatMap(({ deployments }) => deployments.map(({ deployment }) => deployment));
  const used = snapshot.deployments.filter(({ deployment }) => own.includes(deployment));
  showRoute(places.route, route, snapshot);
  showTimeline(places.timeline, namesOf(used));
}

function namesOf(used) {
  const upstreams = [...new Set(used.map(({ upstream }) => upstream))];
  const engines = snapshot.engines.filter((one) => one.upstreams.some((name) => upstreams.includes(name)));
  const deployments = used.map(({ deployment }) => deployment);
  return { deployments, upstreams, engines: engines.map(({ engine }) => engine), model: shown };
}

function state({ health, reasons, traffic }, degraded) {
  const mode = degraded?.is_degraded ? "in degraded mode" : "";
  const { success_rate: successful } = traffic;
  const success = successful === null ? "no calls yet" : `${share(successful)} of the last 100 calls succeeded`;
  const isPoor = health === "healthy" && successful !== null && successful < POOR;
  const word = isPoor ? "calls fail" : successful === null ? "" : health;
  const kind = isPoor ? "bad" : successful === null ? "none" : (MARKS[health] ?? "none");
  return [
    el("p", { class: "verdict" }, mark(kind), el("b", {}, [word, mode, success].filter(Boolean).join(" · "))),
    reasons.length ? el("p", { class: "verdict" }, `${reasons.join("; ")}.`) : null,
    degraded?.is_degraded && degraded.reason ? el("p", { class: "verdict" }, `${degraded.reason}.`) : null,
  ].filter(Boolean);
}

function figures(traffic) {
  return pairs([
    ["Calls", `${rate(traffic.calls_per_second)} per second, ${count(traffic.calls)} since the start`],
    ["In flight", count(traffic.in_flight)],
    ["Duration of successes", quantiles(traffic.duration)],
    ["Duration of failures", quantiles(traffic.failed_duration)],
    ["Time to first token", quantiles(traffic.time_to_first_token)],
    ["Retries", `${ratio(traffic.retries_per_call)} per call`],
    ["Timeouts, last minute", share(traffic.timeout_rate)],
    ["Refused, last minute", share(traffic.refused_rate)],
  ]);
}

// The latest events: of breakers, engines, probes, alerts, stored calls and operators' changes.

import { byId, el, keyed, mark, setText } from "./dom.js";
import { count, moment, words } from "./format.js";
import { link } from "./links.js";

const SHOWN = 30;

let shown = [];
let isDue = false;

export function noteEvent(event) {
  const [latest, ...others] = shown;
  shown = latest && isMoreOf(latest, event) ? [summed(latest, event), ...others] : [event, ...shown].slice(0, SHOWN);
  showSoon();
}

/** Consecutive events about stored calls share one line, as in an outage there are many. */
const isMoreOf = (latest, event) => isOfCalls(event) && keyOfCalls(latest) === keyOfCalls(event);

const summed = (latest, event) => ({
  ...event,
  facts: { ...event.facts, count: latest.facts.count + event.facts.count },
});

/** Clears the list: its events are of an earlier process, or some are missing. */
export function clearEvents() {
  shown = [];
  showSoon();
}

export function showConnected(isConnected) {
  setText(byId("events-state"), isConnected ? "live" : "reconnecting");
}

/** Many events may arrive at once: draws once per frame. */
function showSoon() {
  if (isDue) return;
  isDue = true;
  requestAnimationFrame(() => {
    isDue = false;
    showEvents();
  });
}

function showEvents() {
  keyed(byId("events"), shown, (event) => `${event.id} ${event.at}`, eventLine);
}

/** The entry of an event in a list. */
export function eventLine({ at, kind, facts }) {
  return el(
    "li",
    {},
    el("time", {}, moment(at)),
    el("b", { class: "kind" }, mark(look(kind, facts)), words(kind)),
    el("span", {}, subject(kind, facts), summary(kind, facts)),
  );
}

const OF_BREAKER = { closed: "well", half_open: "warn", open: "bad", forced_open: "held", forced_closed: "held" };
const OF_SEVERITY = { critical: "bad", warning: "warn" };

const OF_ENGINE = { running: "well", unhealthy: "bad", restart_failed: "bad", gave_up: "bad", stopped: "held" };
const OF_PROBE = { up: "well", down: "bad" };
const OF_STORED = {
  lost: "bad",
  rejected: "bad",
  maintenance_failed: "bad",
  read_failed: "bad",
  dead: "warn",
  answered: "well",
};

const OF_ENGINES = {
  health_failed: "probe failed",
  auto_restart: "automatic restart",
  auto_restart_failed: "automatic restart failed",
  auto_restart_success: "running after an automatic restart",
  auto_restart_gave_up: "given up",
  auto_restart_postponed: "automatic restart postponed",
  came_back: "recovered by itself",
  reset: "restart attempts cleared",
  restart: "restart by an operator",
  restart_failed: "restart failed",
  restart_success: "running after a restart",
  start: "start",
  started: "running",
  stop: "stop",
  stop_failed: "stop failed",
};
const OF_CALLS = {
  "dead_letter stored": ["call was stored as a dead letter", "calls were stored as dead letters"],
  "dead_letter lost": ["call was lost: it could not be stored", "calls were lost: they could not be stored"],
  "dead_letter answered": ["requeued dead letter succeeded", "requeued dead letters succeeded"],
  "dead_letter dead": ["requeued dead letter failed again", "requeued dead letters failed again"],
  "deferred accepted": ["call was deferred", "calls were deferred"],
  "deferred answered": ["deferred call succeeded", "deferred calls succeeded"],
  "deferred rejected": ["call could not be deferred", "calls could not be deferred"],
  "deferred dead": ["deferred call failed", "deferred calls failed"],
  "call_store maintenance_failed": ["cleanup of stored calls failed", "cleanups of stored calls failed"],
  "call_store read_failed": ["read of stored calls failed", "reads of stored calls failed"],
};

function look(kind, facts) {
  if (kind === "breaker") return OF_BREAKER[facts.after] ?? "none";
  if (kind === "alert") return facts.state === "resolved" ? "well" : (OF_SEVERITY[facts.severity] ?? "none");
  if (kind === "engine") return OF_ENGINE[facts.state] ?? "warn";
  if (kind === "probe") return OF_PROBE[facts.state] ?? "none";
  if (kind === "degraded") return facts.is_degraded ? "warn" : "well";
  if (isOfCalls({ kind, facts })) return OF_STORED[facts.event] ?? "none";
  return kind === "change" || kind === "drain" ? "held" : "none";
}

/** The deployment or the model that an event is about, as a link to its page; null: neither. */
function subject(kind, { deployment, model }) {
  if ((kind === "breaker" || kind === "probe") && deployment) return link("deployment", deployment, deployment);
  return kind === "degraded" && model ? link("model", model, model) : null;
}

/** What follows `subject`. */
function summary(kind, facts) {
  if (kind === "breaker") {
    const { deployment, upstream, before, after, reason } = facts;
    return `${deployment ? "" : upstream}: ${words(before)} → ${words(after)}${because({ reason })}`;
  }
  if (kind === "alert") return `${words(facts.alert)}, ${facts.state}. ${facts.summary}`;
  if (kind === "change") return `${facts.action}, ${facts.target}: ${facts.reason} (${facts.actor})`;
  if (kind === "engine") return `${facts.engine}: ${ofEngine(facts)}${because(facts)}`;
  if (kind === "probe") return `${facts.deployment ? "" : facts.upstream} is ${facts.state}${because(facts)}`;
  if (kind === "degraded") return `${facts.model ? "" : "gateway"}: ${mode(facts)}${because(facts)}`;
  if (isOfCalls({ kind, facts })) {
    const [single, several] = OF_CALLS[keyOfCalls({ kind, facts })];
    return `${count(facts.count)} ${facts.count === 1 ? single : several}`;
  }
  const known = Object.entries(facts).filter(([, value]) => value !== null && value !== "");
  return known.map(([name, value]) => `${words(name)} ${value}`).join(" · ");
}

const keyOfCalls = ({ kind, facts }) => `${kind} ${facts.event}`;
const isOfCalls = (event) => keyOfCalls(event) in OF_CALLS;
const because = ({ reason }) => (reason ? `, ${reason}` : "");
const ofEngine = ({ event, attempt }) =>
  `${OF_ENGINES[event] ?? words(event)}${attempt ? ` (attempt ${attempt})` : ""}`;
const mode = ({ is_degraded }) => (is_degraded ? "entered degraded mode" : "exited degraded mode");

// What has happened lately: to breakers, engines and upstreams, alerts, kept calls, operators' changes.

import { byId, el, keyed, mark, setText } from "./dom.js";
import { count, moment, words } from "./format.js";

const SHOWN = 30;

let shown = [];
let isDue = false;

export function noteEvent(event) {
  const [latest, ...others] = shown;
  shown = latest && isMoreOf(latest, event) ? [summed(latest, event), ...others] : [event, ...shown].slice(0, SHOWN);
  showSoon();
}

/** In an outage letters are kept all the time: between two other events one line tells of them. */
const isMoreOf = (latest, event) => isOfCalls(event) && keyOfCalls(latest) === keyOfCalls(event);

const summed = (latest, event) => ({
  ...event,
  facts: { ...event.facts, count: latest.facts.count + event.facts.count },
});

/** What was shown belongs to another life of the gateway, or has a gap that cannot be filled. */
export function forgetEvents() {
  shown = [];
  showSoon();
}

export function showListening(isListening) {
  setText(byId("events-state"), isListening ? "live" : "reconnecting");
}

/** Who comes back is told of many at once. */
function showSoon() {
  if (isDue) return;
  isDue = true;
  requestAnimationFrame(() => {
    isDue = false;
    showEvents();
  });
}

function showEvents() {
  keyed(byId("events"), shown, (event) => `${event.id} ${event.at}`, newEvent);
}

function newEvent({ at, kind, facts }) {
  return el(
    "li",
    {},
    el("time", {}, moment(at)),
    el("b", { class: "kind" }, mark(look(kind, facts)), words(kind)),
    el("span", {}, told(kind, facts)),
  );
}

const OF_BREAKER = { closed: "well", half_open: "warn", open: "bad", forced_open: "held", forced_closed: "held" };
const OF_SEVERITY = { critical: "bad", warning: "warn" };

const OF_ENGINE = { running: "well", unhealthy: "bad", restart_failed: "bad", gave_up: "bad", stopped: "held" };
const OF_PROBE = { up: "well", down: "bad" };
const OF_KEPT = {
  lost: "bad",
  rejected: "bad",
  maintenance_failed: "bad",
  unreadable: "bad",
  dead: "warn",
  answered: "well",
};

const OF_ENGINES = {
  health_failed: "it is down",
  auto_restart: "it is restarted",
  auto_restart_failed: "it did not come up",
  auto_restart_success: "it is back",
  auto_restart_gave_up: "it is given up",
  auto_restart_postponed: "its restart is put off",
  came_back: "it came back by itself",
  reset: "its attempts are forgotten",
  restart: "it is restarted on an operator’s word",
  restart_failed: "it could not be restarted",
  restart_success: "it is back",
  start: "it is started",
  started: "it is up",
  stop: "it is stopped",
  stop_failed: "it could not be stopped",
};
const OF_CALLS = {
  "dead_letter stored": ["failed call was stored as a dead letter", "failed calls were stored as dead letters"],
  "dead_letter lost": ["dead letter was lost", "dead letters were lost"],
  "dead_letter answered": ["dead letter has its response now", "dead letters have their responses now"],
  "dead_letter dead": ["dead letter has failed again", "dead letters have failed again"],
  "deferred_call accepted": ["call was deferred", "calls were deferred"],
  "deferred_call answered": ["deferred call has its response", "deferred calls have their responses"],
  "deferred_call rejected": ["call could not be deferred", "calls could not be deferred"],
  "deferred_call dead": ["deferred call has failed for good", "deferred calls have failed for good"],
  "store maintenance_failed": ["maintenance of the call store failed", "maintenance runs of the call store failed"],
  "store unreadable": ["read of the stored calls has failed", "reads of the stored calls have failed"],
};

function look(kind, facts) {
  if (kind === "breaker") return OF_BREAKER[facts.after] ?? "none";
  if (kind === "alert") return facts.state === "resolved" ? "well" : (OF_SEVERITY[facts.severity] ?? "none");
  if (kind === "engine") return OF_ENGINE[facts.state] ?? "warn";
  if (kind === "probe") return OF_PROBE[facts.state] ?? "none";
  if (kind === "degraded") return facts.is_degraded ? "warn" : "well";
  if (isOfCalls({ kind, facts })) return OF_KEPT[facts.what] ?? "none";
  return kind === "change" || kind === "drain" ? "held" : "none";
}

function told(kind, facts) {
  if (kind === "breaker") {
    const { deployment, upstream, before, after, why } = facts;
    return `${deployment ?? upstream}: ${words(before)} → ${words(after)}${why ? `, ${why}` : ""}`;
  }
  if (kind === "alert") return `${words(facts.alert)}, ${facts.state}. ${facts.summary}`;
  if (kind === "change") return `${facts.what}, ${facts.target}: ${facts.why} (${facts.who})`;
  if (kind === "engine") return `${facts.engine}: ${ofEngine(facts)}${because(facts)}`;
  if (kind === "probe") return `${facts.deployment ?? facts.upstream} is ${facts.state}${because(facts)}`;
  if (kind === "degraded") return `${facts.model ?? "the gateway"}: ${mode(facts)}${because(facts)}`;
  if (isOfCalls({ kind, facts })) {
    const [single, several] = OF_CALLS[keyOfCalls({ kind, facts })];
    return `${count(facts.count)} ${facts.count === 1 ? single : several}`;
  }
  const said = Object.entries(facts).filter(([, value]) => value !== null && value !== "");
  return said.map(([name, value]) => `${words(name)} ${value}`).join(" · ");
}

const keyOfCalls = ({ kind, facts }) => `${kind} ${facts.what}`;
const isOfCalls = (event) => keyOfCalls(event) in OF_CALLS;
const because = ({ why }) => (why ? `, ${why}` : "");
const ofEngine = ({ what, attempt }) => `${OF_ENGINES[what] ?? words(what)}${attempt ? ` (attempt ${attempt})` : ""}`;
const mode = ({ is_degraded: isSo }) => (isSo ? "degraded mode begins" : "degraded mode ends");

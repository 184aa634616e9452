// What has happened lately: transitions, alerts, reloads, drains, operators' changes.

import { byId, el, keyed, mark, setText } from "./dom.js";
import { moment, words } from "./format.js";

const SHOWN = 30;

let shown = [];
let isDue = false;

export function noteEvent(event) {
  shown = [event, ...shown].slice(0, SHOWN);
  showSoon();
}

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

function look(kind, facts) {
  if (kind === "breaker") return OF_BREAKER[facts.after] ?? "none";
  if (kind === "alert") return facts.state === "resolved" ? "well" : (OF_SEVERITY[facts.severity] ?? "none");
  return kind === "change" || kind === "drain" ? "held" : "none";
}

function told(kind, facts) {
  if (kind === "breaker") {
    const { deployment, upstream, before, after, why } = facts;
    return `${deployment ?? upstream}: ${words(before)} → ${words(after)}${why ? `, ${why}` : ""}`;
  }
  if (kind === "alert") return `${words(facts.alert)}, ${facts.state}. ${facts.summary}`;
  if (kind === "change") return `${facts.what}, ${facts.target}: ${facts.why} (${facts.who})`;
  const said = Object.entries(facts).filter(([, value]) => value !== null && value !== "");
  return said.map(([name, value]) => `${words(name)} ${value}`).join(" · ");
}

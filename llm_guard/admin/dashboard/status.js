// The status line: health with reasons, alerts, and whether the gateway is reachable.

import { byId, el, rebuild, setHidden, setMark, setText } from "./dom.js";
import { clock, count, counted, seconds, span } from "./format.js";

const LOOKS = {
  healthy: ["well", "Healthy"],
  degraded: ["warn", "Degraded"],
  unhealthy: ["bad", "Unhealthy"],
  failed: ["bad", "Failed"],
};

let word = null;
let firing = 0;
let causes = 0;
let reasons = [];

export function showStatus(snapshot) {
  const [kind, state] = LOOKS[snapshot.health] ?? ["none", snapshot.health];
  const shown = snapshot.is_draining ? `${state}, draining` : state;
  reasons = snapshot.is_draining ? ["new calls are refused", ...snapshot.reasons] : snapshot.reasons;
  byId("status").dataset.state = kind;
  setMark(byId("status").firstElementChild, kind);
  setText(byId("status-state"), shown);
  showReason();
  word = shown;
  showTitle();
  showAbout(snapshot);
  showNotice(snapshot.notice);
}

/** The first line is a heading, each other one an item of a list. */
function showNotice(lines) {
  setHidden(byId("notice"), lines.length === 0);
  rebuild(byId("notice"), lines, ([head, ...rest]) => [
    el("p", {}, head ?? ""),
    el("ul", {}, ...rest.map((line) => el("li", {}, line))),
  ]);
}

/** `number`: causes in the incident view, to which the status line points. */
export function showCauses(number) {
  causes = number;
  setHidden(byId("status-causes"), causes === 0);
  setText(byId("status-causes"), `${counted(causes, "cause")} below`);
  if (word !== null) showReason();
}

/** The worst reason; the incident view has the causes. */
function showReason() {
  const [worst] = reasons;
  const more = reasons.length > 1 && causes === 0 ? ` And ${reasons.length - 1} more.` : "";
  const nothing = causes === 0 ? "No problems found." : "No model fails, but something needs attention:";
  setText(byId("status-reason"), worst === undefined ? nothing : `${sentence(worst)}${more}`);
}

/** Shows the number of firing alerts in the header and the title; `kind`: the mark of the most severe. */
export function showFiring(number, kind) {
  firing = number;
  const sign = byId("firing");
  setHidden(sign, firing === 0);
  sign.dataset.state = kind;
  setMark(sign.firstElementChild, kind);
  setText(sign.lastElementChild, `${counted(firing, "alert")} firing`);
  showTitle();
}

/** Shows degraded mode in the header; "": hides it. */
export function showDegraded(text) {
  setHidden(byId("degraded"), text === "");
  setText(byId("degraded").lastElementChild, text);
}

function showTitle() {
  const title = `${firing ? `(${count(firing)}) ` : ""}${word} · llm_guard`;
  if (word !== null && document.title !== title) document.title = title;
}

function showAbout(snapshot) {
  fillFacts(byId("place"), [
    ["instance", location.host],
    ["times in", timeZone()],
  ]);
  fillFacts(byId("about"), [
    ["version", snapshot.version],
    ["up", span(snapshot.uptime_s)],
    ["connections", `${count(snapshot.connections)} of ${count(snapshot.max_connections)}`],
    ["event loop lag", seconds(snapshot.loop_lag_s)],
    ["keys in cooldown", count(snapshot.credentials_in_cooldown)],
  ]);
}

function fillFacts(list, facts) {
  if (!list.children.length) {
    list.append(...facts.map(([name]) => el("div", {}, el("dt", {}, name), el("dd", {}))));
  }
  facts.forEach(([, value], at) => setText(list.children[at].lastElementChild, value));
}

/** The browser's time zone, in which all times of the page are, e.g. `Europe/Berlin (UTC+2)`. */
function timeZone() {
  const { timeZone: name } = Intl.DateTimeFormat().resolvedOptions();
  const ahead_min = -new Date().getTimezoneOffset();
  if (ahead_min === 0) return name === "UTC" ? name : `${name} (UTC)`;
  const [hours, minutes] = [Math.floor(Math.abs(ahead_min) / 60), Math.abs(ahead_min) % 60];
  return `${name} (UTC${ahead_min < 0 ? "-" : "+"}${hours}${minutes ? `:${String(minutes).padStart(2, "0")}` : ""})`;
}

let unreachableSince = null;
let lastSeen = null;

export function showReachable() {
  lastSeen = Date.now() / 1000;
  if (unreachableSince === null) return;
  unreachableSince = null;
  delete document.documentElement.dataset.unreachable;
  setHidden(byId("unreachable"), true);
}

/** Keeps the last data, greyed out. */
export function showUnreachable(reason) {
  unreachableSince ??= lastSeen ?? Date.now() / 1000;
  const last = lastSeen === null ? "" : " The data shown is from then.";
  const since = `No response from the gateway since ${clock(unreachableSince)}`;
  showProblem("Unreachable", `${since}: ${reason}.${last} Retrying every second.`);
}

export function showRefused(message) {
  unreachableSince ??= lastSeen ?? Date.now() / 1000;
  showProblem("Error", `The gateway returned an error: ${message}.`);
}

export function showLocked() {
  showState("Login needed");
}

function showProblem(word, text) {
  document.documentElement.dataset.unreachable = "";
  setText(byId("unreachable"), text);
  setHidden(byId("unreachable"), false);
  showState(word);
}

function showState(shown) {
  byId("status").dataset.state = "none";
  setMark(byId("status").firstElementChild, "none");
  setText(byId("status-state"), shown);
  setText(byId("status-reason"), "");
  setHidden(byId("status-causes"), true);
  word = shown;
  firing = 0; // not known
  setHidden(byId("firing"), true);
  showDegraded("");
  showTitle();
}

function sentence(text) {
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}.`;
}

// How it is, in one line: a shape, a word, and why. And whether anybody answers at all.

import { byId, el, setHidden, setMark, setText } from "./dom.js";
import { clock, count, counted, seconds, span } from "./format.js";

const LOOKS = {
  healthy: ["well", "Healthy"],
  degraded: ["warn", "Degraded"],
  unhealthy: ["bad", "Unhealthy"],
  failed: ["bad", "Failed"],
};

let word = null;
let firing = 0;

export function showStatus(snapshot) {
  const [kind, state] = LOOKS[snapshot.health] ?? ["none", snapshot.health];
  const shown = snapshot.is_draining ? `${state}, draining` : state;
  const why = [...snapshot.why];
  if (snapshot.is_draining) why.unshift("new calls are turned away");
  byId("status").dataset.state = kind;
  setMark(byId("status").firstElementChild, kind);
  setText(byId("status-word"), shown);
  setText(byId("status-why"), why.length ? sentence(why) : "Nothing stands out.");
  word = shown;
  showTitle();
  showAbout(snapshot);
}

/** How many alerts fire, at the top and in the tab's title; `kind`: the mark of the gravest. */
export function showFiring(number, kind) {
  firing = number;
  const sign = byId("firing");
  setHidden(sign, firing === 0);
  sign.dataset.state = kind;
  setMark(sign.firstElementChild, kind);
  setText(sign.lastElementChild, `${counted(firing, "alert")} firing`);
  showTitle();
}

/** Shows at the top of the page what is in degraded mode; "": nothing is. */
export function showDegraded(text) {
  setHidden(byId("degraded-link"), text === "");
  setText(byId("degraded-link").lastElementChild, text);
}

function showTitle() {
  const title = `${firing ? `(${count(firing)}) ` : ""}${word} · llm_guard`;
  if (word !== null && document.title !== title) document.title = title;
}

function showAbout(snapshot) {
  const facts = [
    ["version", snapshot.version],
    ["up", span(snapshot.uptime_s)],
    ["clients", `${count(snapshot.connections)} of ${count(snapshot.max_connections)}`],
    ["loop lag", seconds(snapshot.loop_lag_s)],
    ["credentials in cooldown", count(snapshot.credentials_in_cooldown)],
  ];
  const list = byId("about");
  if (!list.children.length) {
    list.append(...facts.map(([name]) => el("div", {}, el("dt", {}, name), el("dd", {}))));
  }
  facts.forEach(([, value], at) => setText(list.children[at].lastElementChild, value));
}

let awaySince = null;
let lastSeen = null;

export function showHere() {
  lastSeen = Date.now() / 1000;
  if (awaySince === null) return;
  awaySince = null;
  delete document.documentElement.dataset.away;
  setHidden(byId("away"), true);
}

/** The picture stays, greyed: it is the last that is known. */
export function showAway(why) {
  awaySince ??= lastSeen ?? Date.now() / 1000;
  const last = lastSeen === null ? "" : " What you see is from then.";
  showNothing("Away", `No word from the gateway since ${clock(awaySince)}: ${why}.${last} It is asked every second.`);
}

export function showRefused(message) {
  awaySince ??= lastSeen ?? Date.now() / 1000;
  showNothing("Refused", `The gateway cannot be shown: ${message}.`);
}

/** Nobody is shown anything without the operator's token. */
export function showLocked() {
  showWord("Locked");
}

function showNothing(word, text) {
  document.documentElement.dataset.away = "";
  setText(byId("away"), text);
  setHidden(byId("away"), false);
  showWord(word);
}

function showWord(shown) {
  byId("status").dataset.state = "none";
  setMark(byId("status").firstElementChild, "none");
  setText(byId("status-word"), shown);
  setText(byId("status-why"), "");
  word = shown;
  firing = 0; // nobody knows
  setHidden(byId("firing"), true);
  showDegraded("");
  showTitle();
}

function sentence(phrases) {
  const text = phrases.join("; ");
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}.`;
}

// A tile for each engine of our own: whether it is up, what is tried next, what it has printed, and what may be done.

import { byId, setHidden, setText } from "./dom.js";
import { counted, moment, span, words } from "./format.js";
import { asButtons, showTiles } from "./tiles.js";

const STATES = {
  running: ["well", "Running", "serving"],
  starting: ["warn", "Starting", "coming up"],
  restarting: ["warn", "Restarting", "coming up again"],
  unhealthy: ["bad", "Unhealthy", "found down"],
  restart_failed: ["bad", "Restart failed", "not up yet"],
  failed: ["bad", "Given up", "nothing is tried until it is reset"],
  stopped: ["none", "Stopped", "not wanted"],
};
const IS_UP = new Set(["running", "starting", "restarting"]);

const body = ({ engine }) => ({ engine });

const ACTIONS = [
  {
    name: "Start",
    path: "admin/engines/start",
    what: "It is started at once, and looked after from then on.",
    isOffered: ({ state }) => !IS_UP.has(state),
    body,
  },
  {
    name: "Restart",
    path: "admin/engines/restart",
    what: "It is stopped, and started when it has ended. What it answers just now breaks off.",
    isOffered: ({ state }) => state === "running" || state === "starting",
    body,
  },
  {
    name: "Stop",
    path: "admin/engines/stop",
    what: "It is stopped, and not brought back until somebody starts it. What it is answering now breaks off.",
    isOffered: ({ state }) => state !== "stopped",
    body,
  },
  {
    name: "Reset",
    path: "admin/engines/reset",
    what: "Its attempts are forgotten, those of the last hour too. One that was given up is tried again.",
    isOffered: ({ state, attempts }) => state === "failed" || attempts > 0,
    body,
  },
];

const OUTPUT = { name: "Output", isOffered: ({ output }) => output.length > 0, press: showOutput };

const TILES = {
  title: ({ engine }) => engine,
  lines: ["why", "facts", "place"],
  buttons: [...asButtons(ACTIONS), OUTPUT],
  look,
  next,
};

let watched = null;

export function showEngines({ engines }) {
  setHidden(byId("engines-part"), engines.length === 0);
  showTiles(byId("engines"), engines, TILES);
  const notUp = engines.filter(({ state }) => state !== "running" && state !== "stopped").length;
  const all = counted(engines.length, "engine");
  setText(byId("engines-count"), notUp ? `${notUp} of ${all} not up` : all);
  if (byId("output").open) fillOutput(engines.find(({ engine }) => engine === watched));
}

function look(one) {
  const [kind, word, meaning] = STATES[one.state] ?? ["none", words(one.state), ""];
  return {
    kind,
    word,
    meaning: `${one.state === "stopped" && one.is_spare ? "a spare one" : meaning}, since ${moment(one.since)}`,
    why: one.why ?? "",
    facts: `serves ${one.upstreams.join(", ")} · ${restarts(one)}`,
    place: `${one.kind}: ${one.place}`,
  };
}

function restarts({ restarts_ok: ok, restarts_failed: failed }) {
  if (!ok && !failed) return "no restart";
  return `${counted(ok + failed, "restart")}${failed ? `, ${failed} in vain` : ""}`;
}

function next({ next_attempt_s, boot_left_s, attempts, max_attempts }, passed_s) {
  if (next_attempt_s !== null) {
    const which = attempts < max_attempts ? `restart ${attempts + 1} of ${max_attempts}` : "given up";
    return `${which} in ${span(next_attempt_s - passed_s)}`;
  }
  if (boot_left_s === null) return "";
  const which = attempts ? `attempt ${attempts} of ${max_attempts}, ` : "";
  return `${which}another ${span(boot_left_s - passed_s)} to come up`;
}

function showOutput(one) {
  watched = one.engine;
  setText(byId("output-head"), `Output of ${one.engine}`);
  fillOutput(one);
  byId("output").showModal();
}

function fillOutput(one) {
  setText(byId("output-text"), one?.output.join("\n") ?? "There is no such engine any more.");
}

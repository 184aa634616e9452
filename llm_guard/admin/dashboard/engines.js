// A tile for each self-hosted engine: its state, the next restart attempt, its output, and the operator's actions.

import { byId, setHidden, setText } from "./dom.js";
import { counted, moment, seconds, share, span, words } from "./format.js";
import { asButtons, showTiles } from "./tiles.js";

const STATES = {
  running: ["well", "Running", "serving"],
  starting: ["warn", "Starting", ""],
  restarting: ["warn", "Restarting", ""],
  unhealthy: ["bad", "Unhealthy", "its probe fails"],
  restart_failed: ["bad", "Restart failed", "will be retried"],
  failed: ["bad", "Given up", "no restarts until it is reset"],
  stopped: ["none", "Stopped", "by request"],
};
const IS_UP = new Set(["running", "starting", "restarting"]);

const body = ({ engine }) => ({ engine });

const ACTIONS = [
  {
    name: "Start",
    path: "admin/engines/start",
    effect: "Starts the engine now. It is restarted automatically when it fails.",
    isOffered: ({ state }) => !IS_UP.has(state),
    body,
  },
  {
    name: "Restart",
    path: "admin/engines/restart",
    effect: "Stops the engine and starts it again. Its running responses are cut off.",
    isOffered: ({ state }) => state === "running" || state === "starting",
    body,
  },
  {
    name: "Stop",
    path: "admin/engines/stop",
    effect: "Stops the engine until an operator starts it. Its running responses are cut off.",
    isOffered: ({ state }) => state !== "stopped",
    body,
  },
  {
    name: "Reset",
    path: "admin/engines/reset",
    effect: "Clears its restart attempts, including those of the last hour. An engine that was given up is restarted.",
    isOffered: ({ state, attempts }) => state === "failed" || attempts > 0,
    body,
  },
];

const OUTPUT = { name: "Output", isOffered: ({ output }) => output.length > 0, press: showOutput };

const TILES = {
  title: ({ engine }) => engine,
  lines: ["reason", "facts", "target"],
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
  const figures = [notUp ? `${notUp} of ${all} not running` : all, ...summary(engines)];
  setText(byId("engines-count"), figures.join(" · "));
  if (byId("output").open) fillOutput(engines.find(({ engine }) => engine === watched));
}

/** Availability and start-up time, averaged over the engines that were meant to run. */
function summary(engines) {
  const [available, started] = ["availability", "average_start_s"].map((name) =>
    engines.map((one) => one[name]).filter((value) => value !== null),
  );
  return [
    ...(available.length ? [`${share(mean(available))} available`] : []),
    ...(started.length ? [`start-up ${seconds(mean(started))} on average`] : []),
  ];
}

const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

function look(one) {
  const [kind, word, meaning] = STATES[one.state] ?? ["none", words(one.state), ""];
  return {
    kind,
    word,
    meaning: [one.state === "stopped" && one.is_standby ? "standby" : meaning, `since ${moment(one.since)}`]
      .filter(Boolean)
      .join(", "),
    reason: one.reason ?? "",
    facts: `serves ${one.upstreams.join(", ")} · ${restarts(one)}`,
    target: `${one.kind}: ${one.target}`,
  };
}

function restarts({ restarts_ok: ok, restarts_failed: failed }) {
  if (!ok && !failed) return "no restarts";
  return `${counted(ok + failed, "restart")}${failed ? `, ${failed} failed` : ""}`;
}

function next({ next_attempt_s, start_timeout_left_s, attempts, max_attempts }, passed_s) {
  if (next_attempt_s !== null) {
    const which = attempts < max_attempts ? `restart ${attempts + 1} of ${max_attempts}` : "given up";
    return `${which} in ${span(next_attempt_s - passed_s)}`;
  }
  if (start_timeout_left_s === null) return "";
  const which = attempts ? `attempt ${attempts} of ${max_attempts}, ` : "";
  return `${which}start timeout in ${span(start_timeout_left_s - passed_s)}`;
}

function showOutput(one) {
  watched = one.engine;
  setText(byId("output-head"), `Output of ${one.engine}`);
  fillOutput(one);
  byId("output").showModal();
}

function fillOutput(one) {
  setText(byId("output-text"), one?.output.join("\n") ?? "This engine is no longer in the config.");
}

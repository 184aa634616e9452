// A tile for each deployment: the state of its breaker, in words as well as in colour, and the operator's actions.

import { byId, setHidden, setText } from "./dom.js";
import { facts, restrictionsOf } from "./evidence.js";
import { counted, seconds, share, span, words } from "./format.js";
import { link } from "./links.js";
import { rowsOf } from "./rows.js";
import { asButtons, showTiles } from "./tiles.js";

const STATES = {
  closed: ["well", "Closed", "all calls pass"],
  open: ["bad", "Open", "calls are refused"],
  half_open: ["warn", "Half-open", "one trial call passes"],
  forced_open: ["held", "Forced open", "calls are refused (operator override)"],
  forced_closed: ["held", "Forced closed", "all calls pass (operator override)"],
  metrics_only: ["none", "Metrics only", "failures are counted, all calls pass"],
  disabled: ["none", "Disabled", "failures are not counted, all calls pass"],
};
const MOST = 0.5;
const OF_HEALTH = { healthy: "well", degraded: "warn", unhealthy: "bad", failed: "bad" };

const ofDeployment = (one) => ({ deployment: one.deployment });

const ACTIONS = [
  {
    name: "Force open",
    path: "admin/breakers/force-open",
    effect: "The breaker refuses all calls. They go to other deployments of their route, or fail.",
    ends: true,
    isOffered: ({ breaker }) => breaker.state !== "forced_open",
    body: ofDeployment,
  },
  {
    name: "Reset",
    path: "admin/breakers/reset",
    effect: "Removes any override, clears the failure statistics and closes the breaker.",
    isOffered: ({ breaker }) => breaker.is_forced || breaker.state !== "closed",
    body: ofDeployment,
  },
  {
    name: "Reset upstream",
    path: "admin/breakers/reset",
    effect: "Clears the failure statistics of the upstream’s host and closes its breaker, for all its deployments.",
    isOffered: ({ host }) => host !== "closed",
    body: ({ upstream }) => ({ upstream }),
  },
  {
    name: "Drain",
    path: "admin/deployments/drain",
    effect: "The deployment gets no new calls. Running calls finish.",
    ends: true,
    isOffered: ({ hold }) => hold === null,
    body: ofDeployment,
  },
  {
    name: "Uncordon",
    path: "admin/deployments/uncordon",
    effect: "The deployment gets calls again, gradually, as its breaker allows.",
    isOffered: ({ hold }) => hold !== null,
    body: ofDeployment,
  },
];

const MOST_HEALTHY = 8; // more of them share one line

const TILES = {
  title: ({ deployment }) => deployment,
  heading: (label) => link("deployment", label, label, { class: "whole" }),
  lines: ["through", "facts", "reasons"],
  buttons: asButtons(ACTIONS),
  look,
  next,
};

let latest = [];

export function prepareBreakers() {
  byId("healthy-part").addEventListener("toggle", () => show(latest));
}

export function showBreakers({ deployments }) {
  latest = deployments;
  show(deployments);
  const notClosed = deployments.filter((one) => one.breaker.state !== "closed").length;
  const all = counted(deployments.length, "deployment");
  setText(byId("breakers-count"), notClosed ? `${notClosed} of ${all} not closed` : `${all}, all closed`);
}

function show(deployments) {
  const healthy = deployments.filter((one) => look(one).kind === "well" && restrictionsOf(one).length === 0);
  const isFolded = healthy.length > MOST_HEALTHY;
  setHidden(byId("healthy-part"), !isFolded);
  setText(byId("healthy-part").firstElementChild, `${healthy.length} healthy deployments`);
  const folded = new Set(isFolded ? healthy : []);
  const others = deployments.filter((one) => !folded.has(one));
  const shown = rowsOf("tiles", others, weight, "unhealthy or restricted deployments", () => show(latest));
  showTiles(byId("tiles"), shown, TILES);
  showTiles(byId("healthy"), byId("healthy-part").open ? [...folded] : [], TILES);
  for (const tile of [...byId("tiles").children, ...byId("healthy").children]) {
    tile.dataset.breaker = tile.item.breaker.state;
  }
}

/** Whether it serves pass-through calls, which name no model. */
export const isPassThrough = ({ deployment, upstream }) => deployment === upstream;

const weight = (one) => (look(one).kind === "bad" ? 1e9 : 0) + one.attempts;

function next({ breaker }, passed_s) {
  if (breaker.next_probe_s === null) return "";
  const left_s = breaker.next_probe_s - passed_s;
  return left_s < 0.5 ? "the next call is a trial" : `trial call in ${span(left_s)}`;
}

function look(one) {
  const { breaker, hold, health, upstream } = one;
  const [ofBreaker, word, usually] = STATES[breaker.state] ?? ["none", breaker.state, ""];
  const isRefusing = ofBreaker === "well" && one.refused_rate >= MOST;
  const [other] = ofBreaker === "well" ? restrictionsOf(one) : [];
  const meaning = isRefusing ? "but most calls are refused" : other ? `but: ${words(other.kind)}` : usually;
  return {
    kind: hold ? "held" : ofBreaker === "well" ? (OF_HEALTH[health] ?? "none") : ofBreaker,
    word: hold ? `${word}, ${hold.kind}` : word,
    meaning: hold ? "gets no calls" : meaning,
    through: isPassThrough(one) ? `Pass-through: /upstreams/${upstream}/…, and calls without a model` : "",
    facts: figures(one),
    reasons: causes(one).join("; "),
  };
}

function figures({ breaker, duration }) {
  const window = breaker.calls
    ? `${share(breaker.failure_share)} of ${counted(breaker.calls, "call")} failed`
    : "no recent calls";
  const p95 = duration.p95_s === null ? null : `p95 ${seconds(duration.p95_s)}`;
  const several = breaker.breakers > 1 ? `worst of ${breaker.breakers} breakers` : null;
  return [window, p95, several].filter(Boolean).join(" · ");
}

/** The restrictions in force with their figures; without any, the reasons of the snapshot. */
function causes(one) {
  const { reasons, breaker } = one;
  const found = restrictionsOf(one).map((cause) => `${words(cause.kind)}: ${facts(cause).join(" · ")}`);
  const shown = found.length ? found : reasons;
  return breaker.is_forced && breaker.reason ? [...shown, `override: ${breaker.reason}`] : shown;
}

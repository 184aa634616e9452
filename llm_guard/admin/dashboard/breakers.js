// A tile for each deployment: what its breaker does, since the word is never left to a colour, and what may be done.

import { byId, setText } from "./dom.js";
import { counted, seconds, share, span } from "./format.js";
import { asButtons, showTiles } from "./tiles.js";

const STATES = {
  closed: ["well", "Closed", "passing calls"],
  open: ["bad", "Open", "refusing calls"],
  half_open: ["warn", "Half-open", "letting a call try"],
  forced_open: ["held", "Forced open", "refusing calls on an operator’s word"],
  forced_closed: ["held", "Forced closed", "passing calls on an operator’s word"],
  metrics_only: ["none", "Metrics only", "counting, and refusing nothing"],
  disabled: ["none", "Disabled", "passing calls uncounted"],
};
const MOST = 0.5;
const OF_HEALTH = { healthy: "well", degraded: "warn", unhealthy: "bad", failed: "bad" };

const ofDeployment = (one) => ({ deployment: one.deployment });

const ACTIONS = [
  {
    name: "Force open",
    path: "admin/breakers/force-open",
    what: "Its breaker refuses every call from now on. Calls go to the other deployments of their route, or fail.",
    ends: true,
    isOffered: ({ breaker }) => breaker.state !== "forced_open",
    body: ofDeployment,
  },
  {
    name: "Reset",
    path: "admin/breakers/reset",
    what: "Its breaker forgets what it has seen, and any operator’s word, and passes calls again.",
    isOffered: ({ breaker }) => breaker.is_forced || breaker.state !== "closed",
    body: ofDeployment,
  },
  {
    name: "Reset upstream",
    path: "admin/breakers/reset",
    what: "The breaker of its upstream’s host forgets what it has seen. All deployments there are asked again.",
    isOffered: ({ host }) => host !== "closed",
    body: ({ upstream }) => ({ upstream }),
  },
  {
    name: "Drain",
    path: "admin/deployments/drain",
    what: "It gets no new calls. Those that run go on to their end.",
    ends: true,
    isOffered: ({ hold }) => hold === null,
    body: ofDeployment,
  },
  {
    name: "Return",
    path: "admin/deployments/return",
    what: "It is asked again, as its breaker allows.",
    isOffered: ({ hold }) => hold !== null,
    body: ofDeployment,
  },
];

const TILES = {
  title: ({ deployment }) => deployment,
  lines: ["through", "facts", "why"],
  buttons: asButtons(ACTIONS),
  look,
  next,
};

export function showBreakers({ deployments }) {
  showTiles(byId("tiles"), deployments, TILES);
  for (const tile of byId("tiles").children) tile.dataset.breaker = tile.item.breaker.state;
  const notClosed = deployments.filter((one) => one.breaker.state !== "closed").length;
  const all = counted(deployments.length, "deployment");
  setText(byId("breakers-count"), notClosed ? `${notClosed} of ${all} not closed` : `${all}, all closed`);
}

/** An upstream's own, not that of a model. */
export const isThrough = ({ deployment, upstream }) => deployment === upstream;

function next({ breaker }, passed_s) {
  if (breaker.next_probe_s === null) return "";
  const left_s = breaker.next_probe_s - passed_s;
  return left_s < 0.5 ? "next probe with the next call" : `next probe in ${span(left_s)}`;
}

function look(one) {
  const { breaker, hold, health, upstream } = one;
  const [ofBreaker, word, usually] = STATES[breaker.state] ?? ["none", breaker.state, ""];
  const meaning = ofBreaker === "well" && one.refused_rate >= MOST ? "but most calls are refused" : usually;
  return {
    kind: hold ? "held" : ofBreaker === "well" ? (OF_HEALTH[health] ?? "none") : ofBreaker,
    word: hold ? `${word}, ${hold.kind}` : word,
    meaning: hold ? "not asked" : meaning,
    through: isThrough(one) ? `What comes by /upstreams/${upstream}/…, or names no model` : "",
    facts: figures(one),
    why: reasons(one).join("; "),
  };
}

function figures({ breaker, duration }) {
  const window = breaker.calls
    ? `${share(breaker.failure_share)} of ${counted(breaker.calls, "call")} failed`
    : "no calls lately";
  const p95 = duration.p95_s === null ? null : `p95 ${seconds(duration.p95_s)}`;
  const several = breaker.breakers > 1 ? `worst of ${breaker.breakers} breakers` : null;
  return [window, p95, several].filter(Boolean).join(" · ");
}

function reasons({ why, breaker }) {
  return breaker.reason ? [...why, `forced: ${breaker.reason}`] : why;
}

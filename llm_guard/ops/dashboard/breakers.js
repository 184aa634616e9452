// A tile for each deployment: what its breaker does, since the word is never left to a colour, and what may be done.

import { ON_DEPLOYMENTS, act } from "./actions.js";
import { byId, el, keyed, mark, parts, setHidden, setMark, setText } from "./dom.js";
import { counted, seconds, share, span } from "./format.js";

const STATES = {
  closed: ["well", "Closed", "passing calls"],
  open: ["bad", "Open", "refusing calls"],
  half_open: ["warn", "Half-open", "letting a call try"],
  forced_open: ["held", "Forced open", "refusing calls on an operator’s word"],
  forced_closed: ["held", "Forced closed", "passing calls on an operator’s word"],
  metrics_only: ["none", "Metrics only", "counting, and refusing nothing"],
  disabled: ["none", "Disabled", "passing calls uncounted"],
};
const OF_HEALTH = { healthy: "well", degraded: "warn", unhealthy: "bad" };

let shownAt = 0;
let deployments = [];

export function showBreakers(snapshot) {
  shownAt = performance.now();
  deployments = snapshot.deployments;
  keyed(byId("tiles"), deployments, (one) => one.deployment, newTile, fillTile);
  countDown();
  const notClosed = deployments.filter((one) => one.breaker.state !== "closed").length;
  const all = counted(deployments.length, "deployment");
  setText(byId("breakers-count"), notClosed ? `${notClosed} of ${all} not closed` : `${all}, all closed`);
}

/** An upstream's own, not that of a model. */
export const isThrough = ({ deployment, upstream }) => deployment === upstream;

const through = ({ upstream }) => `What comes by /upstreams/${upstream}/…, or names no model`;

/** Between two answers of the gateway the time to the next probe goes on. */
export function countDown() {
  const passed_s = (performance.now() - shownAt) / 1000;
  for (const tile of byId("tiles").children) {
    const left_s = tile.nextProbe_s;
    setText(parts(tile).probe, left_s === null ? "" : probe(left_s - passed_s));
  }
}

function probe(left_s) {
  return left_s < 0.5 ? "next probe with the next call" : `next probe in ${span(left_s)}`;
}

function newTile(one) {
  const buttons = ON_DEPLOYMENTS.map((action) =>
    el(
      "button",
      {
        type: "button",
        class: "quiet",
        "aria-label": `${action.name}: ${one.deployment}`,
        "data-part": action.name,
        onclick: () => act(action, one, one.deployment),
      },
      action.name,
    ),
  );
  return el(
    "li",
    { class: "tile" },
    el("h3", {}, one.deployment),
    el(
      "p",
      { class: "state" },
      mark("none"),
      el("b", { "data-part": "word" }),
      " ",
      el("span", { "data-part": "meaning" }),
    ),
    isThrough(one) ? el("p", { class: "facts" }, through(one)) : null,
    el("p", { class: "probe", "data-part": "probe" }),
    el("p", { class: "facts", "data-part": "facts" }),
    el("p", { class: "facts", "data-part": "why" }),
    el("p", { class: "row acts" }, ...buttons),
  );
}

function fillTile(tile, one) {
  const { breaker, hold } = one;
  const [ofBreaker, word, meaning] = STATES[breaker.state] ?? ["none", breaker.state, ""];
  const kind = hold ? "held" : ofBreaker === "well" ? (OF_HEALTH[one.health] ?? "none") : ofBreaker;
  tile.dataset.state = kind;
  tile.dataset.breaker = breaker.state;
  tile.nextProbe_s = breaker.next_probe_s;
  const { word: state, meaning: what, facts, why } = parts(tile);
  setMark(tile.querySelector(".mark"), kind);
  setText(state, hold ? `${word}, ${hold.kind}` : word);
  setText(what, hold ? "not asked" : meaning);
  setText(facts, figures(one));
  setText(why, reasons(one).join("; "));
  setHidden(why, why.textContent === "");
  for (const action of ON_DEPLOYMENTS) setHidden(parts(tile)[action.name], !action.isOffered(one));
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

// The route of a model: its deployments and its fallbacks in the order in which a call tries them, with live state.

import { get } from "./api.js";
import { el, mark, parts, rebuild, setMark, setText } from "./dom.js";
import { restrictionsOf } from "./evidence.js";
import { rate, seconds, share, words } from "./format.js";
import { link } from "./links.js";
import { MARKS, none } from "./parts.js";

const SHOWN_ANYWAY = new Set(["breaker", "forced_breaker", "hold"]);

/** All routes. Throws Refused or Unreachable. */
export const routes = () => get("admin/routes");

/** The models that use a deployment: as their own, and as a fallback. */
export function usersOf(label, all) {
  const has = ({ deployments }) => deployments.some(({ deployment }) => deployment === label);
  const own = all.filter(({ steps: [first] }) => has(first));
  const others = all.filter(({ steps: [, ...fallbacks] }) => fallbacks.some(has));
  return { own: own.map(({ model }) => model), fallback: others.map(({ model }) => model) };
}

/** Shows a route in `place`. Its elements stay, so that focus survives the polls; states and figures are updated. */
export function showRoute(place, route, snapshot) {
  const steps = () => route.steps.map((step, at) => stepOf(step, at, route));
  rebuild(place, route, () => [el("ol", { class: "route" }, ...steps())]);
  const states = new Map(snapshot.deployments.map((one) => [one.deployment, one]));
  for (const step of place.firstElementChild.children) {
    const lines = [...step.querySelectorAll("li")];
    for (const line of lines) fillLine(line, states.get(line.dataset.deployment));
    setMark(parts(step).state, together(lines.map((line) => kindOf(states.get(line.dataset.deployment)))));
  }
}

function stepOf({ model, entry, deployments }, at, { balance }) {
  const name = at === 0 ? model : link("model", entry, model);
  const how = at === 0 ? `tried first, balance: ${words(balance)}` : `fallback ${at}`;
  const pattern = entry === model ? "" : ` (${entry})`;
  const state = mark("none");
  state.dataset.part = "state";
  const head = el("h4", {}, state, el("span", {}, name), el("small", {}, `${how}${pattern}`));
  const lines = deployments.map((one) => newLine(one, deployments));
  return el(
    "li",
    {},
    head,
    lines.length ? el("ul", {}, ...lines) : none("Its deployments are tried already by an earlier step."),
  );
}

function newLine({ deployment, priority, weight }, all) {
  const order = [
    all.some((one) => one.priority !== priority) ? ` · priority ${priority}` : "",
    all.some((one) => one.weight !== weight) ? ` · weight ${weight}` : "",
  ];
  const text = el("p", {}, el("span", { "data-part": "live" }), ...order);
  return el(
    "li",
    { "data-deployment": deployment },
    mark("none"),
    el("div", {}, link("deployment", deployment, deployment), text),
  );
}

function fillLine(line, state) {
  setMark(line.firstElementChild, kindOf(state));
  setText(parts(line).live, state ? live(state).filter(Boolean).join(" · ") : "not used yet");
}

const kindOf = (state) => (state?.hold ? "held" : (MARKS[state?.health] ?? "none"));

/** The state of a step: as long as one of its deployments serves, it serves. */
function together(kinds) {
  if (kinds.every((kind) => kind === kinds[0])) return kinds[0] ?? "none";
  return kinds.some((kind) => kind === "well" || kind === "warn") ? "warn" : "bad";
}

function live(one) {
  const { health, breaker, hold, gate, success_rate: success, duration } = one;
  const flight = gate.limit === null ? gate.in_flight : `${gate.in_flight} of ${gate.limit}`;
  return [
    health,
    `breaker ${words(breaker.state)}`,
    hold ? hold.kind : "",
    ...restrictionsOf(one).map(({ kind }) => (SHOWN_ANYWAY.has(kind) ? "" : words(kind))),
    success === null ? "no recent attempts" : `${share(success)} success`,
    duration.p95_s === null ? "" : `p95 ${seconds(duration.p95_s)}`,
    `${flight} in flight`,
    gate.rate === null ? "" : `limited to ${rate(gate.rate)} per second`,
  ];
}

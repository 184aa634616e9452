// The timeline of a model or a deployment: the state changes among the events of this process.

import { el, rebuild } from "./dom.js";
import { eventLine } from "./events.js";
import { none } from "./parts.js";

const KEPT = 2000; // as many as the gateway keeps
const SHOWN = 100;

const IS_ABOUT = {
  breaker: ({ deployment, upstream }, names) => isOneOf(deployment, upstream, names),
  probe: ({ deployment, upstream }, names) => isOneOf(deployment, upstream, names),
  engine: ({ engine }, { engines }) => engines.includes(engine),
  degraded: ({ model }, { model: ours }) => ours !== null && (model === ours || model === null),
  alert: ({ subject }, names) => isNamed(subject, names),
  change: ({ target }, names) => isNamed(target, names) || names.engines.includes(target),
};

let events = [];

export function keepEvent(event) {
  if (event.kind in IS_ABOUT) events = [event, ...events].slice(0, KEPT);
}

/** Forgets all events: those of an earlier process follow no longer, or some are missing. */
export function forgetEvents() {
  events = [];
}

/** Shows the events about `names` in `place`, newest first: {deployments, upstreams, engines, model}. */
export function showTimeline(place, names) {
  const about = events.filter(({ kind, facts }) => IS_ABOUT[kind](facts, names)).slice(0, SHOWN);
  const looks = { class: "events", tabindex: "0", "aria-label": "State changes, newest first" };
  rebuild(place, about, () => [
    about.length ? el("ol", looks, ...about.map(eventLine)) : none("No state has changed since the start."),
  ]);
}

/** An event without a deployment is about an upstream as a whole. */
const isOneOf = (deployment, upstream, { deployments, upstreams }) =>
  deployment ? deployments.includes(deployment) : upstreams.includes(upstream);

function isNamed(text, { deployments, upstreams, model }) {
  const whole = [...deployments, ...upstreams, ...upstreams.map((name) => `upstream ${name}`), model];
  return whole.includes(text) || deployments.some((label) => text.startsWith(`${label} (`));
}

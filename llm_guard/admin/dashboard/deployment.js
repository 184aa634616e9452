// A deployment's page: what restricts it and why, its history and state changes, recent failed calls, limits, errors by
// kind, and its config.

import { loaded } from "./calls.js";
import { Charts } from "./charts.js";
import { showConfig } from "./config_keys.js";
import { byId, el, mark, rebuild, setText } from "./dom.js";
import { errorList, facts, liftButtons, placeOf, restrictionsOf } from "./evidence.js";
import { ago, count, counted, rate, ratio, share, words } from "./format.js";
import { link } from "./links.js";
import { MARKS, outcomes, pairs, placesOf, quantiles, section, showFailedCalls } from "./parts.js";
import { routes, usersOf } from "./route.js";
import { showTimeline } from "./timeline.js";

let snapshot = null;
let shown = null;
let charts = null;

/** Keeps the snapshot for the page, and updates the page if it is open. */
export function noteSnapshot(found) {
  snapshot = found;
  if (byId("deployment").open) fillLive();
}

/** Shows the deployment with this label in the dialog. */
export async function showDeployment(label) {
  shown = label;
  byId("deployment").dataset.label = label;
  setText(byId("deployment-head"), label);
  const names = ["state", "users", "restrictions", "errors", "figures", "outcomes", "timeline", "calls", "config"];
  const places = placesOf(...names);
  byId("deployment-body").places = places;
  byId("deployment-top").replaceChildren(places.state, places.users);
  byId("deployment-body").replaceChildren(
    section("Restrictions", places.restrictions, places.errors),
    section("Limits and figures", places.figures),
    section("Attempts since the start, by result", places.outcomes),
    section("State changes", places.timeline),
    section("Recent failed calls", places.calls),
    section("Effective config", places.config),
  );
  fillLive();
  showFailedCalls(places.calls, "deployment", label);
  places.users.replaceChildren(...(await loaded(() => showUsers(label, places.config))));
}

/** Draws the history of the deployment. */
export function showAttempts(past) {
  charts ??= new Charts(byId("deployment-charts"));
  charts.show(past, past.deployment);
}

/** Links to the models that use the deployment, and the config of its upstream and of the first of them. */
async function showUsers(label, place) {
  const { own, fallback } = usersOf(label, await routes());
  const [upstream] = label.split("/"); // names of upstreams have no slash
  showConfig(place, { upstream, ...(own.length ? { model: own[0] } : {}) });
  return [models("Serves", own), models("Fallback of", fallback)].filter(Boolean);
}

function models(text, names) {
  if (!names.length) return null;
  return el("p", { class: "links" }, text, ...names.map((name) => link("model", name, name)));
}

/** Fills the parts that change with each poll. */
function fillLive() {
  const one = snapshot?.deployments.find(({ deployment }) => deployment === shown);
  const { places } = byId("deployment-body");
  if (!one) {
    const problem = snapshot === null ? "Loading…" : "There is no deployment with this label in the config.";
    places.state.replaceChildren(el("p", { class: "verdict" }, problem));
    return;
  }
  const found = restrictionsOf(one);
  const all = found.flatMap((restriction) => restriction.errors);
  const errors = [...new Map(all.map((error) => [error.call + error.at, error])).values()];
  places.state.replaceChildren(...state(one));
  rebuild(places.restrictions, found, restrictions);
  rebuild(places.errors, errors, () => (errors.length ? [el("h4", {}, "Last errors"), errorList(errors)] : []));
  places.figures.replaceChildren(figures(one));
  places.outcomes.replaceChildren(outcomes(one.outcomes, "No attempts."));
  const engines = snapshot.engines.filter(({ upstreams }) => upstreams.includes(one.upstream));
  showTimeline(places.timeline, {
    deployments: [shown],
    upstreams: [one.upstream],
    engines: engines.map(({ engine }) => engine),
    model: null,
  });
}

function state({ health, reasons, breaker, hold, last_success: last }) {
  const summary = [health, `breaker ${words(breaker.state)}`, hold ? hold.kind : ""].filter(Boolean).join(", ");
  const success = last === null ? "no success since the start" : `last success ${ago(last, snapshot.at)}`;
  const kind = hold ? "held" : (MARKS[health] ?? "none");
  return [
    el("p", { class: "verdict" }, mark(kind), el("b", {}, summary), ` · ${success}`),
    reasons.length ? el("p", { class: "verdict" }, `${reasons.join("; ")}.`) : null,
  ].filter(Boolean);
}

function restrictions(found) {
  if (!found.length) return [el("p", { class: "none" }, "Nothing refuses or delays its calls.")];
  return found.map((restriction) =>
    el(
      "div",
      { class: "restriction" },
      el("p", {}, el("b", {}, [words(restriction.kind), placeOf(restriction)].join(", ")), `: ${restriction.cause}`),
      el("p", { class: "cost" }, [...facts(restriction).filter(isNewIn(restriction)), restriction.ends].join(" · ")),
      el("p", {}, el("b", {}, "What to do: "), restriction.remedy),
      restriction.lift ? el("p", { class: "row acts change" }, ...liftButtons([restriction.lift])) : null,
    ),
  );
}

const isNewIn =
  ({ cause }) =>
  (text) =>
    !cause.includes(text);

function figures(one) {
  const { gate, budget } = one;
  return pairs([
    ["In flight", gate.limit === null ? `${count(gate.in_flight)}, no limit` : `${gate.in_flight} of ${gate.limit}`],
    ["In the queue", counted(gate.waiting, "call")],
    ["Rate limit, as learned", gate.rate === null ? "none" : `${rate(gate.rate)} calls per second`],
    ["Retry budget", `${rate(budget.tokens)} left, ${ratio(budget.ratio)} per call`],
    ["Success, last minute", share(one.success_rate)],
    ["Timeouts, last minute", share(one.timeout_rate)],
    ["Refused, last minute", share(one.refused_rate)],
    ["Duration of successes", quantiles(one.duration)],
    ["Duration of failures", quantiles(one.failed_duration)],
    ["Time to first token", quantiles(one.time_to_first_token)],
    ["Breaker", `${share(one.breaker.failure_share)} of ${counted(one.breaker.calls, "call")} failed`],
    ["Connections opened", count(one.connection_attempts)],
  ]);
}

// A deployment's page: what restricts it and why, its recent failed calls, limits, errors by kind, and its config.

import { get } from "./api.js";
import { loaded } from "./calls.js";
import { byId, el, mark, rebuild, setText } from "./dom.js";
import { errorList, facts, liftButtons, placeOf, restrictionsOf } from "./evidence.js";
import { UNKNOWN, ago, clock, count, counted, instant, moment, rate, ratio, seconds, share, words } from "./format.js";
import { link } from "./links.js";

const CALLS = 12;
const MARKS = { healthy: "well", degraded: "warn", unhealthy: "bad", failed: "bad" };

let snapshot = null;
let shown = null;

/** Keeps the snapshot for the page, and updates the page if it is open. */
export function noteSnapshot(found) {
  snapshot = found;
  if (byId("deployment").open) fillLive();
}

/** Shows the deployment with this label in the dialog. */
export async function showDeployment(label) {
  shown = label;
  setText(byId("deployment-head"), label);
  const places = Object.fromEntries(
    ["state", "restrictions", "errors", "figures", "outcomes", "calls", "config"].map((name) => [name, el("div")]),
  );
  byId("deployment-body").places = places;
  byId("deployment-body").replaceChildren(
    places.state,
    section("Restrictions", places.restrictions, places.errors),
    section("Limits and figures", places.figures),
    section("Attempts since the start, by result", places.outcomes),
    section("Recent failed calls", places.calls),
    section("Effective config", places.config),
  );
  fillLive();
  const query = `admin/calls?failed=true&limit=${CALLS}&deployment=${encodeURIComponent(label)}`;
  places.calls.replaceChildren(...(await loaded(async () => failedCalls((await get(query)).calls))));
  places.config.replaceChildren(...(await loaded(async () => configOf(label, (await get("admin/config")).config))));
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
  places.outcomes.replaceChildren(outcomes(one));
}

const section = (title, ...content) => el("section", {}, el("h3", {}, title), ...content);

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

const quantiles = ({ p50_s: half, p95_s: most, p99_s: nearly }) =>
  half === null ? UNKNOWN : `p50 ${seconds(half)} · p95 ${seconds(most)} · p99 ${seconds(nearly)}`;

const pairs = (rows) =>
  el("dl", { class: "facts" }, ...rows.map(([name, text]) => el("div", {}, el("dt", {}, name), el("dd", {}, text))));

function outcomes({ outcomes: found, attempts }) {
  const kinds = Object.entries(found).filter(([, number]) => number > 0);
  if (!kinds.length) return el("p", { class: "none" }, "No attempts.");
  kinds.sort(([, one], [, other]) => other - one);
  return pairs(kinds.map(([kind, number]) => [words(kind), `${count(number)} (${share(number / attempts)})`]));
}

function failedCalls(calls) {
  if (!calls.length) return [el("p", { class: "none" }, "None in memory.")];
  return [el("ul", { class: "errors" }, ...calls.map(callLine))];
}

function callLine({ request_id: id, timestamp, outcome, refused_by: by, model, duration_s: took, reason }) {
  const what = by ? `refused by ${by}` : outcome;
  const time = el("time", { title: moment(timestamp) }, clock(instant(timestamp)));
  const line = ` ${words(what)} · ${model ?? "no model"} · ${seconds(took)}${reason ? ` · ${reason}` : ""}`;
  return el("li", {}, time, " ", link("call", id, id), line);
}

/** The upstream's section, and the deployment's entries in the models that use it. */
function configOf(label, config) {
  const upstream = snapshot?.deployments.find(({ deployment }) => deployment === label)?.upstream;
  const models = Object.entries(config.models ?? {}).filter(([, { deployments = [] }]) =>
    deployments.some((entry) => labelled(entry, label)),
  );
  const found = { upstreams: { [upstream]: config.upstreams?.[upstream] }, models: Object.fromEntries(models) };
  return [el("pre", { tabindex: "0", "aria-label": "Effective config" }, JSON.stringify(found, null, 2))];
}

const labelled = ({ upstream, model }, label) =>
  label === upstream || label === `${upstream}/${model}` || (model === null && label.startsWith(`${upstream}/`));

// Parts that the pages of models and deployments share.

import { get } from "./api.js";
import { loaded } from "./calls.js";
import { el } from "./dom.js";
import { UNKNOWN, clock, count, instant, moment, seconds, share, words } from "./format.js";
import { link, ofModel } from "./links.js";

const CALLS = 12;

export const MARKS = { healthy: "well", degraded: "warn", unhealthy: "bad", failed: "bad" };

export const POOR = 0.95; // below this a success rate is an alert

export const section = (title, ...content) => el("section", {}, el("h3", {}, title), ...content);

/** An empty element for each name. */
export const placesOf = (...names) => Object.fromEntries(names.map((name) => [name, el("div")]));

export const none = (text) => el("p", { class: "none" }, text);

export const pairs = (rows) =>
  el("dl", { class: "facts" }, ...rows.map(([name, text]) => el("div", {}, el("dt", {}, name), el("dd", {}, text))));

/** The percentiles of a duration. */
export const quantiles = ({ p50_s: half, p95_s: most, p99_s: nearly }) =>
  half === null ? UNKNOWN : `p50 ${seconds(half)} · p95 ${seconds(most)} · p99 ${seconds(nearly)}`;

/** How calls or attempts ended, the most frequent first. */
export function outcomes(found, nothing) {
  const kinds = Object.entries(found).filter(([, number]) => number > 0);
  if (!kinds.length) return none(nothing);
  const all = kinds.reduce((sum, [, number]) => sum + number, 0);
  kinds.sort(([, one], [, other]) => other - one);
  return pairs(kinds.map(([kind, number]) => [words(kind), `${count(number)} (${share(number / all)})`]));
}

/** Shows the last failed calls of a model or a deployment in `place`; `field` is the filter's name. */
export async function showFailedCalls(place, field, value) {
  const query = `admin/calls?failed=true&limit=${CALLS}&${field}=${encodeURIComponent(value)}`;
  place.replaceChildren(...(await loaded(async () => failedCalls((await get(query)).calls))));
}

function failedCalls(calls) {
  return [calls.length ? el("ul", { class: "errors" }, ...calls.map(callLine)) : none("None in memory.")];
}

function callLine({ request_id: id, timestamp, outcome, refused_by: by, model, route, duration_s: took, reason }) {
  const time = el("time", { title: moment(timestamp) }, clock(instant(timestamp)));
  const what = ` ${words(by ? `refused by ${by}` : outcome)} · `;
  const line = ` · ${seconds(took)}${reason ? ` · ${reason}` : ""}`;
  return el("li", {}, time, " ", link("call", id, id), what, ofModel(model, route), line);
}

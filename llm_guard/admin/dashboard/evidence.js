// The evidence behind a restriction: rule and figures, the provider's last errors, and the request that lifts it.

import { act } from "./actions.js";
import { el } from "./dom.js";
import { counted, moment, words } from "./format.js";
import { link } from "./links.js";

const NAMED = 4;
const KINDS = {
  host_breaker: "upstream’s breaker",
  credential_cooldown: "credential’s cooldown",
  pace: "learned rate",
  slow_start: "slow start",
};
const NAMES = {
  "/admin/breakers/reset": "Remove override",
  "/admin/deployments/uncordon": "Uncordon",
  "/admin/config/reload": "Reload the config",
  "/admin/limits": "Remove the limit",
  "/admin/limits/reset": "Reset the limit",
  "/admin/chaos/end": "End the fault",
  "/admin/degraded/auto": "Return to the rule",
  "/admin/degraded/exit": "Exit degraded mode",
  "/admin/clients/reset": "Reset usage",
  "/admin/engines/start": "Start the engine",
  "/admin/engines/reset": "Reset the engine",
  "/admin/probes/now": "Probe now",
};

/** The first elements of a list, separated by commas, and the number of the others. */
export function listed(elements) {
  const more = elements.length - NAMED;
  const first = elements.slice(0, NAMED).flatMap((element, at) => (at ? [", ", element] : [element]));
  return more > 0 ? [...first, ` and ${more} more`] : first;
}

/** What a restriction restricts: a deployment, a model or an upstream. */
export const placeOf = ({ deployment, model, upstream }) => [deployment ?? upstream, model].filter(Boolean).join(" ");

/** Rule with its figures, start, end and cost of a restriction or of an incident. */
export function facts({ rule, since, until, refused }) {
  return [
    rule,
    since === null ? "" : `since ${moment(since)}`,
    until === null ? "" : `next trial or end at ${moment(until)}`,
    refused ? `${counted(refused, "call")} refused` : "",
  ].filter(Boolean);
}

/** A button for each request that lifts something; requests without another name are called `Lift`. */
export function liftButtons(lifts) {
  return lifts.map((lift) => {
    const title = targetOf(lift.body);
    const name = nameOf(lift);
    const action = { name, path: lift.path.slice(1), effect: lift.effect, body: () => lift.body };
    const onclick = () => act(action, null, title || "gateway");
    return el("button", { type: "button", class: "quiet change", onclick }, title ? `${name}: ${title}` : name);
  });
}

function nameOf({ path, body }) {
  if (path !== "/admin/deployments/reset") return NAMES[path] ?? "Lift";
  return `Reset ${body.kinds.map((kind) => KINDS[kind] ?? words(kind)).join(", ")}`;
}

function targetOf({ deployment, model, upstream, client, engine, id }) {
  return [deployment ?? upstream ?? client ?? engine ?? id, model].filter(Boolean).join(" ");
}

/** The provider's errors, each with its call; the words are for operators, a viewer's list has none. */
export function errorList(errors) {
  return el("ul", { class: "errors" }, ...errors.map((error) => el("li", {}, ...errorLine(error))));
}

function errorLine({ at, call, kind, status, code, request_id: id, message }) {
  const known = [
    words(kind),
    status === null ? "no response" : `status ${status}`,
    code === null ? "" : `code ${code}`,
    id === null ? "" : `request ${id}`,
  ].filter(Boolean);
  return [
    el("time", {}, moment(at)),
    ` ${known.join(" · ")} · call `,
    link("call", call, call),
    message === null ? null : el("q", {}, message),
  ];
}

let inForce = [];

export function noteRestrictions(restrictions) {
  inForce = restrictions;
}

/** The restrictions of a deployment, those of its upstream included. */
export const restrictionsOf = ({ deployment, upstream }) =>
  inForce.filter((one) => one.deployment === deployment || (one.deployment === null && one.upstream === upstream));

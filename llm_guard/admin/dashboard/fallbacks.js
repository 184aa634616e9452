// Fallback responses: which models are in degraded mode and why, and the fallback responses sent.

import { byId, setHidden, setText } from "./dom.js";
import { count, counted, moment } from "./format.js";
import { link } from "./links.js";
import { showDegraded } from "./status.js";
import { asButtons, showTiles } from "./tiles.js";

const GATEWAY = "Gateway (all models)";
const FALLBACKS = { static: "static", stale: "stale", deferred: "deferred" };

const body = ({ model }) => ({ model });

const ACTIONS = [
  {
    name: "Enter degraded mode",
    path: "admin/degraded/enter",
    effect: "Calls with a fallback response wait for a provider no longer than degraded.max_wait.",
    ends: true,
    isOffered: ({ by, is_degraded }) => !(by === "operator" && is_degraded),
    body,
  },
  {
    name: "Exit degraded mode",
    path: "admin/degraded/exit",
    effect: "Calls wait up to their deadline, regardless of the rule. Calls that fail still get fallback responses.",
    ends: true,
    isOffered: ({ by, is_degraded }) => is_degraded && by !== "operator",
    body,
  },
  {
    name: "Remove override",
    path: "admin/degraded/auto",
    effect: "The rule decides again, by the failure rate of calls.",
    isOffered: ({ by }) => by === "operator",
    body,
  },
];

const TILES = {
  title: ({ model }) => model ?? GATEWAY,
  heading: (title) => (title === GATEWAY ? title : link("model", title, title, { class: "whole" })),
  lines: ["reason", "facts", "sent"],
  buttons: asButtons(ACTIONS),
  look,
};

export function showFallbacks({ degraded: { gateway, models } }) {
  const degraded = models.filter((one) => one.is_degraded).length;
  setHidden(byId("fallbacks-part"), models.length === 0);
  showTiles(byId("fallbacks"), models.length ? [{ ...gateway, model: null }, ...models] : [], TILES);
  const all = counted(models.length, "model");
  setText(byId("fallbacks-count"), degraded ? `${degraded} of ${all} degraded` : `${all}, none degraded`);
  const some = degraded ? `${counted(degraded, "model")} degraded` : "";
  showDegraded(gateway.is_degraded && models.length ? "gateway degraded" : some);
}

function look(one) {
  const { is_degraded, by, reason, operator, since, until, calls, failed, fallback_responses } = one;
  const kind = by === "operator" ? "held" : is_degraded ? "warn" : "well";
  const override = `${reason} (${operator}, since ${moment(since)}${ending(until)})`;
  const sent = Object.entries(fallback_responses ?? {}).map(
    ([name, number]) => `${count(number)} ${FALLBACKS[name] ?? name}`,
  );
  return {
    kind,
    word: is_degraded ? "Degraded" : "Normal",
    meaning: meaning(one),
    reason: by === "operator" ? override : (reason ?? ""),
    facts: calls ? `${count(failed)} of ${counted(calls, "recent call")} failed` : "",
    sent: sent.length ? `fallback responses: ${sent.join(", ")}` : "",
  };
}

function meaning({ is_degraded, by, since }) {
  if (by === "operator") return "operator override";
  if (!is_degraded) return "";
  return `${by === "gateway" ? "because the gateway is" : "by its rule"}, since ${moment(since)}`;
}

const ending = (until) => (until === null ? "" : `, until ${moment(until)}`);

// Degraded modes: which models are in it and why, and which fallback responses their calls got.

import { byId, setHidden, setText } from "./dom.js";
import { count, counted, moment } from "./format.js";
import { showDegraded } from "./status.js";
import { asButtons, showTiles } from "./tiles.js";

const GATEWAY = "The whole gateway";
const FALLBACK_RESPONSES = { static: "static", stale: "from before", deferred: "deferred" };

const body = ({ model }) => ({ model });

const ACTIONS = [
  {
    name: "Degrade",
    path: "admin/degraded/enter",
    what: "Calls wait no longer than degraded.max_wait, then get a fallback response if there is one.",
    ends: true,
    isOffered: ({ by, is_degraded }) => !(by === "operator" && is_degraded),
    body,
  },
  {
    name: "Serve as usual",
    path: "admin/degraded/leave",
    what: "Calls have their full deadline, whatever the rule decides. Only those that fail get a fallback response.",
    ends: true,
    isOffered: ({ by, is_degraded }) => is_degraded && by !== "operator",
    body,
  },
  {
    name: "Leave to the rule",
    path: "admin/degraded/auto",
    what: "The operator’s word is taken back: its calls decide.",
    isOffered: ({ by }) => by === "operator",
    body,
  },
];

const TILES = {
  title: ({ model }) => model ?? GATEWAY,
  lines: ["why", "facts", "got"],
  buttons: asButtons(ACTIONS),
  look,
};

export function showModes({ degraded: { gateway, models } }) {
  const degraded = models.filter((one) => one.is_degraded).length;
  setHidden(byId("modes-part"), models.length === 0);
  showTiles(byId("modes"), models.length ? [{ ...gateway, model: null }, ...models] : [], TILES);
  const all = counted(models.length, "model");
  setText(byId("modes-count"), degraded ? `${degraded} of ${all} degraded` : `${all}, none degraded`);
  const some = degraded ? `${counted(degraded, "model")} degraded` : "";
  showDegraded(gateway.is_degraded && models.length ? "gateway degraded" : some);
}

function look(one) {
  const { is_degraded, by, why, who, since, until, calls, without_answer, fallback_responses } = one;
  const kind = by === "operator" ? "held" : is_degraded ? "warn" : "well";
  const whose =
    by === "operator" ? `${why} (${who}, since ${moment(since)}${ending(until)})` : why ? `because ${why}` : "";
  const named = (name) => FALLBACK_RESPONSES[name] ?? name;
  const got = Object.entries(fallback_responses ?? {}).map(([name, number]) => `${count(number)} ${named(name)}`);
  return {
    kind,
    word: is_degraded ? "Degraded" : "As usual",
    meaning: meaning(one),
    why: whose,
    facts: calls ? `${count(without_answer)} of ${counted(calls, "call")} lately had no real answer` : "",
    got: got.length ? `in place of an answer: ${got.join(", ")}` : "",
  };
}

function meaning({ is_degraded, by, since }) {
  if (by === "operator") return "on an operator’s word";
  if (!is_degraded) return "real answers are waited for";
  return `${by === "gateway" ? "as the whole gateway is" : "by its rule"}, since ${moment(since)}`;
}

const ending = (until) => (until === null ? "" : `, until ${moment(until)}`);

// A tile for each restriction, which refuses or delays calls now: cause, start, end, and a button that lifts it.

import { act } from "./actions.js";
import { byId, setHidden, setText } from "./dom.js";
import { placeOf } from "./evidence.js";
import { counted, moment, words } from "./format.js";
import { link } from "./links.js";
import { rowsOf } from "./rows.js";
import { showTiles } from "./tiles.js";

const DECISIONS = new Set(["hold", "forced_breaker", "degraded_mode", "drain", "injected_fault"]);

const ofCallers = ({ is_caller_specific: isOfCallers }) => (isOfCallers ? ", callers’ keys" : "");

const TILES = {
  title: (one) => [words(one.kind), placeOf(one)].filter(Boolean).join(": ") + ofCallers(one),
  heading,
  lines: ["cause", "since", "ends"],
  buttons: [{ name: "Lift", isOffered: ({ lift }) => lift !== null, press: lift, changes: true }],
  look,
};

export function showRestrictions(restrictions) {
  setHidden(byId("restrictions-part"), restrictions.length === 0);
  const shown = rowsOf("restrictions", restrictions, ({ refused }) => refused, "restrictions", () =>
    showRestrictions(restrictions),
  );
  showTiles(byId("restrictions"), shown, TILES);
  setText(byId("restrictions-count"), `${restrictions.length} in force`);
}

/** The title, with links to the pages of what it names. */
function heading(title, one) {
  const { kind, deployment, model, upstream } = one;
  if (deployment !== null) {
    const rest = (model === null ? "" : ` ${model}`) + ofCallers(one);
    return [`${words(kind)}: `, link("deployment", deployment, deployment, { class: "name" }), rest];
  }
  if (upstream !== null || model === null) return title;
  return [`${words(kind)}: `, link("model", model, model, { class: "name" }), ofCallers(one)];
}

function look({ kind, cause, since, until, ends, waiting, no_lift_reason: reason }) {
  return {
    kind: DECISIONS.has(kind) ? "held" : "warn",
    word: until === null ? "No fixed end" : `Until ${moment(until)}`,
    meaning: waiting ? `${counted(waiting, "call")} waiting` : "",
    cause,
    since: since === null ? "" : `since ${moment(since)}`,
    ends: reason === null ? ends : `${ends} It cannot be lifted: ${reason}.`,
  };
}

function lift({ lift: request }, title) {
  const { path, effect, body } = request;
  act({ name: "Lift", path: path.slice(1), effect, body: () => body }, null, title);
}

// A tile for each thing that refuses or delays calls now: why, since when, until when, and a button that lifts it.

import { act } from "./actions.js";
import { byId, setHidden, setText } from "./dom.js";
import { counted, moment, words } from "./format.js";
import { showTiles } from "./tiles.js";

const DECISIONS = new Set(["hold", "forced_breaker", "degraded_mode", "drain"]);

const TILES = {
  title: (one) => [words(one.kind), place(one)].filter(Boolean).join(": ") + (one.is_callers ? ", callers’ keys" : ""),
  lines: ["cause", "since", "end"],
  buttons: [{ name: "Reset", isOffered: ({ lift }) => lift !== null, press: reset, changes: true }],
  look,
};

export function showRestrictions(restrictions) {
  setHidden(byId("restrictions-part"), restrictions.length === 0);
  showTiles(byId("restrictions"), restrictions, TILES);
  setText(byId("restrictions-count"), `${restrictions.length} in force`);
}

const place = ({ deployment, model, upstream }) => [deployment ?? upstream, model].filter(Boolean).join(" ");

function look({ kind, cause, since, until, end, waiting, why_no_lift: why }) {
  return {
    kind: DECISIONS.has(kind) ? "held" : "warn",
    word: until === null ? "No end is known" : `Until ${moment(until)}`,
    meaning: waiting ? `${counted(waiting, "call")} waiting` : "",
    cause,
    since: since === null ? "" : `since ${moment(since)}`,
    end: why === null ? end : `${end} No reset: ${why}.`,
  };
}

function reset({ lift }, title) {
  act({ name: "Reset", path: lift.path.slice(1), what: lift.effect, body: () => lift.body }, null, title);
}

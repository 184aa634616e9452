// A tile for each restriction, which refuses or delays calls now: cause, start, end, and a button that lifts it.

import { act } from "./actions.js";
import { byId, setHidden, setText } from "./dom.js";
import { placeOf } from "./evidence.js";
import { counted, moment, words } from "./format.js";
import { rowsOf } from "./rows.js";
import { showTiles } from "./tiles.js";

const DECISIONS = new Set(["hold", "forced_breaker", "degraded_mode", "drain"]);

const TILES = {
  title: (one) =>
    [words(one.kind), placeOf(one)].filter(Boolean).join(": ") + (one.is_caller_specific ? ", callers’ keys" : ""),
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

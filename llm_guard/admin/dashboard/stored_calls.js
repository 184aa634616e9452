// Stored calls: numbers of dead letters and deferred calls, how many were lost, and buttons that list them.

import { byId, setHidden, setText } from "./dom.js";
import { bytes, count, moment, words } from "./format.js";
import { openStoredCalls } from "./stored_calls_dialog.js";
import { showTiles } from "./tiles.js";

const TILES = {
  title: ({ title }) => title,
  lines: ["facts", "lost"],
  buttons: [{ name: "Show", press: ({ purpose }) => openStoredCalls(purpose) }],
  look: ({ look }) => look,
};

export function showStoredCalls({ stored_calls: stored }) {
  setHidden(byId("stored-part"), stored === null);
  if (stored === null) return;
  const pieces = [
    { title: "Dead letters", purpose: "dead_letter", look: deadLetters(stored, countsOf(stored, "dead_letter")) },
    { title: "Deferred calls", purpose: "deferred", look: deferredCalls(countsOf(stored, "deferred")) },
  ];
  showTiles(byId("stored"), pieces, TILES);
  const oldest = stored.oldest === null ? "" : `, oldest from ${moment(stored.oldest)}`;
  setText(byId("stored-count"), `${bytes(stored.bytes)} on disk${oldest}`);
}

const STATES = ["dead", "queued", "running", "answered"];

const countsOf = ({ count: all }, purpose) =>
  Object.fromEntries(STATES.map((state) => [state, all[`${purpose}/${state}`] ?? 0]));

function deadLetters({ lost }, { dead, queued, running, answered }) {
  const losses = Object.entries(lost).map(([reason, number]) => `${count(number)} ${words(reason)}`);
  return {
    kind: losses.length ? "bad" : dead ? "warn" : "well",
    word: count(dead),
    meaning: "failed calls",
    facts: listed([queued, "requeued"], [running, "running"], [answered, "succeeded since"]),
    lost: losses.length ? `lost, because they could not be stored: ${losses.join(", ")}` : "",
  };
}

function deferredCalls({ dead, queued, running, answered }) {
  return {
    kind: dead ? "warn" : "well",
    word: count(queued + running),
    meaning: "pending",
    facts: listed([queued, "queued"], [running, "running"], [answered, "succeeded"], [dead, "failed"]),
    lost: "",
  };
}

/** Joins the numbers above 0. */
function listed(...figures) {
  const some = figures.filter(([number]) => number > 0);
  return some.map(([number, what]) => `${count(number)} ${what}`).join(" · ");
}

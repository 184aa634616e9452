// Calls that are kept beyond their clients: how many, since when, how many were lost; and the list of them.

import { byId, setHidden, setText } from "./dom.js";
import { bytes, count, moment, words } from "./format.js";
import { openLetters } from "./letters.js";
import { showTiles } from "./tiles.js";

const TILES = {
  title: ({ title }) => title,
  lines: ["facts", "lost"],
  buttons: [{ name: "Show", press: ({ purpose }) => openLetters(purpose) }],
  look: ({ look }) => look,
};

export function showKept({ kept }) {
  setHidden(byId("kept-part"), kept === null);
  if (kept === null) return;
  const pieces = [
    { title: "Dead letters", purpose: "dead_letter", look: letters(kept, countsOf(kept, "dead_letter")) },
    { title: "Answered later", purpose: "deferred", look: deferred(countsOf(kept, "deferred")) },
  ];
  showTiles(byId("kept"), pieces, TILES);
  const oldest = kept.oldest === null ? "" : `, the oldest from ${moment(kept.oldest)}`;
  setText(byId("kept-count"), `${bytes(kept.bytes)} on the disk${oldest}`);
}

const STATES = ["dead", "queued", "running", "answered"];

const countsOf = ({ count: all }, purpose) =>
  Object.fromEntries(STATES.map((state) => [state, all[`${purpose}/${state}`] ?? 0]));

function letters({ lost }, { dead, queued, running, answered }) {
  const gone = Object.entries(lost).map(([why, number]) => `${count(number)} ${words(why)}`);
  return {
    kind: gone.length ? "bad" : dead ? "warn" : "well",
    word: count(dead),
    meaning: "that nobody could answer",
    facts: listed([queued, "to be asked for again"], [running, "asked for just now"], [answered, "answered since"]),
    lost: gone.length ? `lost, and not kept: ${gone.join(", ")}` : "",
  };
}

function deferred({ dead, queued, running, answered }) {
  return {
    kind: dead ? "warn" : "well",
    word: count(queued + running),
    meaning: "wait for their execution",
    facts: listed([queued, "queued"], [running, "asked for just now"], [answered, "answered"], [dead, "failed"]),
    lost: "",
  };
}

/** Without those of which there are none. */
function listed(...figures) {
  const some = figures.filter(([number]) => number > 0);
  return some.map(([number, what]) => `${count(number)} ${what}`).join(" · ");
}

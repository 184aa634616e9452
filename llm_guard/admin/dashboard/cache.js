// Answers from before: a tile for the store, and one for each route: what its calls got of it.

import { byId, setHidden, setText } from "./dom.js";
import { bytes, count, counted, share } from "./format.js";
import { asButtons, showTiles } from "./tiles.js";

const ALL = "All together";

const FORGET = {
  name: "Forget",
  path: "admin/cache/purge",
  what: "What is kept of its answers is forgotten. The next call that asks for one of them goes to a provider.",
  isOffered: ({ entries }) => entries > 0,
  body: ({ route }) => (route === null ? { all: true } : { route }),
};

const TILES = {
  title: ({ route }) => route ?? ALL,
  lines: ["facts", "size", "failures"],
  buttons: asButtons([FORGET]),
  look: (one) => (one.route === null ? ofStore(one) : ofRoute(one)),
};

export function showCache({ cache }) {
  setHidden(byId("cache-part"), cache === null);
  showTiles(byId("cache"), cache === null ? [] : [{ ...cache, route: null }, ...cache.routes], TILES);
  if (cache === null) return;
  setText(byId("cache-count"), `${share(hitShare(summed(cache.routes)))} of the calls since the start`);
}

function ofStore({ kind, routes, entries, bytes: size, max_bytes, evictions, flights, failures }) {
  const failed = Object.entries(failures).map(([what, times]) => `${what} ${counted(times, "time")}`);
  return {
    kind: failed.length ? "warn" : "well",
    word: share(hitShare(summed(routes))),
    meaning: `from before · ${kind === "memory" ? "in memory" : "in SQLite"}`,
    facts: `${counted(entries, "answer")}, ${bytes(size)} of ${bytes(max_bytes)}`,
    size: [
      flights ? `${counted(flights, "request")} under way` : null,
      evictions ? `${counted(evictions, "answer")} made room for others` : null,
    ]
      .filter(Boolean)
      .join(" · "),
    failures: failed.length ? `its file failed: ${failed.join(", ")}` : "",
  };
}

function ofRoute(one) {
  const { is_on, hit, stale, stale_if_error, miss, coalesced, entries, bytes: size } = one;
  const figures = [
    [hit, "fresh"],
    [stale, "stale"],
    [stale_if_error, "stale in an outage"],
    [coalesced, "shared with another call"],
    [miss, "asked for"],
  ];
  return {
    kind: is_on ? "well" : "none",
    word: share(hitShare(one)),
    meaning: is_on ? "from before" : "from before; it has no cache any more",
    facts: figures
      .filter(([number]) => number > 0)
      .map(([number, name]) => `${count(number)} ${name}`)
      .join(" · "),
    size: `${counted(entries, "answer")}, ${bytes(size)}`,
    failures: "",
  };
}

/** Of the calls that could have had one, those that got one; null: there were none. */
function hitShare({ hit, stale, stale_if_error, miss, coalesced }) {
  const all = hit + stale + stale_if_error + miss + coalesced;
  return all ? (hit + stale + stale_if_error) / all : null;
}

function summed(routes) {
  const names = ["hit", "stale", "stale_if_error", "miss", "coalesced"];
  return Object.fromEntries(names.map((name) => [name, routes.reduce((sum, route) => sum + route[name], 0)]));
}

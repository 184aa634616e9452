// The response cache: a tile for the store, and one for each route with its hits and misses.

import { byId, setHidden, setText } from "./dom.js";
import { bytes, count, counted, share } from "./format.js";
import { link } from "./links.js";
import { asButtons, showTiles } from "./tiles.js";

const ALL = "All routes";

const PURGE = {
  name: "Purge",
  path: "admin/cache/purge",
  effect: "Deletes its cached responses. The next calls go to a provider.",
  isOffered: ({ entries }) => entries > 0,
  body: ({ route }) => (route === null ? { all: true } : { route }),
};

const TILES = {
  title: ({ route }) => route ?? ALL,
  heading: (title) => (title === ALL ? title : link("model", title, title, { class: "whole" })),
  lines: ["facts", "size", "failures"],
  buttons: asButtons([PURGE]),
  look: (one) => (one.route === null ? ofStore(one) : ofRoute(one)),
};

export function showCache({ cache }) {
  setHidden(byId("cache-part"), cache === null);
  showTiles(byId("cache"), cache === null ? [] : [{ ...cache, route: null }, ...cache.routes], TILES);
  if (cache === null) return;
  setText(byId("cache-count"), `${share(hitShare(summed(cache.routes)))} hit rate since the start`);
}

function ofStore({ kind, routes, entries, bytes: size, max_bytes, evictions, requests_in_flight, failures }) {
  const failed = Object.entries(failures).map(([what, times]) => `${what} ${counted(times, "time")}`);
  return {
    kind: failed.length ? "warn" : "well",
    word: share(hitShare(summed(routes))),
    meaning: `hit rate · ${kind === "memory" ? "in memory" : "in SQLite"}`,
    facts: `${counted(entries, "response")}, ${bytes(size)} of ${bytes(max_bytes)}`,
    size: [
      requests_in_flight ? `${counted(requests_in_flight, "request")} in flight` : null,
      evictions ? `${counted(evictions, "response")} evicted` : null,
    ]
      .filter(Boolean)
      .join(" · "),
    failures: failed.length ? `errors of its file: ${failed.join(", ")}` : "",
  };
}

function ofRoute(one) {
  const { is_enabled, hit, stale, stale_if_error, miss, coalesced, entries, bytes: size } = one;
  const figures = [
    [hit, "hits"],
    [stale, "stale"],
    [stale_if_error, "stale on error"],
    [coalesced, "coalesced"],
    [miss, "misses"],
  ];
  return {
    kind: is_enabled ? "well" : "none",
    word: share(hitShare(one)),
    meaning: is_enabled ? "hit rate" : "hit rate; its cache is turned off",
    facts: figures
      .filter(([number]) => number > 0)
      .map(([number, name]) => `${count(number)} ${name}`)
      .join(" · "),
    size: `${counted(entries, "response")}, ${bytes(size)}`,
    failures: "",
  };
}

/** Share of cacheable calls that were served from the cache; null: there were none. */
function hitShare({ hit, stale, stale_if_error, miss, coalesced }) {
  const all = hit + stale + stale_if_error + miss + coalesced;
  return all ? (hit + stale + stale_if_error) / all : null;
}

function summed(routes) {
  const names = ["hit", "stale", "stale_if_error", "miss", "coalesced"];
  return Object.fromEntries(names.map((name) => [name, routes.reduce((sum, route) => sum + route[name], 0)]));
}

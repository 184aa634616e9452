// A tile for each client key: its usage, what is left of its limits, and their reset.

import { byId, setHidden, setText } from "./dom.js";
import { UNKNOWN, count, counted, share, span } from "./format.js";
import { asButtons, showTiles } from "./tiles.js";

const LIMITS = {
  rate: "calls per second",
  concurrency: "concurrent calls",
  tokens_per_minute: "tokens per minute",
  tokens_per_day: "tokens per day",
};
const TOKENS = { input: "input", output: "output", cached: "cached input", wasted: "wasted" };
const NEARLY = 0.1;

const RESET = {
  name: "Reset",
  path: "admin/clients/reset",
  effect: "Resets the used rate and tokens of this client key. Running calls still count.",
  isOffered: ({ limits }) => limits.some(({ limit }) => limit !== "concurrency"),
  body: ({ client }) => ({ client }),
};

export function showClients({ clients }) {
  setHidden(byId("clients-part"), clients.length === 0);
  showTiles(byId("clients"), clients, {
    title: ({ client }) => client,
    lines: ["tokens", "limits", "refused"],
    buttons: asButtons([RESET]),
    look,
  });
  const refused = clients.filter(({ limits }) => limits.some((one) => one.is_refusing)).length;
  const known = counted(clients.length, "key");
  setText(byId("clients-count"), refused ? `${refused} of ${known} at a limit` : known);
}

function look({ calls, tokens, limits, priority, weight }) {
  const all = Object.values(calls).reduce((sum, number) => sum + number, 0);
  const refused = limits
    .filter((one) => one.refused > 0)
    .map((one) => `${count(one.refused)} by ${LIMITS[one.limit]}`)
    .join(", ");
  return {
    kind: kindOf(all, limits),
    word: all ? share((calls.ok ?? 0) / all) : UNKNOWN,
    meaning: meaningOf(all, priority, weight),
    tokens: Object.entries(TOKENS)
      .filter(([name]) => tokens[name])
      .map(([name, word]) => `${count(tokens[name])} ${word}`)
      .join(" · ")
      .replace(/^(?=.)/, "tokens: "),
    limits: limits.map(leftOf).join(" · "),
    refused: refused && `refused: ${refused}`,
  };
}

function meaningOf(all, priority, weight) {
  const ofWeight = weight === 1 ? "" : `, weight ${weight}`;
  return `of ${counted(all, "call")} succeeded · max. priority ${priority}${ofWeight}`;
}

function kindOf(all, limits) {
  if (limits.some((one) => one.is_refusing)) return "bad";
  if (limits.some(({ allowed, left, limit }) => limit.startsWith("tokens") && left < NEARLY * allowed)) return "warn";
  return all ? "well" : "none";
}

function leftOf({ limit, allowed, left, reset_s }) {
  const again = limit === "tokens_per_day" ? `, reset in ${span(reset_s)}` : "";
  return `${count(Math.floor(left))} of ${count(allowed)} ${LIMITS[limit] ?? limit} left${again}`;
}

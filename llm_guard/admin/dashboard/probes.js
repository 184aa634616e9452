// A tile for each upstream, or deployment, that is looked at beside its calls: whether it was found well, and when.

import { byId, setHidden, setText } from "./dom.js";
import { ago, counted, seconds, span } from "./format.js";
import { asButtons, showTiles } from "./tiles.js";

const STATES = {
  up: ["well", "Up", ""],
  down: ["bad", "Down", "asked after all others"],
  unknown: ["none", "Unknown", "not looked at yet"],
};
const KINDS = { health: "its health page", models: "its list of models", completion: "a call for one token" };
const FINDINGS = {
  ok: "",
  answered: "it is there, but what was asked for is not to be had",
  failed: "the last look failed",
  unclear: "the last look came to nothing, for a reason of the gateway’s own",
};

const LOOK_NOW = {
  name: "Look now",
  path: "admin/probes/now",
  what: "It is looked at once more, at once, and so are its deployments that have probes of their own.",
  body: ({ upstream }) => ({ upstream }),
};

export function showProbes({ probes, at }) {
  setHidden(byId("probes-part"), probes.length === 0);
  showTiles(byId("probes"), probes, {
    title: ({ upstream, deployment }) => deployment ?? upstream,
    lines: ["why", "facts", "engine"],
    buttons: asButtons([LOOK_NOW]),
    look: (one) => look(one, at),
  });
  const down = probes.filter(({ state }) => state === "down").length;
  setText(byId("probes-count"), down ? `${down} of ${probes.length} down` : `${probes.length} looked at`);
}

function look(one, at) {
  const [kind, word, meaning] = STATES[one.state] ?? ["none", one.state, ""];
  const finding = FINDINGS[one.last] ?? "";
  const failures = one.failures > 1 ? `, ${counted(one.failures, "time")} in a row` : "";
  const took = one.took_s === null ? null : `took ${seconds(one.took_s)}`;
  return {
    kind: one.state === "up" && finding ? "warn" : kind,
    word,
    meaning,
    why: finding ? [`${finding}${failures}`, one.why].filter(Boolean).join(": ") : "",
    facts: [wellAt(one, at), `${KINDS[one.kind] ?? one.kind} every ${span(one.interval_s)}`, took]
      .filter(Boolean)
      .join(" · "),
    engine: one.engine_given_up === null ? "" : `its engine was given up: ${one.engine_given_up}`,
  };
}

const wellAt = ({ last_ok }, at) => (last_ok === null ? "never found well" : `well ${ago(last_ok, at)}`);

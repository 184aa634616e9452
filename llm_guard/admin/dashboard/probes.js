// A tile for each probed upstream or deployment: its state, and the result of the last probe.

import { byId, setHidden, setText } from "./dom.js";
import { ago, counted, seconds, span } from "./format.js";
import { asButtons, showTiles } from "./tiles.js";

const STATES = {
  up: ["well", "Up", ""],
  down: ["bad", "Down", "tried last"],
  unknown: ["none", "Unknown", "not probed yet"],
};
const KINDS = { health: "health endpoint", models: "list of models", completion: "completion of one token" };
const FINDINGS = {
  ok: "",
  answered: "reachable, but the probe was rejected",
  failed: "the last probe failed",
  unclear: "the last probe could not be sent",
};

const PROBE_NOW = {
  name: "Probe now",
  path: "admin/probes/now",
  effect: "Probes the upstream now, and its deployments that have probes of their own.",
  body: ({ upstream }) => ({ upstream }),
};

export function showProbes({ probes, at }) {
  setHidden(byId("probes-part"), probes.length === 0);
  showTiles(byId("probes"), probes, {
    title: ({ upstream, deployment }) => deployment ?? upstream,
    lines: ["reason", "facts", "engine"],
    buttons: asButtons([PROBE_NOW]),
    look: (one) => look(one, at),
  });
  const down = probes.filter(({ state }) => state === "down").length;
  setText(byId("probes-count"), down ? `${down} of ${probes.length} down` : `${probes.length} probed`);
}

function look(one, at) {
  const [kind, word, meaning] = STATES[one.state] ?? ["none", one.state, ""];
  const finding = FINDINGS[one.last_result] ?? "";
  const failures = one.failures > 1 ? `, ${counted(one.failures, "time")} in a row` : "";
  const took = one.duration_s === null ? null : `took ${seconds(one.duration_s)}`;
  return {
    kind: one.state === "up" && finding ? "warn" : kind,
    word,
    meaning,
    reason: finding ? [`${finding}${failures}`, one.reason].filter(Boolean).join(": ") : "",
    facts: [lastSuccess(one, at), `${KINDS[one.kind] ?? one.kind} every ${span(one.interval_s)}`, took]
      .filter(Boolean)
      .join(" · "),
    engine: one.engine_given_up === null ? "" : `its engine was given up: ${one.engine_given_up}`,
  };
}

const lastSuccess = ({ last_ok }, at) => (last_ok === null ? "never succeeded" : `last success ${ago(last_ok, at)}`);

// A tile for each gateway of the fleet: its state, its load, and how it differs from the one that shows this page.

import { byId, setHidden, setText } from "./dom.js";
import { count, counted, span } from "./format.js";
import { showTiles } from "./tiles.js";

export function showReplicas({ fleet, version }) {
  setHidden(byId("replicas-part"), fleet === null);
  if (fleet === null) return;
  showTiles(byId("replicas"), fleet.replicas, {
    title: ({ id, is_this }) => `${nameOf(id)}${is_this ? " (this one)" : ""}`,
    lines: ["facts", "differs"],
    buttons: [],
    look: (one) => look(one, fleet, version),
  });
  const known = `${fleet.name}: ${counted(fleet.replicas.length, "gateway")}`;
  setText(byId("replicas-count"), fleet.is_connected ? known : `${fleet.name}: the store does not answer`);
}

function look(one, { is_connected, problem }, version) {
  const isAlone = one.is_this && !is_connected;
  const differences = [
    one.has_same_config ? "" : `another config (${one.config})`,
    one.has_same_token ? "" : "another ops.token: shares nothing with this one",
    one.version === version ? "" : `version ${one.version}`,
  ];
  const differs = differences.filter(Boolean).join(", ");
  return {
    ...stateOf(one, isAlone, differs),
    meaning: isAlone ? `the store of the fleet does not answer${problem ? ` (${problem})` : ""}` : "",
    facts: [
      `${count(one.in_flight)} in flight`,
      `${counted(one.calls, "call")} since the start`,
      `up ${span(one.up_s)}`,
      one.open_breakers ? counted(one.open_breakers, "open breaker") : "",
      one.kept_paces ? `decides ${counted(one.kept_paces, "pace")}` : "",
    ]
      .filter(Boolean)
      .join(" · "),
    differs,
  };
}

function stateOf({ is_draining, open_breakers }, isAlone, differs) {
  if (isAlone) return { kind: "bad", word: "Alone" };
  if (is_draining) return { kind: "none", word: "Draining" };
  return { kind: differs || open_breakers ? "warn" : "well", word: "In the fleet" };
}

/** Host, process, and the beginning of the random part: containers may have the same of both. */
const nameOf = (id) => id.replace(/^(.*:[0-9a-f]{4})[0-9a-f]+$/, "$1");

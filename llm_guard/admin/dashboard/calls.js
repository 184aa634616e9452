// The failed calls, newest first; each opens its waterfall.

import { Refused, get } from "./api.js";
import { byId, el, keyed, parts, setText } from "./dom.js";
import { clock, count, counted, instant, seconds, words } from "./format.js";
import { open } from "./links.js";
import { fallbackOf, waterfall } from "./waterfall.js";

const SHOWN = 10;

let latest = [];

export function showCalls({ calls, retained_failed }) {
  latest = folded(calls).slice(0, SHOWN);
  setText(byId("calls-count"), retained_failed ? `${count(retained_failed)} in memory, newest first` : "none");
  // An entry must not move away under the pointer.
  if (!isPointedAt(byId("calls"))) showLatest();
}

export function prepareCalls() {
  byId("calls").addEventListener("pointerleave", showLatest);
  byId("find-open").addEventListener("click", () => byId("find").showModal());
  byId("find-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const id = byId("find-id").value.trim();
    byId("find").close();
    byId("find-form").reset();
    if (id) open("call", id);
  });
}

/**
 * Calls without an attempt come in hundreds in an outage, so those refused for the same reason share one line. Each
 * call with attempts has its own: these show the cause.
 */
function folded(calls) {
  const rows = new Map();
  for (const line of calls) {
    const key = line.attempts.length ? line.request_id : `${line.model} ${line.outcome} ${line.refused_by}`;
    if (rows.has(key)) rows.get(key).more += 1;
    else rows.set(key, { key, line, more: 0 });
  }
  return [...rows.values()];
}

function showLatest() {
  keyed(byId("calls"), latest.length ? latest : [{ key: "" }], (row) => row.key, newCall, fillCall);
}

const isPointedAt = (node) =>
  matchMedia("(hover: hover)").matches && node.matches(":hover") && node.querySelector("button");

function newCall({ line }) {
  if (!line) return el("li", { class: "none" }, "No failed calls.");
  const item = el(
    "li",
    {},
    el(
      "button",
      { type: "button", onclick: () => open("call", item.requestId) },
      el("time", { "data-part": "time" }),
      el(
        "span",
        { class: "what" },
        el("b", {}, line.model ?? "no model"),
        " ",
        el("span", { class: "outcome" }, outcome(line)),
      ),
      el("span", { class: "took", "data-part": "took" }),
      el("span", { class: "tries", "data-part": "tries" }),
      el("span", { class: "reason", "data-part": "reason" }),
    ),
  );
  return item;
}

function fillCall(item, { line, more }) {
  if (!line) return;
  item.requestId = line.request_id;
  const { time, took, tries, reason } = parts(item);
  setText(time, line.timestamp ? clock(instant(line.timestamp)) : "");
  setText(took, more ? `and ${count(more)} more` : seconds(line.duration_s));
  const attempts = line.attempts.length
    ? `${counted(line.attempts.length, "attempt")}: ${tried(line)}`
    : "no attempt";
  const fallback = fallbackOf(line);
  setText(tries, fallback === null ? attempts : `${attempts} · fallback: ${fallback}`);
  setText(reason, line.reason ?? "");
}

const outcome = (line) => words(line.refused_by ? `refused by ${line.refused_by}` : line.outcome);
const tried = (line) => [...new Set(line.attempts.map((attempt) => attempt.deployment))].join(", ");

/** Fills the dialog of a call. */
export async function showCall(id) {
  setText(byId("call-head"), `Call ${id}`);
  byId("call-body").replaceChildren(el("p", {}, "Loading…"));
  const content = await loaded(async () => waterfall(await get(`admin/calls/${encodeURIComponent(id)}`)));
  byId("call-body").replaceChildren(...content);
}

/** The elements that `make` returns, or an error's text in their place. */
export async function loaded(make) {
  try {
    return await make();
  } catch (error) {
    const problem = error instanceof Refused ? error.message : `The gateway is unreachable: ${error.message}.`;
    return [el("p", { class: "error", role: "alert" }, problem)];
  }
}

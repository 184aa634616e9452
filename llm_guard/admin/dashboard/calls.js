// The failed calls, newest first; each opens its waterfall.

import { Refused, ask } from "./api.js";
import { byId, el, keyed, parts, setText } from "./dom.js";
import { clock, count, counted, instant, seconds, words } from "./format.js";
import { gotInstead, waterfall } from "./waterfall.js";

const SHOWN = 10;

let latest = [];

export function showCalls({ calls, kept_failed }) {
  latest = folded(calls).slice(0, SHOWN);
  setText(byId("calls-count"), kept_failed ? `${count(kept_failed)} kept, newest first` : "none kept");
  // Who is about to press one does not want it to move away under the pointer.
  if (!isPointedAt(byId("calls"))) showLatest();
}

export function prepareCalls() {
  byId("calls").addEventListener("pointerleave", showLatest);
}

/**
 * Calls for which nobody was asked are the consequence of something, and come in hundreds: one line for all of them
 * that were refused for the same reason. The calls that tell the cause each have their own.
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
  if (!line) return el("li", { class: "none" }, "No call has failed.");
  const item = el(
    "li",
    {},
    el(
      "button",
      { type: "button", onclick: () => open(item.requestId) },
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
      el("span", { class: "why", "data-part": "why" }),
    ),
  );
  return item;
}

function fillCall(item, { line, more }) {
  if (!line) return;
  item.requestId = line.request_id;
  const { time, took, tries, why } = parts(item);
  setText(time, line.timestamp ? clock(instant(line.timestamp)) : "");
  setText(took, more ? `and ${counted(more, "other")}` : seconds(line.duration_s));
  const tried = line.attempts.length
    ? `${counted(line.attempts.length, "attempt")}: ${asked(line)}`
    : "nobody was asked";
  const instead = gotInstead(line);
  setText(tries, instead === null ? tried : `${tried} · got ${instead}`);
  setText(why, line.reason ?? "");
}

const outcome = (line) => words(line.refused_by ? `refused by ${line.refused_by}` : line.outcome);
const asked = (line) => [...new Set(line.attempts.map((attempt) => attempt.deployment))].join(", ");

async function open(id) {
  setText(byId("call-head"), `Call ${id}`);
  byId("call-body").replaceChildren(el("p", {}, "Asking…"));
  byId("call").showModal();
  try {
    const line = await ask(`admin/calls/${encodeURIComponent(id)}`);
    byId("call-body").replaceChildren(...waterfall(line));
  } catch (error) {
    const why = error instanceof Refused ? error.message : `the gateway is away: ${error.message}`;
    byId("call-body").replaceChildren(el("p", { class: "error", role: "alert" }, why));
  }
}

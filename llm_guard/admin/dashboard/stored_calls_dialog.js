// The dialog that lists stored calls, newest first: request, last failure, and the operator's actions.

import { Refused, get } from "./api.js";
import { act } from "./actions.js";
import { byId, el, keyed, mark, parts, setHidden, setMark, setText } from "./dom.js";
import { count, counted, moment, words } from "./format.js";

const SHOWN = 50;
const MARKS = { dead: "bad", queued: "none", running: "warn", answered: "well" };
const TITLES = { dead_letter: "Dead letters", deferred: "Deferred calls" };

const one = ({ id }) => ({ ids: [id] });
const whole = ({ purpose }) => ({ filter: { purpose } });

const REQUEUE = {
  name: "Requeue",
  path: "admin/dead-letters/requeue",
  effect: "Executes the call again, with the current provider keys, at the rate store.dead_letters.pace.",
  body: one,
};
const DELETE = {
  name: "Delete",
  path: "admin/dead-letters/delete",
  effect: "Deletes the call. It cannot be executed again.",
  body: one,
};
const REQUEUE_ALL = {
  ...REQUEUE,
  name: "Requeue all",
  effect: "Executes all dead letters again, with the current provider keys, at the rate store.dead_letters.pace.",
  body: whole,
};
const DELETE_ALL = {
  ...DELETE,
  name: "Delete all",
  effect: "Deletes all of them, including queued ones.",
  body: whole,
};

let purpose = "dead_letter";

/** `chosen`: dead_letter or deferred. */
export function openStoredCalls(chosen) {
  purpose = chosen;
  setText(byId("stored-dialog-head"), TITLES[purpose]);
  setText(byId("stored-summary"), "Loading…");
  byId("stored-list").replaceChildren();
  delete byId("stored-list").keyedElements;
  byId("stored-dialog").showModal();
  refreshStoredCalls();
}

/** Reloads the list, if it is open. */
export async function refreshStoredCalls() {
  if (!byId("stored-dialog").open) return;
  const wanted = purpose;
  try {
    const found = await get(`admin/dead-letters?purpose=${wanted}&limit=${SHOWN}`);
    if (wanted === purpose) show(found);
  } catch (error) {
    const problem = error instanceof Refused ? error.message : `The gateway is unreachable: ${error.message}.`;
    setText(byId("stored-summary"), problem);
  }
}

export function prepareStoredCalls() {
  for (const action of [REQUEUE_ALL, DELETE_ALL]) {
    const press = () => act(action, { purpose }, TITLES[purpose]);
    byId("stored-all").append(el("button", { type: "button", class: "quiet change", onclick: press }, action.name));
  }
}

function show({ calls, count: all }) {
  const states = Object.entries(all).filter(([key]) => key.startsWith(`${purpose}/`));
  const total = states.reduce((sum, [, number]) => sum + number, 0);
  const counts = states.map(([key, number]) => `${count(number)} ${key.split("/")[1]}`).join(", ");
  const shown = `Showing the newest ${count(calls.length)}; GET /admin/dead-letters lists all.`;
  setText(byId("stored-summary"), total ? `${counts}.${total > calls.length ? ` ${shown}` : ""}` : "None stored.");
  setHidden(byId("stored-all"), total === 0);
  keyed(byId("stored-list"), calls, ({ id }) => id, newCall, fillCall);
}

function newCall(call) {
  const button = (action) =>
    el(
      "button",
      {
        type: "button",
        class: "quiet change",
        "aria-label": `${action.name}: ${call.id}`,
        "data-part": action.name,
        onclick: () => act(action, call, call.id),
      },
      action.name,
    );
  const { model, route, path, client, stream, request_id } = call;
  const via = model === null || model === route ? "" : ` via ${route}`;
  return el(
    "li",
    {},
    el(
      "p",
      { class: "state" },
      el("b", {}, model ?? route),
      `${via} `,
      mark("none"),
      el("span", { "data-part": "state" }),
    ),
    el("p", { class: "reason", "data-part": "reason" }),
    el("p", { class: "tries", "data-part": "tries" }),
    el(
      "p",
      { class: "tries" },
      [path, stream ? "stream" : null, client, `call ${request_id}`, call.id].filter(Boolean).join(" · "),
    ),
    el("p", { class: "row acts" }, button(REQUEUE), button(DELETE)),
  );
}

function fillCall(item, call) {
  const { state, last_failure: failure, received, last_failed, attempts, executions, due, deadline, answered } = call;
  const places = parts(item);
  setMark(item.querySelector(".mark"), MARKS[state] ?? "none");
  setText(places.state, state);
  setText(places.reason, failure === null ? "" : [words(failure.kind), failure.detail].filter(Boolean).join(": "));
  const times = [
    `received ${moment(received)}`,
    last_failed === null ? null : `last failed ${moment(last_failed)}`,
    counted(attempts, "attempt"),
    executions ? `executed again ${counted(executions, "time")}` : null,
    state === "queued" && due !== null ? `due ${moment(due)}` : null,
    state === "queued" && deadline !== null ? `deadline ${moment(deadline)}` : null,
    answered === null ? null : `succeeded ${moment(answered)}`,
  ];
  setText(places.tries, times.filter(Boolean).join(" · "));
  setHidden(places[REQUEUE.name], state !== "dead");
  setHidden(places[DELETE.name], state === "running");
}

// The list of kept calls, newest first: what each has asked for, how it has failed, and what may be done with it.

import { Refused, ask } from "./api.js";
import { act } from "./actions.js";
import { byId, el, keyed, mark, parts, setHidden, setMark, setText } from "./dom.js";
import { count, counted, moment, words } from "./format.js";

const SHOWN = 50;
const MARKS = { dead: "bad", queued: "none", running: "warn", answered: "well" };
const TITLES = { dead_letter: "Dead letters", deferred: "Calls that are answered later" };

const one = ({ id }) => ({ ids: [id] });
const whole = ({ purpose }) => ({ filter: { purpose } });

const REQUEUE = {
  name: "Ask again",
  path: "admin/dead-letters/requeue",
  what: "It is asked for once more, with the keys of today, as soon as its turn comes (store.dead_letters.pace).",
  body: one,
};
const DELETE = {
  name: "Delete",
  path: "admin/dead-letters/delete",
  what: "It is deleted, and cannot be asked for again.",
  body: one,
};
const REQUEUE_ALL = {
  ...REQUEUE,
  name: "Ask for all again",
  what: "All that are dead are asked for once more, one by one (store.dead_letters.pace), with the keys of today.",
  body: whole,
};
const DELETE_ALL = {
  ...DELETE,
  name: "Delete all",
  what: "All of them are deleted, those that wait too.",
  body: whole,
};

let purpose = "dead_letter";

/** `chosen`: dead_letter or deferred. */
export function openLetters(chosen) {
  purpose = chosen;
  setText(byId("letters-head"), TITLES[purpose]);
  setText(byId("letters-said"), "Asking…");
  byId("letters-list").replaceChildren();
  delete byId("letters-list").keyedElements;
  byId("letters").showModal();
  refreshLetters();
}

/** Where the list is open, it is asked for anew. */
export async function refreshLetters() {
  if (!byId("letters").open) return;
  const wanted = purpose;
  try {
    const said = await ask(`admin/dead-letters?purpose=${wanted}&limit=${SHOWN}`);
    if (wanted === purpose) show(said);
  } catch (error) {
    setText(byId("letters-said"), error instanceof Refused ? error.message : `The gateway is away: ${error.message}`);
  }
}

export function prepareLetters() {
  for (const action of [REQUEUE_ALL, DELETE_ALL]) {
    const press = () => act(action, { purpose }, TITLES[purpose]);
    byId("letters-all").append(el("button", { type: "button", class: "quiet change", onclick: press }, action.name));
  }
}

function show({ letters, count: all }) {
  const states = Object.entries(all).filter(([key]) => key.startsWith(`${purpose}/`));
  const total = states.reduce((sum, [, number]) => sum + number, 0);
  const said = states.map(([key, number]) => `${count(number)} ${key.split("/")[1]}`).join(", ");
  const rest = total > letters.length ? ` The newest ${count(letters.length)}; GET /admin/dead-letters has all.` : "";
  setText(byId("letters-said"), total ? `${said}.${rest}` : "None is kept.");
  setHidden(byId("letters-all"), total === 0);
  keyed(byId("letters-list"), letters, ({ id }) => id, newLetter, fillLetter);
}

function newLetter(letter) {
  const button = (action) =>
    el(
      "button",
      {
        type: "button",
        class: "quiet change",
        "aria-label": `${action.name}: ${letter.id}`,
        "data-part": action.name,
        onclick: () => act(action, letter, letter.id),
      },
      action.name,
    );
  const { model, route, path, client, stream, request_id } = letter;
  const via = model === null || model === route ? "" : ` by ${route}`;
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
    el("p", { class: "why", "data-part": "why" }),
    el("p", { class: "tries", "data-part": "tries" }),
    el(
      "p",
      { class: "tries" },
      [path, stream ? "a stream" : null, client, `call ${request_id}`, letter.id].filter(Boolean).join(" · "),
    ),
    el("p", { class: "row acts" }, button(REQUEUE), button(DELETE)),
  );
}

function fillLetter(item, letter) {
  const { state, last_failure: failure, received, last_failed, attempts, rounds, due, deadline, answered } = letter;
  const places = parts(item);
  setMark(item.querySelector(".mark"), MARKS[state] ?? "none");
  setText(places.state, state);
  setText(places.why, failure === null ? "" : [words(failure.kind), failure.detail].filter(Boolean).join(": "));
  const times = [
    `received ${moment(received)}`,
    last_failed === null ? null : `last failed ${moment(last_failed)}`,
    counted(attempts, "attempt"),
    rounds ? `asked for ${counted(rounds, "time")} since` : null,
    state === "queued" && due !== null ? `next ${moment(due)}` : null,
    state === "queued" && deadline !== null ? `until ${moment(deadline)}` : null,
    answered === null ? null : `answered ${moment(answered)}`,
  ];
  setText(places.tries, times.filter(Boolean).join(" · "));
  setHidden(places[REQUEUE.name], state !== "dead");
  setHidden(places[DELETE.name], state === "running");
}

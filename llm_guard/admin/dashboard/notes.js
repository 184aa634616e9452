// What wants an operator's eye: alerts, and what operators hold back themselves.

import { act } from "./actions.js";
import { announce, byId, el, keyed, mark, parts, setHidden, setMark, setText } from "./dom.js";
import { moment, words } from "./format.js";
import { showFiring } from "./status.js";

const OF_SEVERITY = { critical: "bad", warning: "warn", info: "none" };

const RESOLVED_SHOWN = 4;

const SILENCE = {
  name: "Silence",
  path: "admin/alerts/silence",
  what: "Nobody is told of this alert. It goes on being watched, and is shown here.",
  ends: true,
  mustEnd: true,
  body: ({ alert, subject }) => ({ alert, subject }),
};

export function showAlerts({ firing, resolved }) {
  const worstFirst = [...firing].sort((one, other) => weight(one) - weight(other));
  const rows = [...worstFirst, ...resolved.slice(0, RESOLVED_SHOWN)];
  setText(byId("alerts-count"), firing.length ? `${firing.length} firing` : "none firing");
  showFiring(firing.length, OF_SEVERITY[worstFirst.find((alert) => !alert.is_silenced)?.severity] ?? "none");
  tellOfNews(firing, resolved);
  keyed(byId("alerts"), rows.length ? rows : [{ id: "" }], (alert) => alert.id, newAlert, fillAlert);
}

let told = null;

/** Once for each that fires or resolves; the list itself changes every second, and would never be silent. */
function tellOfNews(firing, resolved) {
  const before = told;
  told = new Map([...resolved, ...firing].map((alert) => [alert.id, alert]));
  if (before === null) return;
  const news = [...told.values()].filter(({ id, state }) => before.get(id)?.state !== state);
  if (news.length) announce(news.map((alert) => `Alert ${alert.state}: ${title(alert)}`).join("; "));
}

function newAlert(alert) {
  const note = newNote();
  const press = () => act(SILENCE, alert, title(alert));
  const label = `Silence: ${title(alert)}`;
  const looks = { type: "button", class: "quiet change", "aria-label": label, hidden: true };
  note.append(el("button", { ...looks, onclick: press }, "Silence"));
  return note;
}

function fillAlert(note, alert) {
  if (alert.id === "") return fill(note, "none", "Nothing has fired since the start.", "", "");
  const isFiring = alert.state === "firing";
  const kind = isFiring ? (OF_SEVERITY[alert.severity] ?? "warn") : "well";
  const since = `${isFiring ? "since" : "from"} ${moment(alert.since)}`;
  const until = isFiring ? "" : ` to ${moment(alert.resolved_at)}`;
  const word = `${alert.severity}, ${isFiring ? "firing" : "resolved"}${alert.is_silenced ? ", silenced" : ""}`;
  fill(note, kind, title(alert), `${word} ${since}${until}:`, summary(alert));
  setHidden(note.lastElementChild, !isFiring || alert.is_silenced);
}

/** Without the subject, which stands above it. */
function summary({ summary: text, subject }) {
  return text.startsWith(`${subject}: `) ? text.slice(subject.length + 2) : text;
}

const weight = ({ severity }) => Object.keys(OF_SEVERITY).indexOf(severity);
const title = ({ alert, subject }) => `${words(alert)}: ${subject}`;

export function showHolds(snapshot) {
  const holds = snapshot.deployments.flatMap((one) => [...held(one), ...forced(one)]);
  setText(byId("holds-count"), holds.length ? `${holds.length} now` : "none");
  const nothing = { key: "", what: "No deployment is drained, benched or forced.", word: "", detail: "" };
  keyed(
    byId("holds"),
    holds.length ? holds : [nothing],
    (hold) => hold.key,
    newNote,
    (note, hold) => {
      fill(note, hold.key ? "held" : "none", hold.what, hold.word, hold.detail);
    },
  );
}

function held({ deployment, hold }) {
  if (hold === null) return [];
  const detail = `${hold.reason} (${hold.who}, since ${moment(hold.since)})`;
  return [{ key: `hold ${deployment}`, what: deployment, word: `${hold.kind}${ending(hold.until)}:`, detail }];
}

function forced({ deployment, breaker }) {
  if (!breaker.is_forced) return [];
  const { reason, who, since } = breaker;
  const detail = reason === null ? "by the config" : `${reason} (${who}, since ${moment(since)})`;
  return [
    { key: `force ${deployment}`, what: deployment, word: `${words(breaker.state)}${ending(breaker.until)}:`, detail },
  ];
}

const ending = (until) => (until === null ? " until taken back" : ` until ${moment(until)}`);

function newNote() {
  return el(
    "li",
    {},
    mark("none"),
    el("b", { "data-part": "what" }),
    el(
      "p",
      { class: "detail" },
      el("span", { class: "state", "data-part": "word" }),
      " ",
      el("span", { "data-part": "detail" }),
    ),
  );
}

function fill(note, kind, what, word, detail) {
  note.dataset.state = kind;
  note.toggleAttribute("data-quiet", word === "");
  setMark(note.firstElementChild, kind);
  setText(parts(note).what, what);
  setText(parts(note).word, word);
  setText(parts(note).detail, detail);
}

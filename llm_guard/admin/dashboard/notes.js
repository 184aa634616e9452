// Lists of alerts, and of operator overrides: holds and forced breakers.

import { act } from "./actions.js";
import { announce, byId, el, keyed, mark, parts, rebuild, setHidden, setMark, setText } from "./dom.js";
import { moment, words } from "./format.js";
import { link } from "./links.js";
import { showFiring } from "./status.js";

const OF_SEVERITY = { critical: "bad", warning: "warn", info: "none" };

const RESOLVED_SHOWN = 4;

const SILENCE = {
  name: "Silence",
  path: "admin/alerts/silence",
  effect: "Sends no notices of this alert. It is still evaluated and shown here.",
  ends: true,
  mustEnd: true,
  body: ({ alert, subject }) => ({ alert, subject }),
};

export function showAlerts({ firing, resolved }) {
  const worstFirst = [...firing].sort((one, other) => weight(one) - weight(other));
  const rows = [...worstFirst, ...resolved.slice(0, RESOLVED_SHOWN)];
  setText(byId("alerts-count"), firing.length ? `${firing.length} firing` : "none firing");
  showFiring(firing.length, OF_SEVERITY[worstFirst.find((alert) => !alert.is_silenced)?.severity] ?? "none");
  announceNews(firing, resolved);
  keyed(byId("alerts"), rows.length ? rows : [{ id: "" }], (alert) => alert.id, newAlert, fillAlert);
}

let before = null;

/** Announces each alert once when it fires or resolves; the list itself changes too often for a live region. */
function announceNews(firing, resolved) {
  const [earlier, now] = [before, new Map([...resolved, ...firing].map((alert) => [alert.id, alert]))];
  before = now;
  if (earlier === null) return;
  const news = [...now.values()].filter(({ id, state }) => earlier.get(id)?.state !== state);
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
  if (alert.id === "") return fill(note, "none", ["No alert has fired since the start."], "", "");
  const isFiring = alert.state === "firing";
  const kind = isFiring ? (OF_SEVERITY[alert.severity] ?? "warn") : "well";
  const since = `${isFiring ? "since" : "from"} ${moment(alert.since)}`;
  const until = isFiring ? "" : ` to ${moment(alert.resolved_at)}`;
  const word = `${alert.severity}, ${isFiring ? "firing" : "resolved"}${alert.is_silenced ? ", silenced" : ""}`;
  fill(note, kind, [`${words(alert.alert)}: `, alert.subject], `${word} ${since}${until}:`, summary(alert));
  setHidden(note.lastElementChild, !isFiring || alert.is_silenced);
}

/** The summary without the subject, which is the title. */
function summary({ summary: text, subject }) {
  return text.startsWith(`${subject}: `) ? text.slice(subject.length + 2) : text;
}

const weight = ({ severity }) => Object.keys(OF_SEVERITY).indexOf(severity);
const title = ({ alert, subject }) => `${words(alert)}: ${subject}`;

let pages = new Map(); // name -> the view that shows it

export function showOverrides(snapshot) {
  pages = new Map([
    ...snapshot.models.map(({ model }) => [model, "model"]),
    ...snapshot.deployments.map(({ deployment }) => [deployment, "deployment"]),
  ]);
  const overrides = snapshot.deployments.flatMap((one) => [...held(one), ...forced(one)]);
  setText(byId("overrides-count"), overrides.length ? String(overrides.length) : "none");
  const nothing = { key: "", what: "No deployment is drained, cordoned or forced.", word: "", detail: "" };
  keyed(
    byId("overrides"),
    overrides.length ? overrides : [nothing],
    (one) => one.key,
    newNote,
    (note, one) => {
      fill(note, one.key ? "held" : "none", [one.what], one.word, one.detail);
    },
  );
}

function held({ deployment, hold }) {
  if (hold === null) return [];
  const detail = `${hold.reason} (${hold.operator}, since ${moment(hold.since)})`;
  return [{ key: `hold ${deployment}`, what: deployment, word: `${hold.kind}${ending(hold.until)}:`, detail }];
}

function forced({ deployment, breaker }) {
  if (!breaker.is_forced) return [];
  const { reason, operator, since } = breaker;
  const detail = reason === null ? "by the config" : `${reason} (${operator}, since ${moment(since)})`;
  return [
    { key: `force ${deployment}`, what: deployment, word: `${words(breaker.state)}${ending(breaker.until)}:`, detail },
  ];
}

const ending = (until) => (until === null ? ", no end" : ` until ${moment(until)}`);

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

/** `what`: texts; those that name a model or a deployment lead to its page. */
function fill(note, kind, what, word, detail) {
  note.dataset.state = kind;
  note.toggleAttribute("data-quiet", word === "");
  setMark(note.firstElementChild, kind);
  const views = what.map((text) => pages.get(text) ?? null);
  rebuild(parts(note).what, [what, views], () =>
    what.map((text, at) => (views[at] ? link(views[at], text, text, { class: "name" }) : text)),
  );
  setText(parts(note).word, word);
  setText(parts(note).detail, detail);
}

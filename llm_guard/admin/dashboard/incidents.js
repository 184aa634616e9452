// The incident view: a card for each cause of what goes wrong now, with the remedy and the buttons that help. Hidden
// when nothing is wrong.

import { byId, el, keyed, mark, parts, rebuild, setHidden, setMark, setText } from "./dom.js";
import { errorList, facts, liftButtons, listed, placeOf } from "./evidence.js";
import { counted, moment, share, words } from "./format.js";
import { link } from "./links.js";
import { showCauses } from "./status.js";

const OF_SEVERITY = { critical: "bad", warning: "warn", info: "none" };
const SHOWN = 3;
const BUTTONS = 2;

let latest = [];
let areAllShown = false;

export function prepareIncidents() {
  byId("incidents-more").addEventListener("click", () => {
    areAllShown = !areAllShown;
    show();
  });
}

export function showIncidents(incidents) {
  latest = incidents;
  show();
  showCauses(incidents.length);
}

function show() {
  const more = latest.length - SHOWN;
  setHidden(byId("incidents-part"), latest.length === 0);
  setText(byId("incidents-count"), counted(latest.length, "cause"));
  keyed(byId("incidents"), areAllShown ? latest : latest.slice(0, SHOWN), ({ id }) => id, newCard, fillCard);
  setHidden(byId("incidents-more"), more <= 0);
  setText(byId("incidents-more"), areAllShown ? "Show fewer" : `Show ${counted(more, "more cause")}`);
  byId("incidents-more").setAttribute("aria-expanded", String(areAllShown));
}

function newCard() {
  const place = (name, tag, looks = {}) => el(tag, { "data-part": name, ...looks });
  return el(
    "li",
    { class: "incident" },
    el("h3", {}, mark("none"), place("title", "span"), " ", place("severity", "small")),
    place("facts", "p", { class: "cost" }),
    place("doing", "p", { class: "doing" }),
    el(
      "div",
      { class: "remedy" },
      el("p", {}, el("b", {}, "What to do: "), place("remedy", "span")),
      place("actions", "p", { class: "row acts change" }),
    ),
    el("details", {}, place("summary", "summary"), place("evidence", "div")),
  );
}

function fillCard(card, incident) {
  const places = parts(card);
  const [title, figures] = [incident.title, facts(incident)];
  const kind = incident.kind === "override" ? "held" : (OF_SEVERITY[incident.severity] ?? "warn");
  card.dataset.state = kind;
  setMark(card.querySelector(".mark"), kind);
  setText(places.title, title);
  setText(places.severity, incident.severity);
  const others = figures.filter((text) => !title.includes(text));
  rebuild(places.facts, [incident.models, incident.share, others], () => hits(incident, others));
  setText(places.doing, `The gateway: ${incident.doing.join(" ")}`);
  setText(places.remedy, incident.remedy);
  rebuild(places.actions, incident.actions.slice(0, BUTTONS), liftButtons);
  setHidden(places.actions, incident.actions.length === 0);
  setText(places.summary, summary(incident));
  rebuild(places.evidence, incident, evidence);
}

function hits({ models, share: hit }, others) {
  const rest = others.join(" · ");
  if (!models.length) return [rest];
  const begin = hit === null || hit === 0 ? "concerns " : `hits ${share(hit)} of the last minute’s calls of `;
  return [begin, ...listed(models.map((name) => link("model", name, name))), rest && ` · ${rest}`];
}

function summary({ errors, deployments, alerts }) {
  return [
    errors.length ? `Last ${counted(errors.length, "provider error")}` : "Details",
    deployments.length ? counted(deployments.length, "deployment") : "",
    alerts.length ? counted(alerts.length, "alert") : "",
  ]
    .filter(Boolean)
    .join(" · ");
}

function evidence({ errors, deployments, alerts, restrictions, actions }) {
  return [
    part("Last errors of the provider, and the calls that failed", errors.length, () => errorList(errors)),
    part("Deployments", deployments.length, () => links(deployments)),
    part("Restrictions", restrictions.length, () => list(restrictions.map(restrictionLine))),
    part("Alerts", alerts.length, () => list(alerts.map(alertLine))),
    part("More actions", actions.length > BUTTONS, () =>
      el("p", { class: "row acts" }, ...liftButtons(actions.slice(BUTTONS))),
    ),
  ].filter(Boolean);
}

const part = (title, isShown, make) => (isShown ? el("section", {}, el("h4", {}, title), make()) : null);
const list = (lines) => el("ul", {}, ...lines.map((line) => el("li", {}, line)));
const links = (labels) =>
  el("p", { class: "links" }, ...labels.flatMap((label) => [link("deployment", label, label), " "]));

function restrictionLine(one) {
  const waiting = one.waiting ? ` · ${counted(one.waiting, "call")} waiting` : "";
  return `${[words(one.kind), placeOf(one)].filter(Boolean).join(", ")}: ${one.cause}${waiting}. ${one.ends}`;
}

const alertLine = ({ summary: text, severity, since, is_silenced: isSilenced }) =>
  `${text} (${severity}${isSilenced ? ", silenced" : ""}, since ${moment(since)})`;

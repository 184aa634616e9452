// The effective config of a model or an upstream, with the line of the file that sets each key.

import { get } from "./api.js";
import { loaded } from "./calls.js";
import { el } from "./dom.js";
import { counted } from "./format.js";
import { none } from "./parts.js";

/** Shows the keys of these entries in `place`: {model, upstream}, one of which may be missing. */
export async function showConfig(place, names) {
  const query = new URLSearchParams(names);
  place.replaceChildren(...(await loaded(async () => content(await get(`admin/config/keys?${query}`), names))));
}

function content({ source, problem, keys }, { upstream, model }) {
  const entries = [
    upstream === undefined ? null : `upstreams.${upstream}.`,
    model === undefined ? null : `models.${model}.`,
  ].filter(Boolean);
  const where = problem === null ? `Lines of ${source}.` : `No lines: ${problem}.`;
  return [
    el("p", { class: "cost" }, `${where} Durations in seconds, sizes in bytes.`),
    ...entries.flatMap((entry) => sectionOf(entry, keys, problem === null)),
  ];
}

/** `isLocated`: the lines are known. */
function sectionOf(entry, keys, isLocated) {
  const ours = keys.filter(({ key }) => key.startsWith(entry));
  const unset = ours.filter(({ origin }) => origin === "default");
  const set = ours.filter(({ origin }) => origin !== "default");
  const rows = (found) => table(entry, found, isLocated);
  return [
    el("h4", {}, entry.slice(0, -1)),
    set.length ? rows(set) : none("The file sets no key of it."),
    unset.length ? el("details", {}, el("summary", {}, counted(unset.length, "default")), rows(unset)) : null,
  ].filter(Boolean);
}

function table(entry, keys, isLocated) {
  const names = ["Key", "Value", ...(isLocated ? ["Set by"] : [])].map((name) => el("th", { scope: "col" }, name));
  return el(
    "table",
    { class: "keys" },
    el("thead", {}, el("tr", {}, ...names)),
    el("tbody", {}, ...keys.map((key) => row(entry, key, isLocated))),
  );
}

function row(entry, { key, value, origin, set_by: setBy, line }, isLocated) {
  const from = setBy === key ? "" : `, ${setBy}`;
  const source = { file: `line ${line}${from}`, default: "default", other: "not by the file as it is now" }[origin];
  const text = typeof value === "string" ? value : JSON.stringify(value);
  const cells = isLocated ? [text, source] : [text];
  return el("tr", {}, el("th", { scope: "row" }, key.slice(entry.length)), ...cells.map((cell) => el("td", {}, cell)));
}

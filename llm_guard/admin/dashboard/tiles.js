// Tiles: a title, a state as a shape and a word, lines of text, and buttons.

import { act } from "./actions.js";
import { el, keyed, mark, parts, setHidden, setMark, setText } from "./dom.js";

/** Makes buttons of actions; each opens the dialog that asks for a reason. */
export const asButtons = (actions) =>
  actions.map((action) => ({
    name: action.name,
    isOffered: action.isOffered,
    press: (target, title) => act(action, target, title),
    changes: true,
  }));

const counting = new Map();

/**
 * Makes `list` hold a tile for each item. `title(item)` must be unique. `look(item)` returns {kind, word, meaning}, and
 * a text for each name in `lines`; empty ones are not shown. `buttons`: {name, press(item, title), isOffered(item),
 * changes}, the last two are optional. `next(item, passed_s)`, optional, returns a countdown's text, `passed_s` after
 * the item was fetched; it is called between polls as well. `heading(title, item)`, optional, returns the heading's
 * content, an element or several.
 */
export function showTiles(list, items, plan) {
  const make = (item) => newTile(item, plan.title(item), plan);
  keyed(list, items, plan.title, make, (tile, item) => fillTile(tile, item, plan));
  if (!plan.next) return;
  counting.set(list, { next: plan.next, shownAt: performance.now() });
  countDown();
}

/** Updates all countdowns. */
export function countDown() {
  for (const [list, { next, shownAt }] of counting) {
    const passed_s = (performance.now() - shownAt) / 1000;
    for (const tile of list.children) setText(parts(tile).next, next(tile.item, passed_s));
  }
}

function newTile(item, title, { lines, buttons, heading }) {
  const [word, meaning] = [el("b", { "data-part": "word" }), el("span", { "data-part": "meaning" })];
  const tile = el(
    "li",
    { class: "tile" },
    el("h3", {}, ...[heading ? heading(title, item) : title].flat()),
    el("p", { class: "state" }, mark("none"), word, " ", meaning),
    el("p", { class: "next", "data-part": "next" }),
    ...lines.map((name) => el("p", { class: "facts", "data-part": name })),
  );
  const row = buttons.map(({ name, press, changes }) => {
    const onclick = () => press(tile.item, title);
    const label = `${name}: ${title}`;
    const kind = changes ? "quiet change" : "quiet";
    return el("button", { type: "button", class: kind, "aria-label": label, "data-part": name, onclick }, name);
  });
  if (row.length) tile.append(el("p", { class: "row acts" }, ...row));
  return tile;
}

function fillTile(tile, item, { lines, buttons, look }) {
  const [places, seen] = [parts(tile), look(item)];
  tile.item = item;
  tile.dataset.state = seen.kind;
  setMark(tile.querySelector(".mark"), seen.kind);
  for (const name of ["word", "meaning", ...lines]) setText(places[name], seen[name]);
  for (const { name, isOffered } of buttons) setHidden(places[name], isOffered !== undefined && !isOffered(item));
}

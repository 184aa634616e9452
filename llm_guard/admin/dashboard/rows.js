// Long tables and lists of tiles show what matters most, and a button that shows the rest.

import { byId, setHidden, setText } from "./dom.js";

const MOST = 25; // rows without a button
const SHOWN = 15;

const expanded = new Set();

/**
 * The items to show in the table or list with this id, in their order: all, or those with the highest weight. `again`
 * shows it; `noun` names the items.
 */
export function rowsOf(id, items, weight, noun, again) {
  const button = byId(`${id}-more`);
  button.onclick = () => {
    if (!expanded.delete(id)) expanded.add(id);
    again();
  };
  setHidden(button, items.length <= MOST);
  setText(button, expanded.has(id) ? "Show fewer" : `Show all ${items.length} ${noun}`);
  button.setAttribute("aria-expanded", String(expanded.has(id)));
  if (items.length <= MOST || expanded.has(id)) return items;
  const heaviest = [...items].sort((one, other) => weight(other) - weight(one)).slice(0, SHOWN);
  const chosen = new Set(heaviest);
  return items.filter((item) => chosen.has(item));
}

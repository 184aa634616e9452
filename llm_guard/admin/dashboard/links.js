// Dialogs with an address of their own: #deployment=LABEL, #model=NAME and #call=ID. The back button closes them, and a
// reload opens them again.

import { byId, el } from "./dom.js";

const views = new Map();

/** `found`: {name: show(value)}; the dialog of a view has its name as id. */
export function prepareLinks(found) {
  for (const [name, show] of Object.entries(found)) {
    const dialog = byId(name);
    views.set(name, { dialog, show });
    dialog.addEventListener("close", () => current()?.name === name && leave());
  }
  window.addEventListener("popstate", follow);
}

/** Shows the view that the address names, and closes the others. */
export function follow() {
  const wanted = current();
  for (const [name, { dialog }] of views) if (name !== wanted?.name && dialog.open) dialog.close();
  if (!wanted) return;
  const { dialog, show } = views.get(wanted.name);
  if (!dialog.open) dialog.showModal();
  show(wanted.value);
}

/** Opens a view, as a new entry of the browser's history. */
export function open(name, value) {
  history.pushState({ isOurs: true }, "", address(name, value));
  follow();
}

/** A link to a view. */
export function link(name, value, text, attributes = {}) {
  const onclick = (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    open(name, value);
  };
  return el("a", { href: address(name, value), ...attributes, onclick }, text);
}

/** A call's model, which leads to the page of its route; `route` null or "none": it has none. */
export function ofModel(model, route) {
  if (!model) return "no model";
  return !route || route === "none" ? model : link("model", route, model);
}

const address = (name, value) => `#${name}=${encodeURIComponent(value)}`;

function current() {
  const [, name, value] = /^#(\w+)=(.+)$/.exec(location.hash) ?? [];
  if (!views.has(name)) return null;
  try {
    return { name, value: decodeURIComponent(value) };
  } catch {
    return null; // not percent-encoded text
  }
}

function leave() {
  if (history.state?.isOurs) history.back();
  else history.replaceState(null, "", location.pathname + location.search);
}

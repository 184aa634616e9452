// Creates and changes elements. Text from providers and callers never becomes markup.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

/** An element; a child that is no node is text, null is left out. `onclick` and the like take a function. */
export function el(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

export function svg(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** A state as a shape: `well`, `warn`, `bad`, `held` or `none`. Always shown beside its name. */
export function mark(kind) {
  return svg("svg", { class: "mark", "data-mark": kind, "aria-hidden": "true" }, svg("use", { href: `#mark-${kind}` }));
}

export function setMark(node, kind) {
  if (node.dataset.mark === kind) return;
  node.dataset.mark = kind;
  node.firstElementChild.setAttribute("href", `#mark-${kind}`);
}

/** Writes only changes: a screen reader would read a live region again. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function setHidden(node, isHidden) {
  if (node.hidden !== isHidden) node.hidden = isHidden;
}

/**
 * Makes `parent` hold one element for each item, in their order. An item keeps its element, so that focus and hover
 * survive updates.
 */
export function keyed(parent, items, keyOf, make, update) {
  const known = (parent.keyedElements ??= new Map());
  const focused = document.activeElement;
  const wanted = new Set(items.map(keyOf));
  for (const [key, node] of known) {
    if (wanted.has(key)) continue;
    node.remove();
    known.delete(key);
  }
  items.forEach((item, at) => {
    const key = keyOf(item);
    if (!known.has(key)) known.set(key, make(item));
    const node = known.get(key);
    if (parent.children[at] !== node) parent.insertBefore(node, parent.children[at] ?? null);
    update?.(node, item);
  });
  while (parent.children.length > items.length) parent.lastElementChild.remove(); // placeholders
  if (focused !== document.activeElement && parent.contains(focused)) focused.focus({ preventScroll: true });
}

/** Makes the content anew only if its data has changed: focus and selection survive the polls. */
export function rebuild(node, data, make) {
  const text = JSON.stringify(data);
  if (node.madeOf === text) return;
  node.madeOf = text;
  node.replaceChildren(...make(data));
}

/** Announces a text to screen readers. */
export function announce(text) {
  setText(byId("announcement"), text);
}

/** The elements inside `node` that have a `data-part`, by its value. */
export function parts(node) {
  return (node.partElements ??= Object.fromEntries(
    [...node.querySelectorAll("[data-part]")].map((part) => [part.dataset.part, part]),
  ));
}

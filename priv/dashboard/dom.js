// Small pieces that all views are made of. Nothing here, nor anywhere else, makes HTML from text.

// An element: `el("p", {class: "note", onclick: f}, "text", child)`.
export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

export function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

export const byId = (id) => document.getElementById(id);

// Only what has changed is written, so that nothing flickers and a selection stays.
export function setText(node, text) {
  if (node.firstChild === null || node.childNodes.length > 1 || node.firstChild.nodeType !== 3) node.textContent = text;
  else if (node.firstChild.data !== text) node.firstChild.data = text;
}

export function setAttribute(node, name, value) {
  if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

// Keeps the children of `parent` in step with `items`: those that stay are patched in place.
export function keyed(parent, items, key, make, patch) {
  const kept = parent.kept ?? (parent.kept = new Map());
  const wanted = new Set(items.map(key));
  for (const [name, node] of kept) {
    if (!wanted.has(name)) {
      node.remove();
      kept.delete(name);
    }
  }
  let before = parent.firstChild;
  for (const item of items) {
    const name = key(item);
    let node = kept.get(name);
    if (!node) {
      node = make(item);
      kept.set(name, node);
    }
    patch(node, item);
    if (node === before) before = before.nextSibling;
    else parent.insertBefore(node, before);
  }
}

// Numbers for people.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  let unit = 0;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${value >= 100 || unit === 0 ? Math.round(value) : value.toFixed(1)} ${UNITS[unit]}`;
}

export function percent(value) {
  if (value === null || value === undefined) return "–";
  return value >= 100 ? `${Math.round(value)} %` : `${value.toFixed(1)} %`;
}

export function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  const s = Math.floor(ms / 1000);
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (s < 10) return `${(ms / 1000).toFixed(1)} s`;
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

export const count = (number, one, many = `${one}s`) => `${number} ${number === 1 ? one : many}`;

const TIME = new Intl.DateTimeFormat([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const DAY = new Intl.DateTimeFormat([], { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", hourCycle: "h23" });

export const time = (at) => TIME.format(at);
export const day = (at) => (at ? DAY.format(at) : "unknown");

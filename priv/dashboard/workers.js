// The table of workers. Only the rows in sight exist, and each is patched in place: a thousand workers cost as much as the
// thirty that are seen.

import { byId, bytes, duration, el, percent, setAttribute, setText } from "./dom.js";
import { drawSpark, spark } from "./charts.js";

const KEPT = 40;
const BEYOND = 6;

const collator = new Intl.Collator(undefined, { numeric: true });
const byName = (a, b) => collator.compare(a.id, b.id);
const RANK = { unhealthy: 0, unknown: 1, healthy: 2 };

const COLUMNS = [
  { key: "id", name: "Worker", order: byName },
  { key: "os_pid", name: "Pid", order: (a, b) => (a.os_pid ?? 0) - (b.os_pid ?? 0) },
  { key: "cpu", name: "CPU", order: (a, b) => (b.cpu ?? -1) - (a.cpu ?? -1) },
  { key: "memory", name: "Memory", order: (a, b) => b.memory - a.memory },
  { key: "processes", name: "Procs", order: (a, b) => b.processes - a.processes },
  { key: "heartbeat", name: "Heartbeat", order: (a, b) => (RANK[a.heartbeat] ?? 3) - (RANK[b.heartbeat] ?? 3) || (b.latency_ms ?? -1) - (a.latency_ms ?? -1) },
  { key: "restarts", name: "Restarts", order: (a, b) => b.restarts - a.restarts },
  { key: "uptime_ms", name: "Up", order: (a, b) => a.uptime_ms - b.uptime_ms },
];

const past = new Map();
const pool = [];
let all = [];
let shown = [];
let sorted = COLUMNS[0];
let backwards = false;
let wanted = "";
let hottest = 1;

export function state(worker) {
  if (worker.state !== "running") return worker.state;
  if (worker.heartbeat === "unhealthy") return "unhealthy";
  return "running";
}

export function heartbeat(worker) {
  if (worker.heartbeat === "unhealthy") return worker.missed ? `${worker.missed} missed` : "unhealthy";
  if (worker.heartbeat === "healthy") return worker.latency_ms === null ? "healthy" : `${worker.latency_ms} ms`;
  return worker.heartbeat === "unknown" ? "no pong yet" : "";
}

export const find = (id) => all.find((worker) => worker.id === id);

export function setup() {
  const head = byId("head");
  const select = byId("sort");
  for (const column of COLUMNS) {
    const button = el("button", { type: "button", onclick: () => sortBy(column) }, column.name);
    column.head = el("span", { class: `c-${column.key}`, role: "columnheader" }, button);
    head.append(column.head);
    select.append(el("option", { value: column.key }, `Sort: ${column.name.toLowerCase()}`));
  }
  select.addEventListener("change", () => sortBy(COLUMNS.find((column) => column.key === select.value)));
  byId("search").addEventListener("input", (event) => {
    wanted = event.target.value.trim().toLowerCase();
    arrange();
  });
  addEventListener("scroll", draw, { passive: true });
  addEventListener("resize", draw);
}

function sortBy(column) {
  backwards = column === sorted ? !backwards : false;
  sorted = column;
  byId("sort").value = column.key;
  arrange();
}

export function update(workers) {
  all = workers;
  const there = new Set();
  hottest = 1;
  for (const worker of workers) {
    there.add(worker.id);
    let points = past.get(worker.id);
    if (worker.series) points = worker.series.map(([, cpu]) => cpu);
    else points = [...(points ?? []), worker.cpu].slice(-KEPT);
    past.set(worker.id, points);
    if (worker.cpu > hottest) hottest = worker.cpu;
  }
  for (const id of past.keys()) if (!there.has(id)) past.delete(id);
  arrange();
}

function matches(worker) {
  return [worker.id, worker.command, worker.pool ?? "", String(worker.os_pid ?? "")].some((text) => text.toLowerCase().includes(wanted));
}

function arrange() {
  shown = wanted === "" ? all.slice() : all.filter(matches);
  shown.sort((a, b) => (sorted.order(a, b) || byName(a, b)) * (backwards ? -1 : 1));
  for (const column of COLUMNS) {
    const order = column === sorted ? (backwards ? "descending" : "ascending") : "none";
    setAttribute(column.head, "aria-sort", order);
  }
  setText(byId("worker-count"), wanted === "" ? String(all.length) : `${shown.length} of ${all.length}`);
  empty();
  draw();
}

function empty() {
  const node = byId("no-workers");
  node.hidden = shown.length > 0;
  if (shown.length > 0 || node.wanted === wanted) return;
  node.wanted = wanted;
  if (wanted !== "") node.replaceChildren(el("b", {}, "No worker matches"), el("span", {}, `Nothing is called “${wanted}”, runs such a program or has such a pid.`));
  else node.replaceChildren(el("b", {}, "No worker runs"), el("span", {}, "Start one in your supervision tree, and it is here within a second:"),
    el("code", {}, '{Snakepit.Worker, id: "hello", cmd: ["sleep", "600"]}'));
}

// Which rows are in sight follows from where the table is on the screen.
export function draw() {
  const rows = byId("rows");
  const height = matchMedia("(max-width: 720px)").matches ? 62 : 40;
  const total = `${shown.length * height}px`;
  if (rows.style.height !== total) rows.style.height = total;
  const top = rows.getBoundingClientRect().top;
  const first = Math.max(0, Math.floor(-top / height) - BEYOND);
  const last = Math.min(shown.length, Math.ceil((innerHeight - top) / height) + BEYOND);
  const needed = Math.max(0, last - first);
  while (pool.length < needed) pool.push(row(rows));
  // Whose row it is depends on its place alone, so scrolling by one row changes one row.
  const used = new Set();
  for (let index = first; index < last; index += 1) {
    const node = pool[index % pool.length];
    used.add(node);
    const place = `${index * height}px`;
    if (node.style.top !== place) node.style.top = place;
    node.hidden = false;
    patch(node, shown[index], index);
  }
  for (const node of pool) if (!used.has(node)) node.hidden = true;
}

function row(parent) {
  const cell = (name, ...content) => el("span", { class: `c-${name}`, role: "cell" }, ...content);
  const parts = {
    dot: el("i", { class: "dot" }), name: el("b"), command: el("small"), pid: el("span"), cpu: el("span"), spark: spark(),
    memory: el("span"), processes: el("span"), heartbeat: el("span"), restarts: el("span"), up: el("span"),
  };
  const node = el("a", { class: "row", role: "row" },
    cell("id", parts.dot, el("span", { class: "names" }, parts.name, parts.command)),
    cell("os_pid", parts.pid), cell("cpu", parts.spark, parts.cpu), cell("memory", parts.memory),
    cell("processes", parts.processes), cell("heartbeat", parts.heartbeat), cell("restarts", parts.restarts), cell("uptime_ms", parts.up));
  node.parts = parts;
  parent.append(node);
  return node;
}

function patch(node, worker, index) {
  const { parts } = node;
  const now = state(worker);
  setAttribute(node, "href", `#worker=${encodeURIComponent(worker.id)}`);
  setAttribute(node, "data-id", worker.id);
  setAttribute(node, "aria-rowindex", String(index + 1));
  setAttribute(node, "class", `row ${now}`);
  setAttribute(parts.dot, "title", now);
  setText(parts.name, worker.id);
  // Where the program is says less than what it is.
  setText(parts.command, worker.command.replace(/^\S*\//, ""));
  setAttribute(parts.command, "title", worker.command);
  setText(parts.pid, worker.os_pid === null ? "" : String(worker.os_pid));
  setText(parts.cpu, now === "running" || now === "unhealthy" ? percent(worker.cpu) : now);
  drawSpark(parts.spark, past.get(worker.id) ?? [], hottest);
  setText(parts.memory, worker.os_pid === null ? "" : bytes(worker.memory));
  setText(parts.processes, worker.processes > 0 ? String(worker.processes) : "");
  setText(parts.heartbeat, heartbeat(worker));
  setText(parts.restarts, worker.restarts > 0 ? String(worker.restarts) : "");
  setText(parts.up, duration(worker.uptime_ms));
}

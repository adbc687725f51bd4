// The page: asks for the state of everything once per second and hands it to the views.

import { byId, bytes, count, duration, el, keyed, percent, setText, time } from "./dom.js";
import { chart } from "./charts.js";
import * as workers from "./workers.js";
import * as detail from "./detail.js";
import * as history from "./history.js";
import * as actions from "./actions.js";

const INTERVAL = 1000;
const RETRY = 2000;

let paused = false;
let asked = 0;
let timer = null;
let latest = null;
// After a while without looking, the points between are fetched too.
let past = true;

// Order: before anything is fetched, so that the token is in no history and on no screenshot. The cookie has it.
if (location.search.includes("token=")) window.history.replaceState(null, "", location.pathname + location.hash);

export async function fetchJSON(path) {
  const answer = await fetch(path, { headers: { accept: "application/json" }, cache: "no-store" });
  if (answer.status === 401) throw new Error("The token is not valid any more: open the URL from the application's log.");
  if (!answer.ok) throw new Error(`The dashboard answered with status ${answer.status}: ${(await answer.text()).trim()}`);
  return answer.json();
}

async function poll() {
  clearTimeout(timer);
  const number = (asked += 1);
  try {
    const overview = await fetchJSON(past ? "api/overview?past=1" : "api/overview");
    if (number !== asked) return;
    past = false;
    show(overview);
    await detail.refresh(overview.actions);
    live(paused ? "paused" : "live");
    schedule(INTERVAL);
  } catch (error) {
    if (number !== asked) return;
    past = true;
    live("lost");
    banner(error instanceof TypeError ? "No answer from the application. It may have stopped: this page goes on when it is back." : error.message);
    schedule(RETRY);
  }
}

function schedule(after) {
  clearTimeout(timer);
  if (!paused && !document.hidden) timer = setTimeout(poll, after);
}

function live(state) {
  const button = byId("live");
  button.dataset.state = state;
  setText(button.querySelector("span"), { live: "live", paused: "paused", lost: "no connection" }[state]);
}

function banner(text) {
  const node = byId("banner");
  node.hidden = text === "";
  setText(node, text);
}

function show(overview) {
  performance.clearMarks("snakepit:data");
  performance.mark("snakepit:data");
  const first = latest === null;
  latest = overview;
  banner(overview.run ? "" : "Snakepit is not started in this BEAM. The history is that of its data directory.");
  header(overview.run);
  cards(overview);
  pools(overview);
  workers.update(overview.workers);
  events(overview.events);
  history.changed(overview);
  if (first) {
    if (!overview.run && !location.hash) location.hash = "#history";
    route();
  }
  requestAnimationFrame(() => setTimeout(() => rendered(first)));
}

// After it was painted. The browser's tools show how long that took: the first time, and the last.
function rendered(first) {
  const name = first ? "snakepit:first-render" : "snakepit:render";
  performance.clearMeasures("snakepit:render");
  performance.measure(name, "snakepit:data");
}

function header(run) {
  const node = byId("run");
  node.hidden = !run;
  if (!run) return;
  if (!node.id_) node.append((node.id_ = el("code")), (node.state_ = el("span", { class: "badge" })), (node.more_ = el("small")));
  setText(node.id_, run.id);
  setText(node.state_, run.state.replace("_", " "));
  node.state_.className = `badge ${run.state === "running" ? "good" : "warning"}`;
  setText(node.more_, `${run.node === "nonode@nohost" ? "" : `${run.node} · `}up ${duration(run.uptime_ms)}`);
  node.title = `Run ${run.id}, data directory ${run.data_dir}`;
  document.title = `${latest.total.workers} workers · Snakepit`;
}

const CARDS = {};

function card(name, title, wide) {
  const parts = { value: el("b"), note: el("small") };
  if (wide) {
    CARDS[name] = el("article", { class: "card wide", title: `${title} of all workers and what they have started` }, wide, parts.note);
    CARDS[name].chart = wide;
  } else CARDS[name] = el("article", { class: "card" }, el("h3", {}, title), parts.value, parts.note);
  Object.assign(CARDS[name], { parts, id: `card-${name}` });
  byId("cards").append(CARDS[name]);
}

function setupCards() {
  card("workers", "Workers");
  card("cpu", "CPU", chart("cpu", "CPU", percent));
  card("memory", "Memory", chart("memory", "Memory", bytes, 2));
  card("heartbeats", "Heartbeats");
  card("guardian", "Guardian");
  card("audit", "Audit");
}

function tell(name, value, note, level = "") {
  const { parts } = CARDS[name];
  setText(parts.value, value);
  setText(parts.note, note);
  if (CARDS[name].dataset.level !== level) CARDS[name].dataset.level = level;
}

function cards({ total, guardian, beam, audit, audit_interval_ms: interval, at }) {
  const starting = total.starting > 0 ? ` · ${total.starting} starting` : "";
  const restarts = total.restarts > 0 ? ` · ${count(total.restarts, "restart")} seen` : "";
  tell("workers", String(total.workers), `${count(total.processes, "process", "processes")}${starting}${restarts}`);
  CARDS.cpu.chart.draw(total.series.map(([when, cpu]) => [when, cpu]));
  CARDS.memory.chart.draw(total.series.map(([when, , memory]) => [when, memory]));
  setText(CARDS.cpu.parts.note, `this BEAM ${percent(beam.cpu)}`);
  setText(CARDS.memory.parts.note, `this BEAM ${bytes(beam.memory)}`);
  heartbeats(total);
  if (guardian) tell("guardian", "watching", `process ${guardian.os_pid} · ${bytes(guardian.memory)}${guardian.adopted ? ` · ${guardian.adopted} adopted` : ""}`, "good");
  else tell("guardian", "none", latest.run ? "it is being started, or busy" : "Snakepit is not started", latest.run ? "bad" : "");
  if (!audit) tell("audit", "none yet", interval ? `one every ${duration(interval)}` : "");
  else if (audit.orphans > 0) tell("audit", count(audit.orphans, "orphan"), `ended ${duration(at - audit.at)} ago`, "bad");
  else tell("audit", "0 orphans", `${audit.stale_entries > 0 ? `${audit.stale_entries} stale entries · ` : ""}${duration(Math.max(0, at - audit.at))} ago`, "good");
}

function heartbeats(total) {
  const watched = total.healthy + total.unhealthy;
  if (total.unhealthy > 0) tell("heartbeats", `${total.unhealthy} unhealthy`, `of ${watched} that have answered`, "bad");
  else if (watched > 0) tell("heartbeats", `${total.healthy} healthy`, total.latency_ms === null ? "" : `slowest ${total.latency_ms} ms`, "good");
  else tell("heartbeats", "–", "no worker has any");
}

function pools(overview) {
  byId("pools").hidden = overview.pools.length === 0;
  keyed(byId("pool-list"), overview.pools, (pool) => pool.id, makePool, (node, pool) => patchPool(node, pool, overview.actions));
}

const STATES = ["busy", "idle", "starting", "stopping", "waiting"];

function makePool(pool) {
  const segments = STATES.map((state) => el("i", { class: state }));
  const node = el("article", { class: "pool", "data-id": pool.id },
    el("h3", {}, pool.id, el("button", { type: "button", class: "small", hidden: true, onclick: () => actions.resize(node.pool) }, "Resize")),
    el("div", { class: "stack", role: "img" }, segments), el("p", { class: "legend" }), el("p", { class: "error", hidden: true }));
  return node;
}

function patchPool(node, pool, allowed) {
  node.pool = pool;
  const [title, stack, legend, error] = node.children;
  title.lastChild.hidden = !allowed.includes("resize");
  const total = STATES.reduce((sum, state) => sum + (pool[state] ?? 0), 0);
  STATES.forEach((state, index) => {
    const width = total > 0 ? `${((pool[state] ?? 0) / total) * 100}%` : "0%";
    if (stack.children[index].style.width !== width) stack.children[index].style.width = width;
  });
  const parts = STATES.filter((state) => pool[state] > 0).map((state) => `${pool[state]} ${state}`);
  const range = pool.min === pool.max ? "" : ` (${pool.min} to ${pool.max})`;
  const queue = pool.queued > 0 ? ` · ${pool.queued} in the queue` : "";
  const text = pool.busy === null ? "does not answer: it is busy" : `${count(pool.size, "worker")}${range}: ${parts.join(", ") || "none yet"}${queue}`;
  setText(legend, text);
  node.classList.toggle("queued", pool.queued > 0);
  stack.setAttribute("aria-label", text);
  error.hidden = !pool.last_error;
  setText(error, pool.last_error ? `Last failure: ${pool.last_error}` : "");
}

function events(list) {
  byId("no-events").hidden = list.length > 0;
  keyed(byId("events"), list.slice(0, 80), (event) => event.id, makeEvent, () => {});
}

function makeEvent(event) {
  const name = event.worker && el("a", { href: `#worker=${encodeURIComponent(event.worker)}` }, event.worker);
  const output = event.output && el("details", {}, el("summary", {}, "its last output"), el("pre", {}, event.output.trimEnd()));
  return el("li", { class: event.level, "data-kind": event.kind }, el("time", {}, time(event.at)), el("div", {}, name, name ? " " : "", event.text, output));
}

// Views are parts of the page, and their names are what is behind the #.
function route() {
  const [view, id] = location.hash.slice(1).split("=");
  const chosen = ["history", "place"].includes(view) ? view : "now";
  for (const name of ["now", "history", "place"]) byId(`view-${name}`).hidden = name !== chosen;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${chosen}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  detail.open(view === "worker" ? decodeURIComponent(id ?? "") : null, latest?.actions ?? []);
  if (chosen !== "now") history.show(chosen, id);
  workers.draw();
}

setupCards();
workers.setup();
addEventListener("hashchange", route);
byId("live").addEventListener("click", () => {
  paused = !paused;
  past = true;
  live("paused");
  if (!paused) poll();
  else clearTimeout(timer);
});
document.addEventListener("visibilitychange", () => {
  past = true;
  if (!document.hidden && !paused) poll();
});
poll();

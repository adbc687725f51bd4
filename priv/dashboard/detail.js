// One worker, in a drawer: charts, the tree of its processes, heartbeats, and its output as it comes.

import { byId, bytes, count, duration, el, percent, setAttribute, setText, time } from "./dom.js";
import { chart } from "./charts.js";
import { fetchJSON } from "./app.js";
import { find, state } from "./workers.js";
import * as actions from "./actions.js";

let id = null;
let parts = null;
let before = new Map();

export function open(wanted, allowed) {
  const drawer = byId("drawer");
  if (wanted === id) return;
  const was = id;
  id = wanted;
  drawer.hidden = byId("shade").hidden = id === null;
  document.body.classList.toggle("drawn", id !== null);
  if (id === null) {
    if (was !== null) document.querySelector(`.row[data-id="${CSS.escape(was)}"]`)?.focus({ preventScroll: true });
    return;
  }
  build(drawer);
  refresh(allowed).catch(() => {});
  drawer.querySelector(".close").focus({ preventScroll: true });
}

const close = () => { location.hash = "#now"; };

function build(drawer) {
  before = new Map();
  parts = {
    dot: el("i", { class: "dot" }), state: el("span", { class: "badge" }), command: el("code", { class: "command" }), facts: el("dl", { class: "facts" }),
    actions: el("div", { class: "actions", hidden: true }), cpu: chart("cpu", "CPU", percent), memory: chart("memory", "Memory", bytes, 2),
    tree: el("ul", { class: "tree" }), health: el("dl", { class: "facts" }), output: el("pre", { class: "output", tabindex: "0" }),
    noOutput: el("p", { class: "quiet" }), gone: el("p", { class: "banner", hidden: true }),
  };
  const button = (name, act, danger) => el("button", { type: "button", class: danger ? "danger" : null, "data-action": name, onclick: () => act(find(id) ?? { id }) }, name[0].toUpperCase() + name.slice(1));
  parts.actions.append(button("restart", actions.restart), button("signal", actions.signal), button("stop", actions.stop, true));
  parts.healthSection = el("section", { hidden: true }, el("h3", {}, "Heartbeats"), parts.health);
  drawer.replaceChildren(
    el("header", {}, parts.dot, el("h2", {}, id), parts.state, el("button", { class: "close", type: "button", "aria-label": "Close", onclick: close }, "×")),
    el("div", { class: "body" }, parts.gone, parts.command, parts.facts, parts.actions, el("div", { class: "pair" }, parts.cpu, parts.memory),
      el("section", {}, el("h3", {}, "Processes"), parts.tree), parts.healthSection,
      el("section", {}, el("h3", {}, "Output ", el("small", {}, "the end of it, as it comes")), parts.output, parts.noOutput)));
  drawer.scrollTop = 0;
}

// Asked for after each look at everything, while the drawer is open.
export async function refresh(allowed) {
  if (id === null) return;
  const asked = id;
  const worker = await fetchJSON(`api/worker?id=${encodeURIComponent(asked)}`);
  if (asked !== id) return;
  const row = find(id);
  badge(row && worker.state !== "gone" ? state(row) : worker.state);
  parts.gone.hidden = worker.state !== "gone";
  setText(parts.gone, "There is no worker of this name now. What it showed last is below.");
  for (const one of parts.actions.children) one.hidden = !allowed.includes(one.dataset.action);
  parts.actions.hidden = !worker.os_pid || row?.kind !== "worker" || !allowed.some((one) => one !== "resize");
  if (!worker.os_pid) return;
  setText(parts.command, worker.command.join(" "));
  setAttribute(parts.command, "title", worker.command.join(" "));
  facts(parts.facts, [
    ["OS process", String(worker.os_pid)], ["Up", row ? duration(row.uptime_ms) : "–"], ["Pool", row?.pool], ["Restarts seen", row?.restarts ? String(row.restarts) : null],
    ["BEAM process", worker.beam_pid], ["Started", worker.spawned_at ? time(worker.spawned_at) : null],
    ["Says of itself", worker.notify ? [worker.notify.state, worker.notify.status].filter(Boolean).join(": ") : null],
  ]);
  parts.cpu.draw(worker.series.map(([at, cpu]) => [at, cpu]));
  parts.memory.draw(worker.series.map(([at, , memory]) => [at, memory]));
  tree(worker.tree);
  health(worker.heartbeat);
  output(worker.output);
}

function badge(now) {
  setText(parts.state, now);
  parts.state.className = `badge ${{ running: "good", unhealthy: "bad", gone: "bad", ended: "bad" }[now] ?? "warning"}`;
  parts.dot.parentElement.className = now;
}

function facts(list, pairs) {
  const there = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  while (list.children.length > there.length) list.lastChild.remove();
  there.forEach(([name, value], index) => {
    if (!list.children[index]) list.append(el("div", {}, el("dt"), el("dd")));
    setText(list.children[index].children[0], name);
    setText(list.children[index].children[1], value);
  });
}

// A tree is drawn anew only if its shape has changed.
function tree(branches) {
  const now = new Map();
  const shape = JSON.stringify(branches, ["os_pid", "children", "alive"]);
  if (parts.tree.shape !== shape) {
    parts.tree.shape = shape;
    parts.tree.nodes = new Map();
    parts.tree.replaceChildren(...branches.map(branch));
  }
  const at = performance.now();
  const patch = (one) => {
    const node = parts.tree.nodes.get(one.os_pid);
    const last = before.get(one.os_pid);
    const cpu = last ? Math.max(0, (one.cpu_us - last.cpu) / (at - last.at) / 10) : null;
    now.set(one.os_pid, { cpu: one.cpu_us, at });
    setText(node.command, one.command || `[${one.name}]`);
    setAttribute(node.command, "title", one.command);
    setText(node.facts, one.alive ? `${percent(cpu)} · ${bytes(one.memory)} · ${count(one.threads, "thread")}${one.descriptors === null ? "" : ` · ${one.descriptors} files`}` : "ended, its parent has not waited for it");
    one.children.forEach(patch);
  };
  branches.forEach(patch);
  before = now;
}

function branch(one) {
  const node = { command: el("code"), facts: el("small") };
  parts.tree.nodes.set(one.os_pid, node);
  return el("li", { class: one.alive ? null : "ended", "data-pid": one.os_pid },
    el("div", {}, el("b", {}, String(one.os_pid)), node.command, node.facts),
    one.children.length > 0 && el("ul", {}, one.children.map(branch)));
}

function health(beat) {
  parts.healthSection.hidden = !beat;
  if (!beat) return;
  facts(parts.health, [
    ["Status", beat.status], ["Latency", beat.last_latency_ms === null ? null : `${beat.last_latency_ms} ms`],
    ["Last pong", beat.last_pong_ms_ago === null ? null : `${duration(Math.max(0, beat.last_pong_ms_ago))} ago`],
    ["Pings", String(beat.pings_sent)], ["Pongs", String(beat.pongs_received)], ["Missed in a row", String(beat.missed_heartbeats)],
  ]);
}

function output(text) {
  const node = parts.output;
  node.hidden = !text;
  parts.noOutput.hidden = Boolean(text);
  setText(parts.noOutput, text === null ? "Its output is not kept here, or it is busy and does not answer." : "It has not written anything yet.");
  if (!text) return;
  // Whoever has scrolled up is reading.
  const follows = node.scrollHeight - node.scrollTop - node.clientHeight < 24;
  setText(node, text);
  if (follows) node.scrollTop = node.scrollHeight;
}

byId("shade").addEventListener("click", close);
addEventListener("keydown", (event) => { if (event.key === "Escape" && id !== null && !byId("dialog").open) close(); });

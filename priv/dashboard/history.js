// Runs that have ended, with the timeline of each end, and what this place allows.

import { byId, bytes, count, day, duration, el, keyed, setText, time } from "./dom.js";
import { fetchJSON } from "./app.js";

const ENDINGS = {
  clean_shutdown: ["good", "stopped in order", "The application was stopped, and left nothing behind."],
  guardian: ["bad", "BEAM died", "The BEAM died before its processes. The guardian ended all of them."],
  cleanup: ["bad", "cleaned up later", "Nobody was left to clean up. A later start ended what was still there."],
  reboot: ["info", "machine restarted", "The machine was restarted. Nothing could outlive that."],
  elsewhere: ["info", "ended elsewhere", "It ran in a container that has ended, or on another machine."],
};
const DETECTED = { pidfd: "by its pidfd", port: "by the end of its port", thread: "by the end of a scheduler thread" };

let asked = 0;
let seen = null;

// Another run can only have ended when this one is another.
export function changed(overview) {
  const now = overview.run?.id ?? "";
  if (seen !== null && seen !== now && !byId("view-history").hidden) show("history");
  seen = now;
}

export async function show(view, id) {
  const number = (asked += 1);
  try {
    if (view === "place") return checks(await fetchJSON("api/place"));
    const list = await fetchJSON("api/runs");
    if (number === asked) runs(list, id);
  } catch {
    // The banner says what is wrong, and the next look comes when the view is opened again.
  }
}

function runs({ runs: list, open, data_dir }, id) {
  const others = open.filter((run) => run !== seen).length;
  const note = others > 0 ? ` ${count(others, "run")} beside this one ${others === 1 ? "is" : "are"} not closed: still running, or for the next start to close.` : "";
  setText(byId("history-intro"), `From ${data_dir}.${note}`);
  const node = byId("runs");
  if (list.length === 0) {
    node.kept = undefined;
    node.replaceChildren(el("div", { class: "panel empty" }, el("b", {}, "No run has ended yet"),
      el("span", {}, "When this BEAM stops or is killed, the next start writes down here how each of its processes ended.")));
    return;
  }
  if (node.querySelector(".empty")) node.replaceChildren();
  keyed(node, list, (run) => run.run_id, makeRun, () => {});
  if (id) openRun(node.querySelector(`[data-run="${CSS.escape(id)}"]`));
}

function makeRun(run) {
  const [level, name, text] = ENDINGS[run.terminated_by] ?? ["info", run.terminated_by ?? "unknown", ""];
  const found = run.found > 0 ? `${count(run.found, "process", "processes")} left${run.killed > 0 ? `, ${run.killed} killed` : ""}` : "nothing left";
  const usage = run.usage && `CPU ${duration((run.usage.user_us + run.usage.system_us) / 1000)}, most memory ${bytes(run.usage.max_rss_kb * 1024)}`;
  const body = el("div", { class: "run-body" }, el("p", {}, text));
  const node = el("details", { class: "panel run-entry", "data-run": run.run_id, "data-ended": run.terminated_by },
    el("summary", {}, el("i", { class: `dot ${level}` }), el("code", {}, run.run_id), el("span", { class: `badge ${level}` }, name),
      el("span", { class: "what" }, found), el("span", { class: "when" }, run.started_at ? `${day(run.started_at)} · ran ${duration(run.ended_at - run.started_at)}` : day(run.ended_at))),
    body);
  node.addEventListener("toggle", () => {
    if (!node.open || node.filled) return;
    node.filled = true;
    fill(body, run, usage);
  });
  return node;
}

function openRun(node) {
  if (!node) return;
  node.open = true;
  node.scrollIntoView({ block: "nearest" });
}

async function fill(body, run, usage) {
  const facts = [["Ended", new Date(run.ended_at).toLocaleString([], { hourCycle: "h23" })], ["Node", run.node === "nonode@nohost" ? null : run.node], ["BEAM process", run.beam_pid && String(run.beam_pid)], ["Got as far as", run.state], ["Used", usage],
    ["May be others", run.ambiguous > 0 ? `${run.ambiguous} pids, left alone` : null]];
  body.append(el("dl", { class: "facts" }, facts.filter(([, value]) => value).map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)))));
  const whole = await fetchJSON(`api/run?id=${encodeURIComponent(run.run_id)}`).catch(() => null);
  if (whole?.timeline) body.append(timeline(whole.timeline));
  else if (run.terminated_by === "guardian" || run.terminated_by === "cleanup") body.append(el("p", { class: "quiet" }, "There is no obituary: its guardian was killed as well, or an older version has removed it."));
  if (whole?.log) body.append(el("details", { class: "log" }, el("summary", {}, "The guardian's log"), el("pre", { class: "output" }, whole.log)));
}

// From the death of the BEAM to the end of the last process, a line for each.
function timeline({ detected_at: at, detected_by: by, duration_ms: took, processes, survivors, omitted }) {
  const killed = processes.filter((one) => one.killed).length;
  const cause = by === "reap" ? "somebody ended what was left, by the command reap" : `the guardian noticed that the BEAM was gone, ${DETECTED[by] ?? `by ${by}`}`;
  const sentence = `At ${time(at)} ${cause}. ${count(processes.length + omitted, "process", "processes")} ended within ${duration(took)}${killed > 0 ? `, and ${killed} of them had to be killed` : ""}.`;
  const span = Math.max(took, 1, ...processes.map((one) => one.after_ms));
  const lines = processes.map((one) => {
    const bar = el("i", { class: one.killed ? "killed" : "ended" });
    bar.style.width = `${Math.max((one.after_ms / span) * 100, 0.6)}%`;
    return el("li", { "data-pid": one.os_pid }, el("b", { title: one.worker_id }, one.worker_id || "adopted"), el("small", {}, String(one.os_pid)),
      el("span", { class: "track" }, bar), el("small", { class: one.killed ? "bad" : "" }, `${one.killed ? "killed" : "ended"} after ${duration(one.after_ms)}`));
  });
  return el("div", { class: "timeline" }, el("p", {}, sentence),
    survivors.length > 0 && el("p", { class: "error" }, `Still there at the end: ${survivors.join(", ")}.`),
    el("ol", {}, lines), omitted > 0 && el("p", { class: "quiet" }, `and ${omitted} more`));
}

const MARKS = { fine: ["good", "fine"], note: ["info", "note"], weaker: ["warning", "weaker"], broken: ["bad", "broken"] };

function checks({ checks: list }) {
  byId("checks").replaceChildren(...list.map((one) => {
    const [level, word] = MARKS[one.level] ?? ["info", one.level];
    return el("article", { class: "check" }, el("span", { class: `badge ${level}` }, word),
      el("div", {}, el("b", {}, capital(one.check)), el("p", {}, sentence(one.found)),
        one.cost && el("p", { class: "quiet" }, `What it costs: ${sentence(one.cost)}`), one.remedy && el("p", { class: "quiet" }, `What helps: ${sentence(one.remedy)}`)));
  }));
}

const capital = (text) => `${text[0].toUpperCase()}${text.slice(1)}`;
const sentence = (text) => `${capital(text)}.`;

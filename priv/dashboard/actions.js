// What can be done, each after a question. The server does nothing that was not confirmed, and nothing that its options do
// not allow.

import { byId, count, el } from "./dom.js";

const SIGNALS = ["SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGSTOP", "SIGCONT", "SIGKILL"];

export const stop = (worker) => ask({
  title: `Stop ${worker.id}?`, verb: "Stop", danger: true, action: "stop", id: worker.id,
  text: `Its process ${worker.os_pid} and ${below(worker)} are asked to end, and killed if they do not. Its supervisor does not start it again.`,
});

export const restart = (worker) => ask({
  title: `Restart ${worker.id}?`, verb: "Restart", action: "restart", id: worker.id,
  text: `Its process ${worker.os_pid} and ${below(worker)} end, and its supervisor or pool starts another one.`,
});

export function signal(worker) {
  const select = el("select", { "aria-label": "Signal" }, SIGNALS.map((name) => el("option", { selected: name === "SIGHUP" }, name)));
  ask({
    title: `Send a signal to ${worker.id}?`, verb: "Send", action: "signal", id: worker.id, fields: [select],
    text: `It goes to process ${worker.os_pid} and its group.`, values: () => ({ signal: select.value }),
  });
}

export function resize(pool) {
  const number = (name, value) => el("input", { type: "number", min: name === "Least" ? 0 : 1, max: 10000, value, "aria-label": name });
  const [least, most] = [number("Least", pool.min), number("Most", pool.max)];
  ask({
    title: `Resize ${pool.id}?`, verb: "Resize", action: "resize", id: pool.id,
    fields: [el("label", {}, "at least ", least), el("label", {}, "at most ", most)],
    text: `It has ${count(pool.size, "worker")} now. Surplus workers end when nobody uses them.`,
    values: () => ({ min: least.value, max: most.value }),
  });
}

const below = (worker) => (worker.processes > 1 ? `${count(worker.processes - 1, "process", "processes")} below it` : "everything below it");

function ask(question) {
  const dialog = byId("dialog");
  const answer = el("p", { class: "answer", role: "status" });
  const confirm = el("button", { type: "submit", class: question.danger ? "primary danger" : "primary" }, question.verb);
  const close = el("button", { type: "button", onclick: () => dialog.close() }, "Cancel");
  const form = el("form", { method: "dialog" }, el("h2", {}, question.title), el("p", {}, question.text),
    question.fields && el("div", { class: "fields" }, question.fields), answer, el("menu", {}, close, confirm));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    confirm.disabled = true;
    answer.textContent = "…";
    const said = await post(question);
    answer.textContent = said.text;
    answer.classList.toggle("bad", !said.ok);
    confirm.disabled = false;
    if (said.ok) {
      confirm.hidden = true;
      close.textContent = "Close";
      setTimeout(() => form.isConnected && dialog.close(), 1200);
    }
  });
  dialog.replaceChildren(form);
  dialog.showModal();
}

async function post({ action, id, values }) {
  try {
    const body = new URLSearchParams({ id, confirm: id, ...(values ? values() : {}) });
    const answer = await fetch(`api/actions/${action}`, { method: "POST", body, headers: { "x-snakepit-dashboard": "1" } });
    const text = await answer.text();
    const said = answer.headers.get("content-type").startsWith("application/json") ? JSON.parse(text) : { error: text };
    return { ok: answer.ok, text: answer.ok ? `${id} ${said.done}` : said.error };
  } catch {
    return { ok: false, text: "No answer from the application." };
  }
}

// Questions and the list of keys, in the browser's own dialog: it holds the focus, and Escape closes.

import { h, setText } from "./dom.js";
import { valuesOf } from "./forms.js";

const KEYS = [
  ["1, 2, 3, 4", "jobs, machine, events, submit"],
  ["j, k", "next job, job before"],
  ["Enter", "open the job"],
  ["x", "put the job into the comparison, or take it out"],
  ["/", "search the jobs"],
  ["h, p, e, c", "of a job: hold or release, priority, edit, cancel"],
  ["r, a", "of a job that is over: retry, run again"],
  ["Escape", "back"],
  ["t", "dark or light"],
  ["?", "this list"],
];

function shown(title, body, answers) {
  return new Promise((done) => {
    const dialog = h("dialog", { "aria-labelledby": "dialog-title" },
      h("form", { method: "dialog" },
        h("h2", { id: "dialog-title" }, title),
        body,
        h("menu", {}, answers.map(([value, words, kind]) => h("button", { value, class: kind }, words)))));
    dialog.addEventListener("close", () => {
      done(dialog.returnValue);
      dialog.remove();
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

/** Whether the user says yes. */
export async function ask(title, text, yes, kind = "danger") {
  const answer = await shown(title, h("p", {}, text), [["no", "No", "plain"], ["yes", yes, kind]]);
  return answer === "yes";
}

/** Ask for values, and send them: what `send(values)` refuses is said in the dialog, which stays. */
export function askForm(title, fields, yes, send) {
  return new Promise((done) => {
    const refusal = h("p", { class: "bad wrap", role: "alert" });
    const go = h("button", { class: "primary" }, yes);
    const dialog = h("dialog", { "aria-labelledby": "dialog-title", class: "form" },
      h("form", { onsubmit: async (event) => {
        event.preventDefault();
        go.disabled = true;
        setText(refusal, "");
        try {
          await send(valuesOf(event.target));
          dialog.close();
        } catch (error) {
          setText(refusal, error.message);
        }
        go.disabled = false;
      } },
      h("h2", { id: "dialog-title" }, title), fields, refusal,
      h("menu", {}, h("button", { type: "button", class: "plain", onclick: () => dialog.close() }, "No"), go)));
    dialog.addEventListener("close", () => {
      dialog.remove();
      done();
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

export const askLeave = () => ask("Log out?", "This browser needs a new link afterwards: zerotools web", "Log out", "primary");

export function showKeys() {
  if (document.querySelector("dialog")) return;
  const rows = KEYS.map(([key, words]) => h("tr", {}, h("th", { scope: "row" }, h("kbd", {}, key)), h("td", {}, words)));
  shown("Keys", h("table", { class: "keys" }, h("tbody", {}, rows)), [["close", "Close", "primary"]]);
}

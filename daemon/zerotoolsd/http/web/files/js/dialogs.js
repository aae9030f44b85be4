// Questions and the list of keys, in the browser's own dialog: it holds the focus, and Escape closes.

import { h } from "./dom.js";

const KEYS = [
  ["1, 2, 3", "jobs, machine, events"],
  ["j, k", "next job, job before"],
  ["Enter", "open the job"],
  ["x", "put the job into the comparison, or take it out"],
  ["/", "search the jobs"],
  ["Escape", "back to the jobs"],
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

export const askLeave = () => ask("Log out?", "This browser needs a new link afterwards: zerotools web", "Log out", "primary");

export function showKeys() {
  if (document.querySelector("dialog")) return;
  const rows = KEYS.map(([key, words]) => h("tr", {}, h("th", { scope: "row" }, h("kbd", {}, key)), h("td", {}, words)));
  shown("Keys", h("table", { class: "keys" }, h("tbody", {}, rows)), [["close", "Close", "primary"]]);
}

// Questions and the list of keys, in the browser's own dialog: it holds the focus, and Escape closes.

import { h, refocus, setText } from "./dom.js";

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

// Show a dialog until it is closed; the value of the button that closed it.
function showDialog(title, kind, form, ...content) {
  return new Promise((done) => {
    const dialog = h("dialog", { "aria-labelledby": "dialog-title", class: kind }, h("form", form, h("h2", { id: "dialog-title" }, title), content));
    dialog.addEventListener("close", () => {
      dialog.remove();
      done(dialog.returnValue);
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

const button = (value, words, kind) => h("button", { value, class: kind }, words);

/** Whether the user says yes. */
export async function ask(title, text, yes, kind = "danger") {
  const answer = await showDialog(title, null, { method: "dialog" }, h("p", {}, text), h("menu", {}, button("no", "No", "plain"), button("yes", yes, kind)));
  return answer === "yes";
}

/** Ask for values, and send them: what `send(values)` refuses is said in the dialog, which stays. */
export async function askForm(title, fields, yes, send) {
  const refusal = h("p", { class: "bad wrap", role: "alert" });
  const go = h("button", { class: "primary" }, yes);
  const close = (event) => event.target.closest("dialog").close();
  const onsubmit = async (event) => {
    event.preventDefault();
    go.disabled = true;
    setText(refusal, "");
    try {
      await send(valuesOf(event.target));
      close(event);
    } catch (error) {
      setText(refusal, error.message);
      go.disabled = false;
      refocus(go);
    }
  };
  await showDialog(title, "form", { onsubmit }, fields, refusal, h("menu", {}, h("button", { type: "button", class: "plain", onclick: close }, "No"), go));
}

export const askLeave = () => ask("Log out?", "This browser needs a new link afterwards: zerotools web", "Log out", "primary");

export function showKeys() {
  if (document.querySelector("dialog")) return;
  const rows = KEYS.map(([key, words]) => h("tr", {}, h("th", { scope: "row" }, h("kbd", {}, key)), h("td", {}, words)));
  showDialog("Shortcuts", null, { method: "dialog" }, h("table", { class: "keys" }, h("tbody", {}, rows)), h("menu", {}, button("close", "Close", "primary")));
}

/** A field with its label: `kind` is a type of input, or
 * `textarea`, or `select` with its `options`. */
export function field({ name, label, kind = "text", value = "", hint, options, ...more }) {
  const usual = { name, autocomplete: "off", spellcheck: "false", ...more };
  const made = kind === "textarea" ? h("textarea", usual) : kind === "select" ? h("select", usual, options.map((each) => h("option", {}, each))) : h("input", { type: kind, ...usual });
  if (kind === "checkbox") made.checked = Boolean(value);
  else if (kind !== "select") made.value = value ?? "";
  const checks = kind === "checkbox";
  return h("label", { class: checks ? "choice" : "field" }, checks ? made : null, h("span", {}, label), checks ? null : made, hint ? h("small", { class: "quiet" }, hint) : null);
}

/** The values of all fields of a form, by name; of a box whether it is ticked. */
export function valuesOf(form) {
  const found = {};
  for (const each of form.elements) if (each.name) found[each.name] = each.type === "checkbox" ? each.checked : each.value;
  return found;
}

/** Seconds since 1970 as a field of a time shows them: in the time of this browser. */
function localTime(seconds) {
  if (!seconds) return "";
  const date = new Date(seconds * 1000);
  return new Date(date.getTime() - 60000 * date.getTimezoneOffset()).toISOString().slice(0, 16);
}

/** The jobs of `3, 4:any`. Raises an Error. */
export function parseAfter(text) {
  return text.split(/[\s,]+/).filter(Boolean).map((word) => {
    const found = /^#?(\d{1,15})(?::(ok|any))?$/.exec(word);
    if (!found) throw new Error(`${word} is not the number of a job; write 3, or 3:any if its end may be any`);
    return { job: Number(found[1]), condition: found[2] ?? "ok" };
  });
}

/** The fields for when a job starts; `job` has the values of now. */
export const termFields = (job = {}) => [
  field({ name: "after", label: "After jobs", value: (job.after ?? []).map((each) => `${each.job}${each.condition === "ok" ? "" : `:${each.condition}`}`).join(", "), placeholder: "3, 4:any", hint: "their numbers; :any if they may fail" }),
  field({ name: "begin", label: "Not before", kind: "datetime-local", value: localTime(job.begin) }),
];

/** What these fields say: `{after, begin}`; a time that is not given is null. Raises an Error. */
export const termsOf = ({ after, begin }) => ({ after: parseAfter(after), begin: begin ? new Date(begin).getTime() / 1000 : null });

// Fields of forms, and what they hold.

import { h } from "./dom.js";

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
export function localTime(seconds) {
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

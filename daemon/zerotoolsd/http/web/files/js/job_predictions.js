// What the evaluations of a job generated, beside what was to come.

import { fillOnce, h, later } from "./dom.js";
import { count } from "./format.js";
import { passes } from "./session.js";

const ROWS = 20;
const PREDICTIONS_MS = 15000;

export class PredictionsPart {
  #view;
  #id;
  #ended = new AbortController();
  #timer = null;
  #round = 0;
  #wanted = { step: null, first: 0 };
  #place = h("div");

  constructor(view, id) {
    this.#view = view;
    this.#id = id;
    this.element = h("section", { "aria-label": "Predictions" }, this.#place);
    this.#read();
  }

  close() {
    this.#ended.abort();
    this.#timer?.();
  }

  async #read() {
    this.#timer?.();
    const { step, first } = this.#wanted;
    const round = (this.#round += 1);
    try {
      const found = await this.#view.session.get(`/v1/jobs/${this.#id}/predictions?first=${first}&limit=${ROWS}${step === null ? "" : `&step=${step}`}`, { signal: this.#ended.signal });
      if (round === this.#round) fillOnce(this.#place, found, () => this.#shown(found));
    } catch (error) {
      if (this.#ended.signal.aborted) return;
      if (!passes(error)) fillOnce(this.#place, error.message, () => h("p", { class: "empty" }, error.message));
    }
    if (round !== this.#round || this.#ended.signal.aborted) return;
    if (this.#view.runs && step === null) this.#timer = later(() => this.#read(), PREDICTIONS_MS);
  }

  #want(change) {
    Object.assign(this.#wanted, change);
    this.#read();
  }

  #shown(found) {
    if (!found.steps.length) {
      return h("p", { class: "empty" }, "No evaluation of this job has generated text yet. ", h("code", {}, "[eval] predict_with_generate = true"), " of the job file asks for it.");
    }
    const select = h("select", { "aria-label": "Evaluation", onchange: (event) => this.#want({ step: Number(event.target.value), first: 0 }) },
      found.steps.toReversed().map((step) => h("option", { value: step, selected: step === found.step }, `step ${count(step)}`)));
    const turn = (first, words, enabled) => h("button", { type: "button", class: "plain", disabled: !enabled, onclick: () => this.#want({ first, step: found.step }) }, words);
    const rows = found.rows.map((row) => h("article", { class: "prediction" },
      h("h3", {}, `example ${row.example === null ? "?" : count(row.example)}`),
      h("dl", {}, [["prompt", "Prompt"], ["reference", "Expected"], ["prediction", "Generated"]].map(([name, words]) => h("div", { class: name }, h("dt", {}, words), h("dd", {}, h("pre", { class: "wrap" }, row[name] ?? "–")))))));
    return [
      h("div", { class: "bar" }, select, turn(Math.max(0, found.first - ROWS), "Earlier", found.first > 0), turn(found.first + ROWS, "Later", found.more), h("span", { class: "quiet" }, found.rows.length ? `rows ${count(found.first + 1)} to ${count(found.first + found.rows.length)}` : "there are no more")),
      rows,
    ];
  }
}

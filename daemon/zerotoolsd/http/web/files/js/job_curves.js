// The curves of a job, joined over its resumes, beside those of others.

import { Chart, TIME_AXIS, WHOLE, colour, style, summary } from "./charts.js";
import { extended, joined, smoothed, tokensPerStep } from "./curve_data.js";
import { choices, fill, fillOnce, h, later, setText, table, tickBox, wideTable } from "./dom.js";
import { RUNS, UNKNOWN, bytes, count, duration, isNumber, measure, plainName, titleOf } from "./format.js";
import { differences } from "./job_keys.js";
import { passes } from "./session.js";

const POINTS = 2000;
const MOST_POINTS = 3 * POINTS;
const FOLLOW_MS = 2000;
const MOST_OTHERS = 7;
const SHORT = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 2 });
const SMALL = [
  ["reward_margin", "Margin of rewards", measure],
  ["reward_accuracy", "Accuracy of rewards", measure],
  ["lr", "Learning rate", measure],
  ["grad_norm", "Gradient norm", measure],
  ["tokens_per_second", "Tokens per second", count],
  ["gpu_bytes", "Memory of rank 0 on its GPU", bytes],
  ["host_bytes", "Memory of rank 0 on the host", bytes],
];
const AXES = [["step", "Steps"], ["tokens", "Tokens"], ["hours", "Relative time"], ["time", "Wall time"]];
/** Those that are smoothed, as the loss is. */
const SMOOTHED = new Set(["reward_margin", "reward_accuracy", "grad_norm", "tokens_per_second"]);
const EVALS = [["perplexity", "Perplexity"], ["rouge1", "ROUGE-1"], ["rougeL", "ROUGE-L"], ["bleu", "BLEU"], ["eval_reward_margin", "Margin of rewards, evaluated"], ["eval_reward_accuracy", "Accuracy of rewards, evaluated"]];

export class CurvesPart {
  #view;
  #id;
  #runs = new Map();
  #others = [];
  #wants = { smooth: 0.6, log: false, trim: false, x: "step", ...CurvesPart.wants };
  #ended = new AbortController();
  #timer = null;
  #main = new Chart();
  #small = new Map();
  #smallPlace = h("div", { class: "small-charts" });
  #said = h("p", { class: "quiet" });
  #chips = h("div", { class: "chips" });
  #jobs = new Map();
  #differ = h("div");
  #numbers = h("details", { class: "numbers" }, h("summary", {}, "The numbers"), h("div"));

  constructor(view, id) {
    this.#view = view;
    this.#id = id;
    this.element = h("section", { "aria-label": "Curves" }, this.#controls(), this.#chips, this.#main.element, this.#said, this.#differ, this.#numbers, this.#smallPlace);
    this.#numbers.addEventListener("toggle", () => this.#drawNumbers());
    this.#readAll();
  }

  close() {
    this.#ended.abort();
    this.#timer?.();
    this.#main.close();
    for (const chart of this.#small.values()) chart.close();
  }

  /** `rest` are the other jobs, as `8+9`. */
  update(rest) {
    const wanted = [...new Set((rest[0] ?? "").split("+").filter((word) => /^\d{1,15}$/.test(word)).map(Number))];
    const others = wanted.filter((id) => id !== this.#id).slice(0, MOST_OTHERS);
    if (String(others) !== String(this.#others)) {
      this.#others = others;
      for (const id of this.#runs.keys()) if (id !== this.#id && !others.includes(id)) this.#runs.delete(id);
      this.#readAll();
    }
    this.#drawChips();
  }

  #controls() {
    const { smooth } = this.#wants;
    const box = (name, words) => tickBox(words, this.#wants[name], (ticked) => this.#want({ [name]: ticked }));
    const shown = h("output", {}, String(smooth));
    return h("div", { class: "bar" },
      h("label", { class: "slider" }, "Smoothing", h("input", { type: "range", min: 0, max: 0.99, step: 0.01, value: smooth, oninput: (event) => {
        setText(shown, event.target.value);
        this.#want({ smooth: Number(event.target.value) });
      } }), shown),
      box("log", "Log scale"), box("trim", "Ignore outliers"),
      choices("x-axis", "Over", AXES, this.#wants.x, (x) => this.#want({ x })));
  }

  #want(change) {
    Object.assign(this.#wants, change);
    CurvesPart.wants = this.#wants;
    this.#draw();
  }

  #drawChips() {
    const known = [...this.#view.store.jobs.values()].filter((job) => !job.masked && job.attempt && job.id !== this.#id && !this.#others.includes(job.id));
    const key = `${this.#others} ${known.map((job) => job.id)}`;
    if (this.#chips.dataset.shown === key) return;
    this.#chips.dataset.shown = key;
    const name = (id) => this.#view.store.titleOf(id);
    const go = (ids) => (location.hash = `#/jobs/${this.#id}/curves${ids.length ? `/${ids.join("+")}` : ""}`);
    const chips = this.#others.map((id) => h("button", { type: "button", class: "chip", "aria-label": `Take out ${name(id)}`, onclick: () => go(this.#others.filter((each) => each !== id)) }, name(id), h("span", { "aria-hidden": "true" }, "×")));
    const select = h("select", { "aria-label": "Compare with another job", onchange: (event) => event.target.value && go([...this.#others, Number(event.target.value)]) },
      h("option", { value: "" }, "Compare with…"), known.map((job) => h("option", { value: job.id }, titleOf(job))));
    fill(this.#chips, chips, known.length && this.#others.length < MOST_OTHERS ? select : null);
  }

  async #readAll() {
    this.#timer?.();
    for (const id of [this.#id, ...this.#others]) {
      try {
        if (id !== this.#id && !this.#jobs.has(id)) this.#jobs.set(id, await this.#view.store.readJob(id, this.#ended.signal));
        if (!this.#runs.has(id)) this.#runs.set(id, await this.#view.session.get(`/v1/jobs/${id}/curves?points=${POINTS}`, { signal: this.#ended.signal }));
      } catch (error) {
        if (this.#ended.signal.aborted) return;
        if (!passes(error)) this.#runs.set(id, { error: error.message });
      }
    }
    this.#draw();
    this.#followSoon();
  }

  #followSoon() {
    this.#timer?.();
    if (!this.#ended.signal.aborted) this.#timer = later(() => this.#follow(), FOLLOW_MS);
  }

  async #follow() {
    let changed = false;
    for (const id of [this.#id, ...this.#others]) {
      const job = this.#view.store.jobs.get(id) ?? (id === this.#id ? this.#view.job : null);
      const state = id === this.#id ? this.#view.job?.state : job?.state;
      if (!this.#runs.has(id) || (!RUNS.has(state) && this.#runs.get(id).quiet)) continue;
      try {
        changed = (await this.#more(id, RUNS.has(state))) || changed;
      } catch (error) {
        if (this.#ended.signal.aborted) return;
        if (!passes(error)) this.#runs.delete(id);
      }
    }
    if ([this.#id, ...this.#others].some((id) => !this.#runs.has(id))) {
      this.#readAll();
      return;
    }
    if (changed) this.#draw();
    this.#followSoon();
  }

  async #more(id, runs) {
    const run = this.#runs.get(id);
    if (run.error) return false;
    const after = run.follow;
    const query = after ? `?attempt=${after.attempt}&since=${after.since}` : "";
    const found = await this.#view.session.get(`/v1/jobs/${id}/progress${query}`, { signal: this.#ended.signal });
    const newest = this.#view.store.jobs.get(id)?.attempt?.number ?? found.attempt;
    if (!after && found.attempt === 0) return false;
    if (!after || newest > after.attempt || run.steps.step.length > MOST_POINTS) {
      // Another attempt takes over, or there are more steps than are drawn: the daemon joins and thins.
      this.#runs.set(id, await this.#view.session.get(`/v1/jobs/${id}/curves?points=${POINTS}`, { signal: this.#ended.signal }));
      return true;
    }
    run.follow = { attempt: after.attempt, since: found.next };
    run.quiet = !runs && found.over;
    return extended(run, found.records, { job: id, attempt: after.attempt });
  }

  #draw() {
    const own = this.#runs.get(this.#id);
    if (!own) return;
    if (own.error) {
      setText(this.#said, own.error);
      return;
    }
    const all = [this.#id, ...this.#others].map((id) => [id, this.#runs.get(id)]).filter(([, run]) => run && !run.error);
    const alone = all.length === 1;
    const lines = [];
    for (const [index, [id, run]] of all.entries()) lines.push(...this.#linesOf(id, run, index, alone));
    const xs = lines.map((line) => ({ x: line.x, y: line.y }));
    const data = joined(xs);
    const log = this.#wants.log && lines.every((line) => line.y.every((value) => value === null || value > 0));
    this.#main.element.hidden = data[0].length === 0;
    if (data[0].length) {
      const words = lines.filter((line) => !line.faint).map((line) => summary(line.name, line.x, line.y));
      this.#main.draw({ label: words.join(". "), height: 320, lines, log, trim: this.#wants.trim, x: this.#axis(), y: { words: measure }, marks: this.#marks(own, alone) }, data);
    }
    this.#drawSaid(own, data[0].length, log, all);
    this.#drawDiffer(all);
    this.#drawSmall(all);
    this.#drawNumbers();
  }

  #linesOf(id, run, index, alone) {
    const { steps, evaluations } = run;
    const of = alone ? "" : `${this.#view.store.titleOf(id)}: `;
    const found = [];
    const x = this.#xs(id, run, steps, "time");
    if (steps.loss) {
      if (alone && this.#wants.smooth > 0) found.push({ name: "each step", x, y: steps.loss, colour: colour(index), faint: true });
      found.push({ name: `${of}loss`, x, y: smoothed(steps.loss, this.#wants.smooth), colour: colour(index) });
    }
    if (evaluations.eval_loss) {
      found.push({ name: `${of}evaluation`, x: this.#xs(id, run, evaluations, "eval_time"), y: evaluations.eval_loss, colour: alone ? colour(1) : colour(index), dots: true, dash: !alone });
    }
    return found;
  }

  // Seconds since 1970, or since its first step; a step of which no time is known is left out.
  #xs(id, run, columns, time) {
    if (this.#wants.x === "step") return columns.step;
    if (this.#wants.x === "tokens") {
      const tokens = tokensPerStep(this.#job(id), run.steps);
      return columns.step.map((step) => (tokens === null ? null : step * tokens));
    }
    const times = columns[time] ?? [];
    const first = (run.steps.time ?? []).find(isNumber) ?? times.find(isNumber) ?? 0;
    return columns.step.map((_, index) => (isNumber(times[index]) ? times[index] - (this.#wants.x === "hours" ? first : 0) : null));
  }

  #job(id) {
    return id === this.#id ? this.#view.job : this.#jobs.get(id);
  }

  #axis() {
    if (this.#wants.x === "tokens") return { kind: "tokens", label: "tokens", words: SHORT.format, values: (plot, ticks) => ticks.map(SHORT.format) };
    if (this.#wants.x === "time") return TIME_AXIS;
    if (this.#wants.x === "hours") return { kind: "hours", label: "after", words: duration, values: (plot, ticks) => ticks.map(duration) };
    return { kind: "step", label: "step", words: count, incrs: WHOLE, values: (plot, ticks) => ticks.map((tick) => count(tick)) };
  }

  #marks(run, alone) {
    if (this.#wants.x !== "step" || !alone) return [];
    const resumed = run.parts.slice(1).map((part) => ({ x: part.first_step, colour: style("--mark") }));
    const saved = run.checkpoints.map((each) => ({ x: each.step, colour: each.verified ? style("--good") : style("--muted"), short: true, solid: true }));
    return [...resumed, ...saved];
  }

  #drawSaid(run, points, log, all) {
    const words = [];
    const alone = all.length === 1;
    if (this.#wants.x === "tokens") {
      const unknown = all.filter(([id, each]) => tokensPerStep(this.#job(id), each.steps) === null).map(([id]) => `#${id}`);
      if (unknown.length) words.push(`The tokens of a step are not known: ${unknown.join(", ")}.`);
    }
    if (points === 0) words.push("Nothing was reported yet.");
    if (run.parts.length > 1) words.push(`Joined over ${run.parts.length} attempts (dashed lines: where the next one begins${new Set(run.parts.map((part) => part.job)).size > 1 ? `, of jobs ${[...new Set(run.parts.map((part) => part.job))].map((id) => `#${id}`).join(", ")}` : ""}).`);
    if (run.checkpoints.length && alone && this.#wants.x === "step") words.push("Short lines at the bottom: checkpoints.");
    if (run.not_finite.length) words.push(`The loss was not a number at ${run.not_finite.length === 1 ? `step ${count(run.not_finite[0])}` : `${run.not_finite.length} steps, first at ${count(Math.min(...run.not_finite))}`}.`);
    if (run.sampled) words.push("Not every step is drawn: of neighbouring steps, those with the least and the greatest loss.");
    if (this.#wants.log && points && !log) words.push("A log scale needs values above 0.");
    setText(this.#said, words.join(" "));
    this.#said.classList.toggle("bad", run.not_finite.length > 0);
  }

  #drawDiffer(all) {
    const jobs = all.map(([id]) => this.#job(id)).filter((job) => job?.spec);
    const rows = jobs.length > 1 ? differences(jobs) : null;
    const words = (value) => (value === undefined ? UNKNOWN : plainName(typeof value === "string" ? value : JSON.stringify(value)));
    const heads = ["Key", ...jobs.map(titleOf)];
    fillOnce(this.#differ, [heads, rows], () => rows && h("details", { class: "numbers", open: true }, h("summary", {}, "What differs in their job files"), rows.length ? wideTable("differ", "What differs in their job files", heads, rows.map(([key, values]) => h("tr", {}, h("th", { scope: "row" }, h("code", {}, plainName(key))), values.map((value) => h("td", {}, words(value)))))) : h("p", { class: "quiet" }, "Only their names and directories differ.")));
  }

  #drawSmall(all) {
    const wanted = [
      ...EVALS.map(([name, title]) => [name, title, measure, "evaluations", "eval_time"]),
      ...scoresOf(all).map((name) => [name, name, measure, "scores", "time"]),
      ...SMALL.map(([name, title, words]) => [name, title, words, "steps", "time"]),
    ];
    for (const [name, title, words, where, time] of wanted) {
      const key = `${where} ${name}`;
      const lines = all.filter(([, run]) => Object.hasOwn(run[where], name)).flatMap(([id, run], index) => {
        const x = this.#xs(id, run, run[where], time);
        const line = { name: all.length > 1 ? `#${id}` : title, x, y: run[where][name], colour: colour(index), dots: where !== "steps" };
        if (!SMOOTHED.has(name) || this.#wants.smooth <= 0) return [line];
        const smooth = { ...line, y: smoothed(line.y, this.#wants.smooth) };
        return all.length > 1 ? [smooth] : [{ ...line, name: "each step", faint: true }, smooth];
      });
      let chart = this.#small.get(key);
      if (!lines.length) {
        chart?.element.parentElement?.remove();
        chart?.close();
        this.#small.delete(key);
        continue;
      }
      if (!chart) {
        chart = new Chart();
        this.#small.set(key, chart);
        this.#smallPlace.append(h("section", {}, h("h3", {}, title), chart.element));
      }
      const data = joined(lines.map((line) => ({ x: line.x, y: line.y })));
      chart.draw({ label: lines.map((line) => summary(`${title} ${line.name}`, line.x, line.y)).join(". "), height: 170, lines, log: false, trim: this.#wants.trim, x: this.#axis(), y: { words } }, data);
    }
  }

  #drawNumbers() {
    const run = this.#runs.get(this.#id);
    if (!this.#numbers.open || !run || run.error) return;
    const { steps, evaluations } = run;
    const evaluated = new Map(evaluations.step.map((step, index) => [step, evaluations.eval_loss?.[index]]));
    const every = Math.max(1, Math.ceil(steps.step.length / 20));
    const rows = steps.step
      .map((step, index) => [step, index])
      .filter(([step, index]) => index % every === 0 || index === steps.step.length - 1 || evaluated.has(step))
      .map(([step, index]) => h("tr", {}, h("th", { scope: "row" }, count(step)), h("td", {}, measure(steps.loss?.[index])), h("td", {}, measure(evaluated.get(step))), h("td", {}, measure(steps.lr?.[index]))));
    fill(this.#numbers.lastElementChild, table("plain-table", null, ["Step", "Loss", "Evaluation", "Learning rate"], rows));
  }
}
CurvesPart.wants = {};

function scoresOf(all) {
  const names = all.flatMap(([, run]) => Object.keys(run.scores ?? {}));
  return [...new Set(names)].filter((name) => name !== "step" && name !== "time").sort();
}

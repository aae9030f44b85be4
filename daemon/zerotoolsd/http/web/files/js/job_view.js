// One job: what it does, and what it has produced.

import { fill, fillOnce, h, keyed, later, setCurrent, setText, table } from "./dom.js";
import { RUNS, UNKNOWN, ago, between, bytes, clock, count, duration, hasSpeed, isNumber, moment, now, ownerOf, plainName, stateOf, titleOf } from "./format.js";
import { ACTIONS, JobActions, offered } from "./job_actions.js";
import { CheckpointsPart } from "./job_checkpoints.js";
import { CurvesPart } from "./job_curves.js";
import { ExamplesPart } from "./job_examples.js";
import { LogPart } from "./job_log.js";
import { PicturePart } from "./job_picture.js";
import { PredictionsPart } from "./job_predictions.js";
import { VERB_ROWS, VERBS } from "./job_words.js";
import { badge, doneOf, secondsLeft, whyOf } from "./jobs_view.js";
import { passes } from "./session.js";

const PARTS = {
  curves: ["Curves", CurvesPart],
  log: ["Log", LogPart],
  checkpoints: ["Checkpoints", CheckpointsPart],
  picture: ["Picture", PicturePart],
  predictions: ["Predictions", PredictionsPart],
  examples: ["Examples", ExamplesPart],
  attempts: ["Attempts", null],
};
const RUNNING_MS = 2000;

export class JobView {
  job = null;
  #page;
  #id;
  #part = null;
  #partName = "";
  #rest = [];
  #ended = new AbortController();
  #timer = null;
  #title = h("h1");
  #state = h("span");
  #owner = h("span", { class: "quiet" });
  #acts;
  #actions = h("div", { class: "actions" });
  #why = h("p", { class: "why" });
  #progress = h("div", { class: "wide-progress" });
  #head = h("div", { class: "job-head" }, h("div", { class: "title" }, this.#title, this.#state, this.#owner, h("span", { class: "grow" }), this.#actions), this.#why, this.#progress);
  #facts = h("dl", { class: "facts" });
  #tabs = h("nav", { class: "tabs", "aria-label": "Parts of the job" });
  #place = h("div", { class: "part" });

  constructor(page, id, rest) {
    this.#page = page;
    this.#id = id;
    this.#acts = new JobActions(page, (job) => this.#changed(job));
    this.element = h("article", {}, h("p", { class: "crumb" }, h("a", { href: "#/jobs" }, "Jobs"), " / ", h("span", {}, `#${id}`)), this.#head, this.#facts, this.#tabs, this.#place, wordsTable());
    this.#tabs.append(...Object.entries(PARTS).map(([name, [words]]) => h("a", { href: `#/jobs/${id}/${name}`, "data-part": name }, words)));
    this.listen = (event) => event.detail.jobs.has(this.#id) && this.#soon(0);
    page.store.addEventListener("events", this.listen);
    this.#rest = rest;
    this.#read();
  }

  get session() {
    return this.#page.session;
  }

  get store() {
    return this.#page.store;
  }

  /** Whether it is the user's own job. */
  get isOwn() {
    return this.job !== null && this.job.uid === this.session.me.uid && !this.job.masked;
  }

  get runs() {
    return this.job !== null && RUNS.has(this.job.state);
  }

  close() {
    this.#ended.abort();
    this.#timer?.();
    this.#page.store.removeEventListener("events", this.listen);
    this.#part?.close();
  }

  /** Another part is asked for, by the address. */
  turn(rest) {
    this.#rest = rest;
    if (this.job) this.#showPart();
  }

  #soon(ms) {
    this.#timer?.();
    this.#timer = later(() => this.#read(), ms);
  }

  async #read() {
    try {
      this.job = await this.store.readJob(this.#id, this.#ended.signal);
      this.#draw();
    } catch (error) {
      if (this.#ended.signal.aborted) return;
      if (!passes(error)) {
        setText(this.#title, `Job #${this.#id}`);
        setText(this.#why, error.message);
        fill(this.#facts);
        this.#tabs.hidden = true;
        return;
      }
    }
    if (!this.#ended.signal.aborted && (this.job === null || this.runs)) this.#soon(RUNNING_MS);
  }

  #draw() {
    const { job } = this;
    const [words, meaning, sign] = stateOf(job);
    const done = doneOf(job);
    setText(this.#title, titleOf(job));
    setText(this.#owner, ownerOf(job));
    setText(this.#why, whyOf(job));
    this.#why.hidden = whyOf(job) === "";
    fillOnce(this.#state, `${words} ${meaning}`, () => badge(words, meaning, sign));
    const names = this.#offered();
    fillOnce(this.#actions, names, () => names.map((name) => h("button", { type: "button", class: ACTIONS[name].kind, onclick: () => this.#acts.act(name, this.job) }, ACTIONS[name].words)));
    this.#progress.hidden = done === null;
    const steps = done === null ? "" : `step ${count(job.progress.step)} of ${count(job.progress.steps)}`;
    fillOnce(this.#progress, steps, () => [h("progress", { max: 1, value: done ?? 0, "aria-label": "Steps done" }), h("span", {}, steps)]);
    keyed(this.#facts, this.#factsOf(job), ([name]) => name, ([name]) => h("div", {}, h("dt", {}, name), h("dd")), (fact, [, value]) => setText(fact.lastElementChild, value));
    this.#showPart();
  }

  #offered() {
    // Who sees all of a job may change it.
    return this.job === null || this.job.masked ? [] : offered(this.job);
  }

  #changed(job) {
    // An answer may come when the user has gone elsewhere, even before this view is closed.
    if (location.hash.split("/")[2] !== `${this.#id}`) return;
    if (job.id === this.#id) this.#soon(0);
    else location.hash = `#/jobs/${job.id}`;
  }

  say(text, meaning = "bad") {
    this.#page.say(text, meaning);
  }

  /** Queue a job that runs this command on a checkpoint. */
  async convert(words) {
    const { job } = await this.session.post("/v1/import", { convert: words });
    const found = await this.session.post("/v1/jobs", { job, idempotency_key: crypto.randomUUID() }, { slow: true });
    this.say(`${titleOf(found)} is queued`, "good");
    this.store.refresh();
  }

  key(event) {
    const name = this.#offered().find((each) => ACTIONS[each].key === event.key);
    if (name) this.#acts.act(name, this.job);
    return name !== undefined;
  }

  #factsOf(job) {
    const time = now();
    const progress = job.progress ?? {};
    const left = secondsLeft(job);
    const facts = [
      ["Loss", isNumber(progress.loss) ? progress.loss.toPrecision(4) : "loss" in progress ? "not a number" : null],
      ["Speed", hasSpeed(job) || (isNumber(progress.tokens_per_second) && !RUNS.has(job.state)) ? `${count(progress.tokens_per_second)} tokens/s` : null],
      ["MFU", isNumber(progress.mfu) ? `${(100 * progress.mfu).toFixed(1)} %` : null],
      ["Left", left === null ? null : duration(left)],
      ["Phase", phaseWords(job, time)],
      ["Ranks", job.world_size ? `${job.world_size} on ${job.device === "cpu" ? "the CPU" : "GPUs"}${job.stage === null ? "" : `, ZeRO-${job.stage}`}` : null],
      ["Submitted", `${ago(job.created)}, ${moment(job.created)}`],
      ["Duration", job.started ? between(job.started, job.ended ?? time) : null],
      ["Peak on a GPU", isNumber(job.attempt?.peak_gpu_bytes) ? bytes(job.attempt.peak_gpu_bytes) : null],
      ["Peak on the host", isNumber(job.attempt?.peak_host_bytes) ? bytes(job.attempt.peak_host_bytes) : null],
      ["Output", job.output_dir ? plainName(job.output_dir) : null],
    ];
    return facts.filter(([, value]) => value !== null && value !== undefined);
  }

  #showPart() {
    const name = this.#rest[0] in PARTS ? this.#rest[0] : "curves";
    this.#tabs.hidden = this.job.masked;
    for (const link of this.#tabs.children) setCurrent(link, link.dataset.part === name);
    if (this.job.masked) {
      fill(this.#place, h("p", { class: "empty" }, `It belongs to ${ownerOf(this.job)}: only its owner and administrators see what it does.`));
      return;
    }
    if (name === "attempts") {
      this.#part?.close();
      this.#part = null;
      fill(this.#place, attemptsTable(this.job));
    } else if (name !== this.#partName || this.#part === null) {
      this.#part?.close();
      this.#part = new PARTS[name][1](this, this.#id);
      fill(this.#place, this.#part.element);
    }
    this.#partName = name;
    this.#part?.update?.(this.#rest.slice(1));
  }
}

function phaseWords(job, time) {
  const phase = job.phase;
  if (!phase) return null;
  const name = plainName(phase.name ?? phase.doing ?? "");
  if (!name) return null;
  const usual = isNumber(phase.usual_seconds) && phase.doing ? `, usually ${duration(phase.usual_seconds)} here` : "";
  const begun = job.attempts.at(-1)?.started;
  const start = isNumber(job.usual_start_seconds) && isNumber(begun) ? `; ${between(begun, time)} of usually ${duration(job.usual_start_seconds)} to the first step` : "";
  return isNumber(phase.since) ? `${name}, for ${between(phase.since, time)}${usual}${start}` : name;
}

function attemptsTable(job) {
  if (!job.attempts.length) return h("p", { class: "empty" }, "It has not started yet.");
  const heads = ["#", "Started", "Duration", "Steps", "Ranks", "Resumed from", "Result"];
  const cell = (label, value) => h("td", { "data-label": label, class: value === UNKNOWN ? "none" : null }, value);
  const rows = job.attempts.map((attempt) => h("tr", {},
    h("th", { scope: "row" }, String(attempt.number)),
    cell("Started", clock(attempt.started)),
    cell("Duration", attempt.started ? between(attempt.started, attempt.ended ?? now()) : UNKNOWN),
    cell("Steps", count(attempt.steps_done)),
    cell("Ranks", attempt.world_size === null ? UNKNOWN : String(attempt.world_size)),
    cell("Resumed from", attempt.resumed_from === null ? UNKNOWN : h("code", {}, plainName(attempt.resumed_from))),
    cell("Result", plainName(attempt.cause ?? (attempt.ended ? UNKNOWN : "still running")))));
  return table("plain-table", "Attempts", heads, rows);
}

/** What hold, release and retry do to each job; the manual has the same table. */
function wordsTable() {
  const rows = VERB_ROWS.map((row) => h("tr", {}, h("th", { scope: "row" }, row.job), VERBS.map((verb) => h("td", { "data-label": verb }, row[verb]))));
  return h("details", { class: "numbers" }, h("summary", {}, "What hold, release and retry do"), table("plain-table", "Verbs for jobs", ["a job that", ...VERBS], rows));
}

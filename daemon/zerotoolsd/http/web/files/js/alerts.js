// What somebody should look at now: losses that are no numbers, jobs that do not get on, GPUs with
// errors, a daemon that is drained.

import { fill, h, keyed, setText } from "./dom.js";
import { RUNS, SLOW, isNumber, plainName, stateOf, titleOf } from "./format.js";

/** The alerts of what is known, each with a key of its own. */
function alertsOf(jobs, machine, health) {
  const found = [];
  for (const job of jobs) {
    if (!RUNS.has(job.state)) continue;
    const { progress, state_word: word } = job;
    if (progress && "loss" in progress && !isNumber(progress.loss)) {
      found.push({ key: `nan-${job.id}`, job: job.id, meaning: "bad", text: `${titleOf(job)}: the loss is not a number at step ${progress.step}` });
    }
    if (SLOW.includes(word)) {
      const [text, meaning] = stateOf(job);
      found.push({ key: `${word}-${job.id}`, job: job.id, meaning, text: `${titleOf(job)}: ${text}` });
    }
  }
  for (const gpu of machine?.snapshot?.gpus ?? []) {
    const last = gpu.xids?.at?.(-1);
    if (last) found.push({ key: `xid-${gpu.index}-${last.code}`, meaning: "bad", text: `GPU ${gpu.index}: the driver reported XID ${last.code}` });
    if (gpu.error) found.push({ key: `gpu-${gpu.index}`, meaning: "warning", text: `GPU ${gpu.index}: ${plainName(gpu.error)}` });
    if (gpu.ecc_uncorrected_errors > 0) found.push({ key: `ecc-${gpu.index}`, meaning: "warning", text: `GPU ${gpu.index}: ${gpu.ecc_uncorrected_errors} uncorrected errors of its memory` });
  }
  if (health?.drain) found.push({ key: "drain", meaning: "warning", text: `no job starts: the queue is drained${health.drain.why ? ` (${plainName(health.drain.why)})` : ""}` });
  return found;
}

const SOURCES = ["jobs", "machine", "events"];

export class Alerts {
  #place;
  #store;
  #listen = () => this.#draw();
  #seen = new Set();
  #heard = new Set();

  #ear;

  constructor(place, ear, store) {
    this.#place = place;
    this.#ear = ear;
    this.#store = store;
    for (const what of SOURCES) store.addEventListener(what, this.#listen);
  }

  /** Show none any more. */
  close() {
    for (const what of SOURCES) this.#store.removeEventListener(what, this.#listen);
    fill(this.#place);
    fill(this.#ear);
  }

  #draw() {
    const { jobs, machine, health } = this.#store;
    const all = alertsOf(jobs.values(), machine, health);
    const keys = new Set(all.map((alert) => alert.key));
    for (const key of this.#seen) if (!keys.has(key)) this.#seen.delete(key);
    const shown = all.filter((alert) => !this.#seen.has(alert.key));
    keyed(this.#place, shown, (alert) => alert.key, (alert) => this.#make(alert), (row, alert) => setText(row.querySelector(".words"), alert.text));
    this.#say(all);
    const bad = shown.filter((alert) => alert.meaning === "bad").length;
    const title = document.title.replace(/^\(\d+\) /, "");
    document.title = bad ? `(${bad}) ${title}` : title;
  }

  // Heard once: how long a job has not got on changes all the time.
  #say(all) {
    const fresh = all.filter((alert) => !this.#heard.has(alert.key));
    this.#heard = new Set(all.map((alert) => alert.key));
    if (fresh.length) setText(this.#ear, fresh.map((alert) => alert.text).join(". "));
  }

  #make(alert) {
    const words = alert.job === undefined ? h("span", { class: "words" }) : h("a", { class: "words", href: `#/jobs/${alert.job}` });
    return h("p", { class: `alert ${alert.meaning}` },
      h("span", { class: "sign", "aria-hidden": "true" }, "!"),
      words,
      h("button", { type: "button", class: "plain small", "aria-label": `Dismiss: ${alert.text}`, onclick: () => this.#dismiss(alert.key) }, "Dismiss"));
  }

  #dismiss(key) {
    this.#seen.add(key);
    this.#draw();
  }
}

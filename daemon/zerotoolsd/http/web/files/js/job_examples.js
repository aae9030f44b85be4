// The first examples of a job as its model sees them: what it is trained to say stands out.

import { fillOnce, h, later } from "./dom.js";
import { count, duration, hasSpeed, plainName, plainText } from "./format.js";
import { passes } from "./session.js";

const NUMBERS = [3, 10, 20];
const WAIT_SECONDS = 10;
const EXAMPLES_MS = 1000;
/** Useful operations a second, by which a time is shown of a job that has not trained yet. */
const RATE = 1e14;

export class ExamplesPart {
  #view;
  #id;
  #ended = new AbortController();
  #timer = null;
  #round = 0;
  #show = NUMBERS[0];
  #place = h("div", { "aria-live": "polite" });

  constructor(view, id) {
    this.#view = view;
    this.#id = id;
    const select = h("select", { "aria-label": "How many examples", onchange: (event) => {
      this.#show = event.target.value;
      this.#read();
    } },
      NUMBERS.map((number) => h("option", { value: number }, `${number} examples`)));
    this.element = h("section", { "aria-label": "Examples" }, h("div", { class: "bar" }, select), this.#place);
    this.#read();
  }

  close() {
    this.#ended.abort();
    this.#timer?.();
  }

  async #read() {
    this.#timer?.();
    const round = (this.#round += 1);
    let again = true;
    try {
      const found = await this.#view.session.get(`/v1/jobs/${this.#id}/examples?show=${this.#show}&wait=${WAIT_SECONDS}`, { signal: this.#ended.signal });
      if (round !== this.#round) return;
      again = !found.ready;
      fillOnce(this.#place, found, () => this.#shown(found));
    } catch (error) {
      if (this.#ended.signal.aborted) return;
      again = passes(error);
      if (!again) fillOnce(this.#place, error.message, () => h("p", { class: "empty" }, error.message));
    }
    if (again && round === this.#round && !this.#ended.signal.aborted) this.#timer = later(() => this.#read(), EXAMPLES_MS);
  }

  #shown({ ready, problem, notes, sample }) {
    if (!ready) return h("p", { class: "empty" }, "The job's interpreter reads the first examples; importing libraries takes most of the time.");
    if (problem !== null) return h("p", { class: "empty" }, problem);
    return sampleShown(notes, sample, this.#view.job);
  }
}

/** What was read of the data of a job, which need not be queued yet: notes, examples, lengths. */
export function sampleShown(notes, sample, job = null) {
  const said = notes.map((note) => h("p", { class: "note" }, note));
  if (sample === null) return [said, h("p", { class: "empty" }, "Its data has no examples to show: it is of token ids, too short for one sequence, or read by a program of the user's own.")];
  return [
    h("p", {}, "What the model learns to say is ", h("mark", { class: "trained" }, "underlined and green"), "; it reads the rest."),
    said,
    sample.examples.map(exampleOf),
    h("h3", {}, "All examples that were checked"),
    h("ul", {}, wordsOf(sample, job).map((words) => h("li", {}, words))),
    histogram(sample.lengths),
  ];
}

function wordsOf(sample, job) {
  const words = [`${count(sample.looked_at)} examples, ${sample.tokens ? Math.round((100 * sample.trained_tokens) / sample.tokens) : 0} % of ${count(sample.tokens)} tokens trained`];
  if (sample.duplicates) words.push(`${count(sample.duplicates)} the same as an earlier one`);
  if (sample.empty) words.push(`${count(sample.empty)} left out: no prompt or no answer`);
  if (sample.packed) words.push(`packed: ${count(sample.packed.sequences)} sequences of ${count(sample.packed.length)} tokens, ${Math.round(100 * sample.packed.filled)} % full`);
  if (sample.epoch) {
    const { tokens, sequences, steps, operations } = sample.epoch;
    const speed = job?.progress?.tokens_per_second;
    let time = operations ? `; ${duration(operations / RATE)} at ${RATE / 1e12} TFLOP/s` : "";
    if (speed > 0) time = `; ${duration(tokens / speed)} at ${hasSpeed(job) ? "the speed of now" : "the speed that it had"}`;
    words.push(`an epoch: about ${count(tokens)} tokens, ${count(sequences)} sequences, ${count(steps)} steps${time}`);
  }
  if (sample.memory) words.push(`memory: ${sample.memory}`);
  return words;
}

function exampleOf(example) {
  const lost = example.tokens_lost ? `; ${count(example.tokens_lost)} more were cut off` : "";
  const parts = example.parts.map((part) => (part.trained ? h("mark", { class: "trained" }, plainText(part.text)) : plainText(part.text)));
  return h("article", { class: "example" },
    h("h3", {}, h("span", {}, plainName(example.place)), " ", h("small", {}, `${count(example.tokens)} tokens, ${count(example.trained_tokens)} trained${lost}`)),
    h("pre", { class: "wrap" }, parts, example.text_cut && h("span", { class: "quiet" }, "\n… (the rest is not shown)")));
}

function histogram(lengths) {
  const most = Math.max(1, ...lengths.map(([, , examples]) => examples));
  const heads = ["Tokens", "Examples"];
  return h("table", { class: "histogram" },
    h("caption", {}, "Tokens per example"),
    h("thead", { class: "unseen" }, h("tr", {}, heads.map((head) => h("th", { scope: "col" }, head)))),
    h("tbody", {}, lengths.map(([least, longest, examples]) => h("tr", {},
      h("th", { scope: "row" }, `${count(least)} – ${count(longest)}`),
      h("td", {}, h("progress", { max: most, value: examples, "aria-hidden": "true" }), h("span", {}, count(examples)))))));
}

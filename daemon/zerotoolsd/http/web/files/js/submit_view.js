// A job from a text: what it is, whether it would be accepted and what it needs, and then it is queued.

import { field, termFields, termsOf, valuesOf } from "./dialogs.js";
import { fill, h, refocus, setText } from "./dom.js";
import { titleOf } from "./format.js";
import { MOST_PRIORITY } from "./job_actions.js";
import { sampleShown } from "./job_examples.js";

const EXAMPLES = 3;
const EXAMPLE = [
  "Paste it here, or drop a file. Paths must be absolute. For example:",
  "",
  'output_dir = "/runs/chat"',
  "gpus = 2",
  'model.path = "/models/Qwen2.5-7B"',
  'data = { examples = ["/data/chat.jsonl"], sequence_length = 2048 }',
  "train = { steps = 1000, batch_size = 16 }",
].join("\n");
const MOST_BYTES = 131072;
const OF_DEEPSPEED = ["zero_optimization", "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"];

/** Whether a text is a config of DeepSpeed, and no job file. */
function isDeepSpeed(text) {
  try {
    const keys = JSON.parse(text);
    return OF_DEEPSPEED.some((key) => Object.hasOwn(keys, key));
  } catch {
    return false;
  }
}

// The text of a file. Raises an Error, as for a directory.
async function textOf(file) {
  if (file.size > MOST_BYTES) throw new Error(`${file.name} has ${file.size} bytes, and a job file may have ${MOST_BYTES}`);
  return file.text().catch((error) => {
    throw new Error(`${file.name} cannot be read: ${error.message}`);
  });
}

export class SubmitView {
  #page;
  #ended = new AbortController();
  #source = null;
  #deepspeed = null;
  #job = null;
  #terms = {};
  #key = "";
  #round = 0;
  #form;
  #text = field({ name: "text", label: "Job file (TOML or JSON), or DeepSpeed's JSON", kind: "textarea", rows: 16, required: true, placeholder: EXAMPLE });
  #beside = h("p", { class: "chips" });
  #said = h("p", { class: "wrap", role: "status" });
  #refused = h("p", { class: "bad wrap", role: "alert" });
  #found = h("div");
  #check = h("button", { class: "primary" }, "Check");
  #queue = h("button", { type: "button", class: "primary", disabled: true, onclick: () => this.#submit() }, "Queue the job");

  constructor(page) {
    this.#page = page;
    const files = h("input", { type: "file", multiple: true, accept: ".toml,.json", "aria-label": "Choose files", onchange: (event) => this.take(event.target.files) });
    const terms = h("details", { class: "numbers" }, h("summary", {}, "Name, priority and time"), h("div", { class: "fields" },
      field({ name: "name", label: "Name", maxlength: 200 }),
      field({ name: "priority", label: "Priority", kind: "number", min: -MOST_PRIORITY, max: MOST_PRIORITY, step: 1, hint: "the higher one starts first; 0 if empty" }),
      termFields(),
      field({ name: "hold", label: "Hold it", kind: "checkbox" })));
    this.#form = h("form", { class: "submit", onsubmit: (event) => {
      event.preventDefault();
      this.#look();
    }, oninput: () => this.#change() }, this.#text, h("div", { class: "bar" }, files, this.#beside), terms, h("div", { class: "bar" }, this.#check, this.#queue), this.#said, this.#refused, this.#found);
    this.element = h("section", {}, h("h1", {}, "Submit a job"), this.#form);
    this.#recall();
  }

  close() {
    this.#ended.abort();
    SubmitView.draft = { values: valuesOf(this.#form), source: this.#source, deepspeed: this.#deepspeed };
  }

  #recall() {
    const { values = {}, source = null, deepspeed = null } = SubmitView.draft ?? {};
    for (const [name, value] of Object.entries(values)) {
      const place = this.#form.elements[name];
      if (typeof value === "boolean") place.checked = value;
      else place.value = value;
    }
    this.#source = source;
    this.#deepspeed = deepspeed;
    this.#drawBeside();
  }

  get #input() {
    return this.#form.elements.text;
  }

  /** Put files into the form: job files, and DeepSpeed's config. */
  async take(files) {
    let refused = "";
    try {
      for (const file of files) this.#add(await textOf(file), file.name);
    } catch (error) {
      refused = error.message;
    }
    this.#change();
    setText(this.#refused, refused);
    this.#drawBeside();
  }

  #add(text, name) {
    const before = this.#input.value;
    if (isDeepSpeed(text) && !isDeepSpeed(before) && before.trim() !== "") this.#deepspeed = { name, text };
    else {
      if (isDeepSpeed(before) && !isDeepSpeed(text)) this.#deepspeed = { name: this.#source ?? "deepspeed.json", text: before };
      this.#put(text, name);
    }
  }

  #put(text, name) {
    this.#input.value = text;
    this.#source = name;
  }

  #drawBeside() {
    const { name } = this.#deepspeed ?? {};
    fill(this.#beside, name ? h("button", { type: "button", class: "chip", "aria-label": `Leave out ${name}`, onclick: () => {
      this.#deepspeed = null;
      this.#change();
      this.#drawBeside();
    } }, `with ${name}`, h("span", { "aria-hidden": "true" }, "×")) : null);
  }

  // What was checked is no longer what is there.
  #change() {
    this.#round += 1;
    this.#job = null;
    this.#queue.disabled = true;
    setText(this.#said, "");
    setText(this.#refused, "");
    fill(this.#found);
  }

  async #ask(words, act) {
    this.#check.disabled = true;
    setText(this.#refused, "");
    setText(this.#said, words);
    try {
      await act();
    } catch (error) {
      if (this.#ended.signal.aborted) return;
      setText(this.#said, "");
      setText(this.#refused, error.message);
      refocus(this.#input);
    }
    this.#check.disabled = false;
  }

  async #look() {
    this.#change();
    const round = this.#round;
    await this.#ask("Checking: the job's interpreter reads the data and builds the model without weights…", async () => {
      const { session } = this.#page;
      const options = { slow: true, signal: this.#ended.signal };
      const values = valuesOf(this.#form);
      const terms = { ...termsOf(values), hold: values.hold, priority: values.priority === "" ? null : Number(values.priority) };
      const read = await session.post("/v1/import", { text: values.text, deepspeed: this.#deepspeed?.text ?? null, name: this.#source }, options);
      if (round !== this.#round) return;
      const notes = read.notes.map((note) => h("p", { class: "quiet wrap" }, note));
      if (read.job === null) {
        this.#put(read.text, null);
        setText(this.#said, `This is the job file for DeepSpeed's config. Add ${read.missing.join(", ")}, and check it.`);
        fill(this.#found, notes);
        this.#input.focus();
        return;
      }
      const job = values.name ? { ...read.job, name: values.name } : read.job;
      const { notes: more, sample } = await session.post("/v1/check", { job, show: EXAMPLES, ...terms }, options);
      if (round !== this.#round) return;
      [this.#job, this.#terms, this.#key] = [job, terms, crypto.randomUUID()];
      setText(this.#said, "It would be accepted.");
      fill(this.#found, notes, sampleShown(more, sample));
      this.#queue.disabled = false;
      this.#queue.focus();
    });
  }

  async #submit() {
    this.#queue.disabled = true;
    await this.#ask("Queueing…", async () => {
      const { session, store } = this.#page;
      const found = await session.post("/v1/jobs", { job: this.#job, idempotency_key: this.#key, ...this.#terms }, { slow: true, signal: this.#ended.signal });
      this.#form.reset();
      [this.#source, this.#deepspeed] = [null, null];
      this.#page.say(`${titleOf(found)} is queued`, "good");
      store.refresh();
      if (location.hash.startsWith("#/submit")) location.hash = `#/jobs/${found.id}`;
    });
    this.#queue.disabled = this.#job === null;
  }
}
SubmitView.draft = null;

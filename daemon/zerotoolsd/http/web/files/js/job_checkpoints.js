// The checkpoints of a job as a tree, and the commands that take one from there.

import { ask, askForm, field } from "./dialogs.js";
import { copyButton, fill, fillOnce, h, keyed, later, setText } from "./dom.js";
import { ago, bytes, count, moment, plainName, quoted } from "./format.js";
import { passes } from "./session.js";

const CHECKPOINTS_MS = 15000;
const HOW = { at_save: "when it was saved", digests: "by its digests", unchanged: "by its digests; unchanged since", structure: "its structure" };

/** The commands for a checkpoint; `ranks` is the world size that it was saved with. */
export function commandsOf(path, ranks) {
  const at = quoted(path);
  const other = ranks > 1 ? Math.max(1, Math.floor(ranks / 2)) : 2;
  return [
    ["look inside", `zerotools inspect ${at}`],
    ["16-bit weights for from_pretrained", `zerotools consolidate ${at} ${quoted(`${path}-bf16`)}`],
    [`for another number of ranks`, `zerotools reshard ${at} ${quoted(`${path}-for-${other}`)} --world-size ${other}`],
    ["read every byte, and compare", `zerotools verify ${at}`],
  ];
}

/** Whether a checkpoint is whole, as far as is known: a word, its meaning, and more to say. */
function verdictOf(saved, said) {
  if (saved.problem) return ["damaged", "bad", saved.problem];
  if (said?.verified) return ["verified", "good", `verified ${HOW[said.verified] ?? said.verified}, ${ago(said.time)}`];
  if (said?.not_verified) return ["not verified", "warning", said.not_verified];
  if (saved.checked === "sizes") return ["files are there", "good", "sizes as in the manifest; bytes were not read"];
  return ["not checked", "quiet", "too many files to check now"];
}

export class CheckpointsPart {
  #view;
  #id;
  #ended = new AbortController();
  #timer = null;
  #opened = new Set();
  #items = h("ul", { class: "tree" });
  #rest = h("div");
  #total = h("span", { class: "quiet" });
  #place = h("div");

  constructor(view, id) {
    this.#view = view;
    this.#id = id;
    this.element = h("section", { "aria-label": "Checkpoints" }, this.#place);
    fill(this.#place, h("p", { class: "quiet" }, "Looking at the files…"));
    this.#read();
  }

  close() {
    this.#ended.abort();
    this.#timer?.();
  }

  async #read() {
    try {
      const { signal } = this.#ended;
      const [tree, curves] = await Promise.all([
        this.#view.session.get(`/v1/jobs/${this.#id}/checkpoints`, { signal }),
        this.#view.session.get(`/v1/jobs/${this.#id}/curves?points=1`, { signal }),
      ]);
      this.#draw(tree, new Map(curves.checkpoints.map((each) => [each.path, each])));
    } catch (error) {
      if (this.#ended.signal.aborted) return;
      if (!passes(error)) fill(this.#place, h("p", { class: "empty" }, error.message));
    }
    if (!this.#ended.signal.aborted && this.#view.runs) this.#timer = later(() => this.#read(), CHECKPOINTS_MS);
  }

  #draw(tree, said) {
    const newest = this.#view.job?.latest_checkpoint;
    if (newest?.verified && !said.get(newest.path)?.verified) said.set(newest.path, { verified: newest.verified.how, time: newest.verified.time });
    const root = h("p", { class: "root" }, h("code", {}, plainName(tree.output_dir)), " ", this.#total);
    const { length } = tree.checkpoints;
    setText(this.#total, length ? `${count(length)} ${length === 1 ? "checkpoint" : "checkpoints"}, ${bytes(tree.checkpoints.reduce((sum, saved) => sum + saved.size_bytes, 0))}` : "");
    if (!tree.checkpoints.length) {
      const where = this.#view.job?.spec?.engine === "script" ? "No checkpoint was found." : "There is no checkpoint yet.";
      fill(this.#place, root, h("p", { class: "empty" }, where), unfinished(tree));
      return;
    }
    keyed(this.#items, tree.checkpoints, (saved) => saved.path, () => h("li"), (item, saved) => fillOnce(item, [saved, said.get(saved.path)], () => this.#item(saved, said.get(saved.path))));
    fillOnce(this.#rest, [tree.more, tree.unfinished], () => [more(tree), unfinished(tree)]);
    if (!this.#items.isConnected) fill(this.#place, root, this.#items, this.#rest);
  }

  #item(saved, said) {
    const [word, meaning, more] = verdictOf(saved, said);
    const name = saved.path.split("/").at(-1);
    const details = h("details", { open: this.#opened.has(saved.path) },
      h("summary", {},
        h("strong", {}, plainName(name)),
        h("span", { class: `badge ${meaning}` }, word),
        h("span", { class: "quiet" }, [bytes(saved.size_bytes), saved.saved ? `saved ${ago(saved.saved)}` : "", said?.verified && !saved.problem ? `verified ${ago(said.time)}` : ""].filter(Boolean).join(", ")),
        [...saved.hints, ...(saved.thinned ? ["thinned"] : [])].map((hint) => h("span", { class: "tag" }, hint))),
      h("p", { class: meaning === "bad" ? "bad" : "quiet" }, plainName(more)),
      h("p", { class: "quiet" }, [saved.saved ? `saved ${moment(saved.saved)}` : "", saved.world_size ? `${saved.world_size} ranks` : "", saved.stage === null ? "" : `ZeRO-${saved.stage}`].filter(Boolean).join(", ")),
      this.#offers(saved),
      saved.problem ? null : h("table", { class: "commands" }, h("tbody", {}, commandsOf(saved.path, saved.world_size ?? 1).map(([words, line]) => h("tr", {}, h("th", { scope: "row" }, words), h("td", {}, h("code", {}, line)), h("td", {}, copyButton(line, `the command: ${words}`)))))),
      saved.files.length ? h("details", { class: "files" }, h("summary", {}, `${count(saved.file_count)} files`), h("ul", { class: "tree" }, saved.files.map(([file, size]) => h("li", {}, h("code", {}, plainName(file)), h("span", { class: "quiet" }, ` ${bytes(size)}`))), saved.file_count > saved.files.length ? h("li", { class: "quiet" }, `${count(saved.file_count - saved.files.length)} smaller ones`) : null)) : null);
    details.addEventListener("toggle", () => (details.open ? this.#opened.add(saved.path) : this.#opened.delete(saved.path)));
    return details;
  }

  // Its owner has it verified or exported by a job.
  #offers({ path, problem, step }) {
    const offer = (words, act) => h("button", { type: "button", class: "small", onclick: act }, words);
    const draw = offer("Draw it", () => (location.hash = `#/jobs/${this.#id}/picture/${step}`));
    if (!this.#view.isOwn) return h("div", { class: "chips" }, draw);
    return h("div", { class: "chips" }, draw,
      offer("Verify in a job", () => ask("Verify this checkpoint?", "A job on the CPU reads every byte and compares digests.", "Queue the job", "primary").then((yes) => yes && this.#view.convert(["verify", path])).catch((error) => this.#view.say(error.message))),
      problem ? null : offer("Export as a model…", () => askForm("Export as a model", [
        "A job on the CPU writes a directory for from_pretrained.",
        field({ name: "target", label: "Directory", value: `${path}-${DTYPES[0]}`, required: true, hint: "an absolute path that does not exist yet" }),
        field({ name: "dtype", label: "Type of the weights", kind: "select", options: DTYPES }),
      ], "Queue the job", ({ target, dtype }) => this.#view.convert(["consolidate", path, target, "--dtype", dtype]))));
  }
}

const DTYPES = ["bf16", "fp16", "fp32"];
const more = (tree) => (tree.more ? h("p", { class: "quiet" }, `${count(tree.more)} older ones are not shown.`) : null);

function unfinished(tree) {
  if (!tree.unfinished.length) return null;
  return h("p", { class: "quiet" }, `Not complete, or still being written: ${tree.unfinished.map(plainName).join(", ")}`);
}

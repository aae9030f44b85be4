// The log of a rank, as it grows.

import { choice, h, later, setText } from "./dom.js";
import { passing, plainLine } from "./format.js";
import { passes } from "./session.js";

const FIRST_BYTES = 262144;
const PART_BYTES = 262144;
const NEAR_PIXELS = 40;
const LINES_MS = 1500;

export class LogPart {
  #view;
  #id;
  #ended = new AbortController();
  #timer = null;
  #place = { attempt: null, rank: 0, offset: null };
  #round = 0;
  #reader = new LogLines();
  #lines = h("pre", { class: "log", tabindex: 0, role: "log", "aria-label": "Log", "aria-live": "off" });
  #follow = h("input", { type: "checkbox", checked: true });
  #wrap = h("input", { type: "checkbox", checked: true, onchange: (event) => this.#lines.classList.toggle("wrap", event.target.checked) });
  #find = h("input", { type: "search", placeholder: "Find", "aria-label": "Find in the log", oninput: () => this.#search() });
  #found = h("output", { class: "quiet" });
  #said = h("p", { class: "quiet", role: "status" });
  #attempt = h("select", { "aria-label": "Attempt", onchange: () => this.#begin() });
  #rank = h("select", { "aria-label": "Rank", onchange: () => this.#begin() });
  #shown = "";

  constructor(view, id) {
    this.#view = view;
    this.#id = id;
    this.#lines.classList.add("wrap");
    this.#lines.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    this.element = h("section", { "aria-label": "Log" }, h("div", { class: "bar" }, this.#attempt, this.#rank, choice(this.#follow, "Follow"), choice(this.#wrap, "Wrap lines"), this.#find, this.#found), this.#said, this.#lines);
  }

  // By a wheel, a finger or a key: whoever reads further up is left there.
  #scrolled() {
    const { scrollHeight, scrollTop, clientHeight } = this.#lines;
    if (scrollHeight - scrollTop - clientHeight > NEAR_PIXELS) this.#follow.checked = false;
  }

  // Lines without the words are hidden, also those that come later.
  #search() {
    const { value } = this.#find;
    const keeps = passing(value);
    const lines = [...this.#lines.children];
    for (const line of lines) line.hidden = !keeps(line.textContent);
    setText(this.#found, value && `${lines.filter((line) => !line.hidden).length} of ${lines.length} lines`);
    if (this.#follow.checked) this.#lines.scrollTop = this.#lines.scrollHeight;
  }

  close() {
    this.#ended.abort();
    this.#timer?.();
  }

  update() {
    const { job } = this.#view;
    const key = `${job.attempts.length} ${job.world_size}`;
    if (key === this.#shown) return;
    this.#shown = key;
    const newest = job.attempts.length;
    const follows = this.#place.attempt === null || Number(this.#attempt.value) === this.#attempt.options.length;
    this.#attempt.replaceChildren(...job.attempts.map((attempt) => h("option", { value: attempt.number }, `attempt ${attempt.number}`)));
    const ranks = Math.max(1, job.attempt?.world_size ?? job.world_size ?? 1);
    const rank = Math.min(Number(this.#rank.value || 0), ranks - 1);
    this.#rank.replaceChildren(...Array.from({ length: ranks }, (_, number) => h("option", { value: number }, `rank ${number}`)));
    this.#rank.value = String(rank);
    this.#attempt.value = String(follows ? newest : (this.#place.attempt ?? newest));
    if (newest === 0) setText(this.#said, "It has not started yet.");
    else if (follows) this.#begin();
  }

  #begin() {
    this.#round += 1;
    this.#place = { attempt: Number(this.#attempt.value), rank: Number(this.#rank.value), offset: null };
    this.#reader = new LogLines();
    this.#lines.replaceChildren();
    setText(this.#said, "");
    this.#read(this.#round);
  }

  async #read(round) {
    this.#timer?.();
    const { attempt, rank, offset } = this.#place;
    const first = offset === null;
    const where = first ? `offset=-${FIRST_BYTES}&limit=${FIRST_BYTES}` : `offset=${offset}&limit=${PART_BYTES}`;
    let over = false;
    let full = false;
    try {
      const answer = await this.#view.session.request(`/v1/jobs/${this.#id}/logs?attempt=${attempt}&rank=${rank}&${where}`, { signal: this.#ended.signal });
      const data = new Uint8Array(await answer.arrayBuffer());
      if (round !== this.#round) return;
      const next = Number(answer.headers.get("Zerotools-Next-Offset"));
      over = answer.headers.get("Zerotools-Over") === "true";
      full = data.length >= PART_BYTES;
      this.#place.offset = next;
      this.#take(data, first && next > data.length);
      if (first && next > data.length) setText(this.#said, `The last ${Math.round(FIRST_BYTES / 1024)} KiB; all of it: zerotools logs ${this.#id}`);
      else if (first && data.length === 0) setText(this.#said, over ? "It wrote nothing." : "It has written nothing yet.");
      else if (data.length && this.#said.textContent.startsWith("It has")) setText(this.#said, "");
    } catch (error) {
      if (this.#ended.signal.aborted || round !== this.#round) return;
      if (!passes(error)) {
        setText(this.#said, error.message);
        return;
      }
    }
    if (!over) this.#timer = later(() => this.#read(round), full ? 0 : LINES_MS);
  }

  #take(data, cut) {
    const { lines, open } = this.#reader.take(data, cut);
    this.#lines.querySelector(".open")?.remove();
    this.#lines.append(...lines.map(lineOf));
    if (open) {
      const last = lineOf(open);
      last.classList.add("open");
      this.#lines.append(last);
    }
    while (this.#lines.childElementCount > MOST_LINES) this.#lines.firstElementChild.remove();
    this.#search();
  }
}

function lineOf(text) {
  const bad = /\b(error|exception|traceback|nan)\b/i.test(text);
  return h("span", { class: bad ? "line bad" : "line" }, `${text}\n`);
}

const MOST_LINES = 5000;
const LONGEST = 4000;
const KEPT = 4 * LONGEST;

/** What is shown of a line: its beginning, and how much there is more. `more` characters of it were
 * left out before. */
function shownLine(text, more = 0) {
  const kept = text.slice(0, KEPT);
  const plain = plainLine(kept);
  const cut = more + text.length - kept.length + Math.max(0, plain.length - LONGEST);
  return cut ? `${plain.slice(0, LONGEST)} … ${cut.toLocaleString("en-US")} more characters` : plain;
}

// The bytes of a log as lines to show: so many, and none too long, whatever a job writes.
class LogLines {
  #decoder = new TextDecoder();
  #open = "";
  #more = 0;

  /** The last whole lines of what came, and the one that is not whole yet. `cut`: what came begins in
   * the middle of a line. */
  take(data, cut = false) {
    // A part ends where it ends: the bytes of a character may come in two of them.
    const lines = (this.#open + this.#decoder.decode(data, { stream: true })).split("\n");
    const more = this.#more;
    const open = lines.pop() ?? "";
    if (lines.length || cut) this.#more = 0;
    const whole = lines.map((line, index) => [line, index ? 0 : more]).slice(cut ? 1 : 0).slice(-MOST_LINES);
    this.#keep(open);
    return { lines: whole.map(([line, left]) => shownLine(line, left)), open: this.#open ? shownLine(this.#open, this.#more) : "" };
  }

  // Of a bar that redraws itself the last state, of an endless line the beginning.
  #keep(open) {
    const last = open.replace(/\r+$/, "").lastIndexOf("\r");
    if (last >= 0) this.#more = 0;
    const text = open.slice(last + 1);
    this.#more += Math.max(0, text.length - KEPT);
    this.#open = text.slice(0, KEPT);
  }
}

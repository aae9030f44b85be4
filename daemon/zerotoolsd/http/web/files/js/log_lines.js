// The bytes of a log as lines to show: so many, and none too long, whatever a job writes.

import { plainLine } from "./format.js";

export const MOST_LINES = 5000;
const LONGEST = 4000;
const KEPT = 4 * LONGEST;

/** What is shown of a line: its beginning, and how much there is more. `more` characters of it were
 * left out before. */
export function shownLine(text, more = 0) {
  const kept = text.slice(0, KEPT);
  const plain = plainLine(kept);
  const cut = more + text.length - kept.length + Math.max(0, plain.length - LONGEST);
  return cut ? `${plain.slice(0, LONGEST)} … ${cut.toLocaleString("en-US")} more characters` : plain;
}

export class LogLines {
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

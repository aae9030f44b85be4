// Numbers, times and names as people read them.

import { MEANINGS, STATES, TIMED_WORDS, WORDS } from "./job_words.js";

const MINUS = "−";
export const UNKNOWN = "–";

const SAME_SECONDS = 3;
let ahead = 0;

/** Seconds since 1970 by the clock of the daemon, from which all times come; the browser's may be
 * another one. */
export const now = () => Date.now() / 1000 + ahead;

/** `4 min 10 s` from one moment to another, which a clock that says whole seconds may put first. */
export const between = (begun, ended) => duration(Math.max(0, ended - begun));

/** It was `seconds` there just now. */
export function setNow(seconds) {
  const found = seconds - Date.now() / 1000;
  if (isNumber(found) && Math.abs(found - ahead) > SAME_SECONDS) ahead = found;
}

export const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

/** `61.2 GiB`. */
export function bytes(count) {
  if (!isNumber(count)) return UNKNOWN;
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  let value = Math.abs(count);
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  const digits = unit === 0 || value >= 100 ? 0 : 1;
  return `${count < 0 ? MINUS : ""}${value.toFixed(digits)} ${units[unit]}`;
}

/** `1 h 05 min`. */
export function duration(seconds) {
  if (!isNumber(seconds) || seconds < 0) return UNKNOWN;
  const whole = Math.round(seconds);
  const [d, h, m, s] = [Math.floor(whole / 86400), Math.floor(whole / 3600) % 24, Math.floor(whole / 60) % 60, whole % 60];
  const two = (n) => String(n).padStart(2, "0");
  if (d > 0) return `${d} d ${two(h)} h`;
  if (h > 0) return `${h} h ${two(m)} min`;
  if (m > 0) return `${m} min ${two(s)} s`;
  return `${s} s`;
}

/** `4 min ago`. */
export function ago(time) {
  if (!isNumber(time)) return UNKNOWN;
  const seconds = Math.max(0, now() - time);
  if (seconds < 10) return "just now";
  if (seconds < 60) return `${Math.round(seconds)} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ago`;
  return `${Math.floor(seconds / 86400)} d ago`;
}

/** The moment in the time of this browser. */
export function moment(time) {
  if (!isNumber(time)) return UNKNOWN;
  const date = new Date(time * 1000);
  return Number.isNaN(date.getTime()) ? UNKNOWN : date.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });
}

/** `12:04:31`, with the day where that is not today. */
export function clock(time) {
  if (!isNumber(time)) return UNKNOWN;
  const date = new Date(time * 1000);
  if (Number.isNaN(date.getTime())) return UNKNOWN;
  const hour = date.toLocaleTimeString(undefined, { hour12: false });
  return date.toDateString() === new Date(now() * 1000).toDateString() ? hour : `${date.toLocaleDateString()} ${hour}`;
}

/** A loss, or any other measure: four digits that mean something. */
export function measure(value) {
  if (!isNumber(value)) return UNKNOWN;
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) return value.toExponential(2).replace("-", MINUS).replace("e+", "e");
  return value.toPrecision(4).replace("-", MINUS);
}

/** `12,345`. */
export function count(value) {
  return isNumber(value) ? Math.round(value).toLocaleString("en-US") : UNKNOWN;
}

export const percent = (value) => (isNumber(value) ? `${Math.round(value)} %` : UNKNOWN);

/** A word of the shell, so that a path with spaces is one. What would act on the terminal into which
 * it is pasted, or turns the direction of text, is written as bash and zsh read it in `$'...'`. */
export function quoted(word) {
  if (UNSEEN.test(word)) return `$'${[...word].map(escaped).join("")}'`;
  return /^[A-Za-z0-9_@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}

// Characters that turn the direction of what follows: a line must not be read as another.
const TURNING = /[\u202a-\u202e\u2066-\u2069]/g;

const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]/;

function escaped(character) {
  if (character === "'" || character === "\\") return `\\${character}`;
  return UNSEEN.test(character) ? `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}` : character;
}

/** What a terminal would show of a line of a log: no escape sequences, and of a bar that redraws
 * itself the last state. */
export function plainLine(line) {
  const parts = line.replace(/\r+$/, "").split("\r");
  const text = parts[parts.length - 1];
  // CSI, OSC and other escape sequences (ECMA-48), then what is left of control characters.
  return text
    .replace(/(?:\u001b\[|\u009b)[0-?]*[ -/]*[@-~]/g, "")
    .replace(/\u001b\][^\u0007\u001b]*(?:\u0007|\u001b\\)?/g, "")
    .replace(/\u001b[@-_]?/g, "")
    .replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/g, "")
    .replace(TURNING, "\ufffd");
}

/** A text of several lines; what would act on a terminal or turn the direction is shown as marks. */
export const plainText = (text) => text.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/g, "\ufffd").replace(TURNING, "\ufffd");

/** Names may hold characters that turn the direction of what follows: they are shown as marks. */
export function plainName(name) {
  return String(name ?? "").replace(new RegExp(UNSEEN, "g"), "\ufffd");
}

const SIGNS = {
  held: "‖",
  holding: "‖",
  waiting: "…",
  queued: "…",
  starting: "▸",
  running: "▶",
  saving: "▾",
  late: "!",
  stalled: "!",
  stopping: "■",
  yielding: "↷",
  waiting_retry: "↻",
  succeeded: "✓",
  failed: "✕",
  cancelled: "–",
  stopped: "■",
};
export const OVER = new Set(["succeeded", "failed", "cancelled", "stopped"]);
/** A job starts from these only when somebody releases it. */
export const HELD = new Set(["on_hold", "paused", "held"]);
export const RUNS = new Set(["launching", "running", "stopping", "pausing", "yielding"]);
/** The words for jobs that run and do not get on. */
export const SLOW = ["late", "stalled"];
/** Not over, those that run first. */
export const OPEN = [...RUNS, ...STATES.filter((state) => !OVER.has(state) && !RUNS.has(state))];

/** Word, meaning and sign of a state; of a newer daemon's, its own word. */
export function stateWords(state) {
  const word = WORDS[state] ?? String(state);
  return [word.replaceAll("_", " "), MEANINGS[word] ?? "quiet", SIGNS[word] ?? "?"];
}

/** `41s`, `19m`, `4h`, `3d`. */
function age(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  for (const [length, unit] of [[86400, "d"], [3600, "h"], [60, "m"]]) {
    if (whole >= length) return `${Math.floor(whole / length)}${unit}`;
  }
  return `${whole}s`;
}

/** The words for the state of a job. Some are followed by the time in this state, as in `saving 41s`. */
export function stateOf(job) {
  const [words, meaning, sign] = stateWords(job.state_word);
  const isTimed = TIMED_WORDS.includes(job.state_word) && isNumber(job.state_since);
  return [isTimed ? `${words} ${age(now() - job.state_since)}` : words, meaning, sign];
}

/** Whether what it says of its speed is of now. */
export const hasSpeed = (job) => RUNS.has(job.state) && !["step_is_old", "stalled", "quiet"].some((name) => job.phase?.[name]) && isNumber(job.progress?.tokens_per_second);

/** `anna`, or `uid 1000`. */
export const ownerOf = (job) => plainName(job.user ?? `uid ${job.uid}`);

/** `#7 tiny`. */
export const titleOf = (job) => `#${job.id} ${plainName(job.name)}`.trim();

/** Whether a text passes a filter: it has all of its words, and none of those that begin with `-`. A
 * word is a regular expression, or, if it is none, a text; capitals do not matter. */
export function passing(filter) {
  const wanted = filter.split(/\s+/).filter((word) => word && word !== "-").map((word) => [word[0] !== "-", finder(word.replace(/^-/, ""))]);
  return (text) => wanted.every(([has, finds]) => finds.test(text) === has);
}

function finder(word) {
  const text = word.replace(/[^\w\s]/g, "\\$&");
  try {
    return new RegExp(`${text}|${word}`, "i");
  } catch {
    return new RegExp(text, "i");
  }
}

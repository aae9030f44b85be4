// Curves as numbers: smoothing, runs beside each other, what comes after. No page, no requests.

import { isNumber } from "./format.js";

/** An exponential mean that starts at the first value and is not drawn towards 0 by it
 * (Kingma and Ba 2015, section 3: the correction of the bias). `weight` is from 0 to below 1. */
export function smoothed(values, weight) {
  if (weight <= 0) return values.slice();
  let mean = 0;
  let part = 0;
  return values.map((value) => {
    if (!isNumber(value)) return null;
    mean = weight * mean + (1 - weight) * value;
    part = weight * part + (1 - weight);
    return mean / part;
  });
}

/** Series of their own x put on one x: `[x, values, values, ...]`, with a null where a series has
 * nothing. Each of `lines` is `{x, y}`, ascending in x; a point whose x is null is left out. */
export function joined(lines) {
  const all = new Set();
  for (const line of lines) for (const x of line.x) if (x !== null) all.add(x);
  const xs = [...all].sort((a, b) => a - b);
  const place = new Map(xs.map((x, index) => [x, index]));
  const columns = lines.map((line) => {
    const column = new Array(xs.length).fill(null);
    line.x.forEach((x, index) => {
      if (x !== null) column[place.get(x)] = line.y[index] ?? null;
    });
    return column;
  });
  return [xs, ...columns];
}

/** Columns one upon the other: each is the sum of itself and of those before it; nulls count as
 * nothing, where any has a value. */
export function stacked(columns) {
  const sums = [];
  columns.forEach((column, number) => {
    sums.push(column.map((value, index) => {
      const below = number ? sums[number - 1][index] : null;
      if (!isNumber(value) && !isNumber(below)) return null;
      return (isNumber(value) ? value : 0) + (isNumber(below) ? below : 0);
    }));
  });
  return sums;
}

/** The times and means of a history with an empty point where nothing was kept for a time: no line is
 * drawn over it. */
export function withGaps({ times, series, step_seconds: step }) {
  const places = times.flatMap((time, index) => (times[index + 1] - time > 1.5 * step ? [index, index + 0.5] : index));
  const found = {};
  for (const [name, { mean }] of Object.entries(series)) found[name] = { mean: places.map((place) => mean[place] ?? null) };
  return { times: places.map((place) => times[place] ?? times[place - 0.5] + step), series: found };
}

/** Of the memory of a GPU or of the host over time: a column for each job that had some, and one
 * for the rest. `series` are those of the history, `used` the name of the total, `ofJob(name)` the
 * job whose share a series is, or null. */
export function byOwner(series, used, ofJob) {
  const total = series[used]?.mean ?? [];
  const owners = [];
  for (const [name, column] of Object.entries(series)) {
    const job = ofJob(name);
    if (job !== null && column.mean.some((value) => isNumber(value) && value > 0)) owners.push({ job, values: column.mean });
  }
  owners.sort((a, b) => a.job - b.job);
  // A job's mean is of the part of a point in which it had memory: two that follow each other in one
  // point would have more together than was used.
  const known = total.map((_, index) => owners.reduce((sum, owner) => sum + (isNumber(owner.values[index]) ? owner.values[index] : 0), 0));
  for (const owner of owners) owner.values = owner.values.map((value, index) => (isNumber(value) && isNumber(total[index]) && known[index] > total[index] ? (value * total[index]) / known[index] : value));
  const others = total.map((value, index) => (isNumber(value) ? Math.max(0, value - known[index]) : null));
  return { owners, others };
}

// What an attempt reports is joined to the curves that were read before, as the daemon joins it
// (zerotools.jobs.join_attempt_curves): the page shows the same whether it was open or is loaded anew.

const OF_STEPS = { loss: "loss", lr: "lr", grad_norm: "grad_norm", tokens_per_second: "tokens_per_second", reward_chosen: "reward_chosen", reward_rejected: "reward_rejected", reward_margin: "reward_margin", reward_accuracy: "reward_accuracy", host_bytes: "rss_bytes", gpu_bytes: "gpu_peak_bytes", time: "time" };
const OF_EVALUATIONS = { eval_loss: "loss", perplexity: "perplexity", rouge1: "rouge1", rouge2: "rouge2", rougeL: "rougeL", bleu: "bleu", eval_reward_margin: "reward_margin", eval_reward_accuracy: "reward_accuracy", eval_time: "time" };
const NO_SCORES = new Set(["event", "phase", "rank", "step", "steps", "time", "clock", "seconds", "sequences", "tokens", "rss_bytes", "gpu_peak_bytes", "predicted", "predicted_seconds", "reward_chosen", "reward_rejected", ...Object.values(OF_EVALUATIONS)]);

const MOST_SCORES = 200;

/** Take the next `records` of `attempt` of `job`, the newest one, into `curves`. From its first step
 * on it takes the place of what was there; what it says of a step once more is added to that step.
 * Says whether anything changed. */
export function extended(curves, records, { job, attempt }) {
  let changed = false;
  for (const record of records) {
    const { step } = record;
    if (!Number.isInteger(step) || step < 0) continue;
    if (record.event === "step" || record.event === "eval") {
      takeOver(curves, step, job, attempt);
      if (record.event === "step") put(curves.steps, OF_STEPS, record);
      else {
        put(curves.evaluations, OF_EVALUATIONS, record);
        putScores(curves.scores, record);
      }
      if (record.loss === null && !curves.not_finite.includes(step)) curves.not_finite.push(step);
      changed = true;
    } else if (record.event === "checkpoint" && typeof record.path === "string") {
      saved(curves.checkpoints, record);
      changed = true;
    }
  }
  return changed;
}

// Where the attempt goes further back than it was known to, the steps of others go from there on.
function takeOver(curves, step, job, attempt) {
  const last = curves.parts.at(-1);
  const own = last?.job === job && last.attempt === attempt ? last : null;
  const until = own ? own.first_step : Infinity;
  if (step >= until) return;
  for (const columns of [curves.steps, curves.evaluations, curves.scores]) {
    const from = placeOf(columns.step, step);
    const cut = placeOf(columns.step, until) - from;
    for (const column of Object.values(columns)) column.splice(from, cut);
  }
  curves.not_finite = curves.not_finite.filter((each) => each < step || each >= until);
  curves.parts = curves.parts.filter((part) => part !== own && part.first_step < step);
  curves.parts.push({ world_size: null, ...own, job, attempt, first_step: step });
}

function put(columns, keys, record) {
  const at = placeOf(columns.step, record.step);
  if (columns.step[at] !== record.step) for (const [name, column] of Object.entries(columns)) column.splice(at, 0, name === "step" ? record.step : null);
  for (const [name, key] of Object.entries(keys)) {
    if (!isNumber(record[key])) continue;
    // A program chooses the names of its scores, and "constructor" is one like any other.
    if (!Object.hasOwn(columns, name)) columns[name] = new Array(columns.step.length).fill(null);
    columns[name][at] = record[key];
  }
}

// Scores that have no column of their own: those of tasks, and what a program of the user's reports.
function putScores(scores, record) {
  const names = Object.keys(record).filter((name) => !NO_SCORES.has(name) && isNumber(record[name]) && (Object.hasOwn(scores, name) || Object.keys(scores).length < MOST_SCORES));
  if (names.length) put(scores, Object.fromEntries([...names, "time"].map((name) => [name, name])), record);
}

/** Where `step` is in ascending `steps`, or would be. */
function placeOf(steps, step) {
  let [low, high] = [0, steps.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (steps[middle] < step) low = middle + 1;
    else high = middle;
  }
  return low;
}

function saved(checkpoints, { step, path, time, verified, not_verified }) {
  const said = { step, path, time, verified: verified ?? null, not_verified: not_verified ?? null };
  const at = checkpoints.findIndex((each) => each.path === path);
  if (at < 0) checkpoints.push(said);
  else checkpoints[at] = said;
}

/** Tokens of one step of a job: by its job file, or by what its steps reported; null: unknown. */
export function tokensPerStep(job, steps) {
  const { train, data } = job?.spec ?? {};
  if (isNumber(train?.batch_size) && isNumber(data?.sequence_length)) return train.batch_size * data.sequence_length;
  const { step, time = [], tokens_per_second: speed = [] } = steps;
  const found = [];
  for (let at = 1; at < step.length; at += 1) {
    const tokens = (speed[at] * (time[at] - time[at - 1])) / (step[at] - step[at - 1]);
    if (isNumber(tokens) && isNumber(speed[at]) && isNumber(time[at - 1]) && tokens > 0) found.push(tokens);
  }
  // The median: steps at which it saved or was evaluated took longer.
  return found.length ? found.sort((a, b) => a - b)[found.length >> 1] : null;
}

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
 * nothing. Each of `lines` is `{x, y}`, ascending in x. */
export function joined(lines) {
  const all = new Set();
  for (const line of lines) for (const x of line.x) all.add(x);
  const xs = [...all].sort((a, b) => a - b);
  const place = new Map(xs.map((x, index) => [x, index]));
  const columns = lines.map((line) => {
    const column = new Array(xs.length).fill(null);
    line.x.forEach((x, index) => (column[place.get(x)] = line.y[index] ?? null));
    return column;
  });
  return [xs, ...columns];
}

/** Take what an attempt reported since into columns that were read before; of a step that is there
 * already the newer values count, and a step that goes back takes away what is behind it. Says
 * whether anything changed. */
export function extended(curves, records) {
  let changed = false;
  for (const record of records) {
    const step = record.step;
    if (!Number.isInteger(step)) continue;
    if (record.event === "step") {
      put(curves.steps, STEP_KEYS, record);
      if ("loss" in record && !isNumber(record.loss) && !curves.not_finite.includes(step)) curves.not_finite.push(step);
      changed = true;
    } else if (record.event === "eval") {
      put(curves.evaluations, EVAL_KEYS, record);
      changed = true;
    } else if (record.event === "checkpoint" && typeof record.path === "string") {
      curves.checkpoints.push({ step, path: record.path, time: record.time, verified: record.verified ?? null, not_verified: record.not_verified ?? null });
      changed = true;
    }
  }
  return changed;
}

const STEP_KEYS = { loss: "loss", lr: "lr", grad_norm: "grad_norm", tokens_per_second: "tokens_per_second", host_bytes: "rss_bytes", gpu_bytes: "gpu_peak_bytes", time: "time" };
const EVAL_KEYS = { eval_loss: "loss", perplexity: "perplexity", rouge1: "rouge1", rouge2: "rouge2", rougeL: "rougeL", bleu: "bleu", eval_time: "time" };

function put(columns, keys, record) {
  const steps = columns.step;
  let end = steps.length;
  while (end > 0 && steps[end - 1] >= record.step) end -= 1;
  for (const column of Object.values(columns)) column.length = Math.min(column.length, end);
  steps.push(record.step);
  for (const [name, key] of Object.entries(keys)) {
    const value = isNumber(record[key]) ? record[key] : null;
    if (columns[name] === undefined) {
      if (value === null) continue;
      columns[name] = new Array(end).fill(null);
    }
    columns[name].push(value);
  }
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
  const others = total.map((value, index) => {
    if (!isNumber(value)) return null;
    const known = owners.reduce((sum, owner) => sum + (isNumber(owner.values[index]) ? owner.values[index] : 0), 0);
    return Math.max(0, value - known);
  });
  return { owners, others };
}

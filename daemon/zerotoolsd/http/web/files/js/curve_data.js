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

// Who used the GPUs, by day, from the history. No page, no requests.

import { isNumber } from "./format.js";

/** The part of a point that a job has on average if it has neither, one or both of its ends there. */
const PART = [1, 1 / 2, 1 / 3];
export const JOB_ON_GPU = /^job\.(\d+)\.gpu\.(.+)\.memory_used_bytes$/;

/** The days from `begin` to `end`, each by its midnight in the time of this browser, in seconds. */
export function daysOf(begin, end) {
  const date = new Date(begin * 1000);
  date.setHours(0, 0, 0, 0);
  const found = [];
  for (; date.getTime() / 1000 < end; date.setDate(date.getDate() + 1)) found.push(date.getTime() / 1000);
  return found;
}

/** Hours of GPUs on which a job had memory: for each uid (null: unknown) a list with an entry for each
 * of `days`, the user with most hours first. `past` is an answer of the history, `uids` maps jobs to
 * uids. A job begins and ends within a point of the history: these points count in part. */
export function gpuHours(past, uids, days) {
  const { times, series, step_seconds: step } = past;
  const found = new Map();
  for (const [name, { mean }] of Object.entries(series)) {
    const job = JOB_ON_GPU.exec(name);
    if (!job) continue;
    const uid = uids.get(Number(job[1])) ?? null;
    if (!found.has(uid)) found.set(uid, days.map(() => 0));
    const hours = found.get(uid);
    const held = (index) => isNumber(mean[index]) && mean[index] > 0;
    for (const [index, time] of times.entries()) {
      if (!held(index)) continue;
      const edges = Number(index > 0 && !held(index - 1)) + Number(index < times.length - 1 && !held(index + 1));
      const day = days.findLastIndex((each) => each <= time);
      hours[Math.max(0, day)] += (PART[edges] * step) / 3600;
    }
  }
  const sum = (hours) => hours.reduce((a, b) => a + b, 0);
  return [...found.entries()].sort((a, b) => sum(b[1]) - sum(a[1]));
}

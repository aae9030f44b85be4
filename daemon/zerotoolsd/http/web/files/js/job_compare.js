// Jobs side by side: tokens of a step, and what differs in their job files. No page, no requests.

import { isNumber } from "./format.js";

/** Keys that differ between any two jobs, or that are no part of the job file. */
const LEFT_OUT = new Set(["name", "output_dir", "captured_env"]);

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

function* leaves(tree, prefix = "") {
  for (const [name, value] of Object.entries(tree)) {
    if (value !== null && typeof value === "object" && !Array.isArray(value)) yield* leaves(value, `${prefix}${name}.`);
    else yield [`${prefix}${name}`, value];
  }
}

/** The keys whose values are not the same in all `jobs`, of those that an author of them set: `[key,
 * [value, ...]]`, sorted. A key that a job does not have is undefined there. */
export function differences(jobs) {
  const all = jobs.map(({ spec }) => new Map(leaves(Object.fromEntries(Object.entries(spec).filter(([name]) => !LEFT_OUT.has(name))))));
  const set = new Set(jobs.flatMap((job) => job.set_keys ?? Object.keys(job.spec)));
  const isSet = (key) => key.split(".").some((_, at, words) => set.has(words.slice(0, at + 1).join(".")));
  const keys = [...new Set(all.flatMap((each) => [...each.keys()]))].filter(isSet).sort();
  return keys.map((key) => [key, all.map((each) => each.get(key))]).filter(([, values]) => new Set(values.map((value) => JSON.stringify(value))).size > 1);
}

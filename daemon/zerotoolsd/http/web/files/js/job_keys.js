// Keys of job files: those that an author set, what was changed of them, and what differs between jobs.

const HIDDEN = new Set(["env", "captured_env"]);
const isTable = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

// Keys of the job file are `key` or `table.key`; what is in them may be an object too.
function flat(tree) {
  return Object.entries(tree).flatMap(([name, value]) => (isTable(value) ? Object.entries(value).map(([key, each]) => [`${name}.${key}`, each]) : [[name, value]]));
}

/** The keys that the author of a job set, as a tree; variables are never sent. */
export function setKeys(job) {
  const named = job.set_keys ?? [];
  const found = {};
  for (const [key, value] of flat(job.spec)) {
    const [table, name] = key.split(/\.(.*)/);
    if (HIDDEN.has(table) || !named.some((each) => each === key || each.startsWith(`${key}.`))) continue;
    if (name === undefined) found[table] = value;
    else (found[table] ??= {})[name] = value;
  }
  return found;
}

/** What turns the keys `before` into `after`: `{set, unset}`. */
export function changesOf(before, after) {
  const [old, fresh] = [new Map(flat(before)), new Map(flat(after))];
  const set = Object.fromEntries([...fresh].filter(([key, value]) => JSON.stringify(old.get(key)) !== JSON.stringify(value)));
  return { set, unset: [...old.keys()].filter((key) => !fresh.has(key)) };
}

/** The object that a text of JSON is. Raises an Error. */
export function parseKeys(text) {
  let found;
  try {
    found = JSON.parse(text);
  } catch (error) {
    throw new Error(`the keys are not JSON: ${error.message}`);
  }
  if (!isTable(found)) throw new Error("the keys must be one object of JSON");
  return found;
}

/** Keys that differ between any two jobs, or that are no part of the job file. */
const LEFT_OUT = new Set(["name", "output_dir", "captured_env"]);

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

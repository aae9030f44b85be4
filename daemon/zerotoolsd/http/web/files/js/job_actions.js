// What its owner, or an administrator, can do with a job.

import { ask, askForm, field, termFields, termsOf } from "./dialogs.js";
import { HELD, OVER, RUNS, ownerOf, titleOf } from "./format.js";
import { changesOf, parseKeys, setKeys } from "./job_keys.js";

const CONTINUED = new Set(["failed", "cancelled", "stopped"]);
const EDITED = new Set(["on_hold", "waiting", "queued"]);
export const MOST_PRIORITY = 10;

/** What is done without a question to a job of the user's own. */
const AT_ONCE = new Set(["retry", "release", "hold"]);

/** The names of what can be done with a job in its state, the most likely first. */
export function offered(job) {
  const { state } = job;
  if (OVER.has(state)) return CONTINUED.has(state) ? ["retry", "again"] : ["again"];
  if (state === "stopping") return [];
  const turn = HELD.has(state) || state === "pausing" ? "release" : "hold";
  const edit = EDITED.has(state) && job.attempts.length === 0 ? ["edit"] : [];
  return [turn, "priority", ...edit, "cancel"];
}

export const ACTIONS = {
  retry: { words: "Retry", kind: "primary", key: "r" },
  again: { words: "Run again…", kind: "plain", key: "a" },
  release: { words: "Release", kind: "primary", key: "h" },
  hold: { words: "Hold", kind: "plain", key: "h" },
  priority: { words: "Priority…", kind: "plain", key: "p" },
  edit: { words: "Edit…", kind: "plain", key: "e" },
  cancel: { words: "Cancel", kind: "danger", key: "c" },
};

export class JobActions {
  #page;
  #changed;

  /** `changed(job)` is called with the job that a request has changed or made. */
  constructor(page, changed) {
    this.#page = page;
    this.#changed = changed;
  }

  /** Do what `name` says with a job, after a question where it has one, or the job is another user's. */
  async act(name, job) {
    const { words } = ACTIONS[name];
    try {
      if (AT_ONCE.has(name) && !this.#isOwn(job) && !(await ask(`${words} ${this.#named(job)}?`, "You do this as an administrator.", words))) return;
      await this[name](job);
    } catch (error) {
      this.#page.say(error.message, "bad");
    }
  }

  // The job for a question, which names the owner first where that is another user.
  #named(job) {
    return this.#isOwn(job) ? titleOf(job) : `the job of ${ownerOf(job)}: ${titleOf(job)}`;
  }

  #isOwn(job) {
    return job.uid === this.#page.session.me.uid;
  }

  async retry(job) {
    await this.#send(job, "retry", { from_start: false }, "continues where this one stopped");
  }

  async again(job) {
    const where = field({ name: "output_dir", label: "Another directory", hint: "an absolute path; empty: the daemon chooses one, or that of the job file" });
    await askForm(`Run ${this.#named(job)} again?`, ["A new job begins at step 0.", where], "Run again", ({ output_dir: place }) => this.#send(job, "retry", { from_start: true, output_dir: place || null }, "begins at step 0"));
  }

  async release(job) {
    await this.#send(job, "release", {}, job.state === "pausing" ? "is queued again when it has saved" : "released");
  }

  async hold(job) {
    const words = RUNS.has(job.state) ? "saves, then it is held" : "held";
    try {
      await this.#send(job, "hold", {}, words);
    } catch (error) {
      if (!error.message.includes("--lose-steps")) throw error;
      if (await ask(`Hold ${this.#named(job)} all the same?`, "The program may not save. Then the steps since its last checkpoint are lost.", "Lose the steps")) await this.#send(job, "hold", { lose_steps: true }, words);
    }
  }

  async priority(job) {
    const number = field({ name: "priority", label: "Priority", kind: "number", value: job.priority, min: -MOST_PRIORITY, max: MOST_PRIORITY, step: 1, required: true, hint: `from -${MOST_PRIORITY} to ${MOST_PRIORITY}; the higher one starts first` });
    await askForm(`Priority of ${this.#named(job)}`, [number], "Set it", (values) => this.#send(job, "priority", { priority: Number(values.priority) }, `has priority ${values.priority}`));
  }

  async edit(job) {
    const before = setKeys(job);
    const keys = field({ name: "keys", label: "Keys of the job file, as JSON", kind: "textarea", rows: 14, value: JSON.stringify(before, null, 2), hint: "variables of env are not shown, and stay" });
    await askForm(`Edit ${this.#named(job)}`, [keys, ...termFields(job)], "Change the job", (values) => {
      const body = changesOf(before, parseKeys(values.keys));
      const { after, begin } = termsOf(values);
      if (JSON.stringify(after) !== JSON.stringify(job.after.map(({ job: id, condition }) => ({ job: id, condition })))) body.after = after;
      if (begin !== null ? Math.abs(begin - (job.begin ?? 0)) >= 60 : job.begin) body.begin = begin ?? 0;
      if (Object.keys(body.set).length + body.unset.length === 0 && !("after" in body || "begin" in body)) throw new Error("nothing was changed");
      return this.#send(job, "edit", body, "changed");
    });
  }

  async cancel(job) {
    const text = RUNS.has(job.state) ? "It saves first where it can, then it stops." : "It will not start.";
    if (await ask(`Cancel ${this.#named(job)}?`, text, "Cancel the job")) await this.#send(job, "cancel", {}, "asked to stop");
  }

  async #send(job, what, body, words) {
    const found = await this.#page.session.post(`/v1/jobs/${job.id}/${what}`, body, { slow: what === "edit", headers: { "Zerotools-Owner": job.uid } });
    this.#page.say(`${titleOf(found)}: ${words}`, "good");
    this.#page.store.refresh();
    this.#changed(found);
  }
}

// The curves of the table of jobs: of the rows that are in sight, one after the other.

import { later } from "./later.js";

const POINTS = 60;
const AGAIN_MS = 30000;

export class SmallCurves {
  #session;
  #told;
  #known = new Map();
  #wanted = new Set();
  #running = false;
  #ended = new AbortController();
  #callOff = null;

  /** `told()` is called where one was read. */
  constructor(session, told) {
    this.#session = session;
    this.#told = told;
  }

  close() {
    this.#ended.abort();
    this.#callOff?.();
  }

  /** What was read of a job: `{key, values}`, or null. */
  of(id) {
    const found = this.#known.get(id);
    return found?.values ? found : null;
  }

  /** Read that of this job, where it is older than what the job may have reported since. */
  want(id, grows) {
    const known = this.#known.get(id);
    if (known && !(grows && performance.now() - known.asked > AGAIN_MS)) return;
    this.#wanted.add(id);
    if (!this.#running) this.#next();
  }

  async #next() {
    const [id] = this.#wanted;
    this.#running = id !== undefined && !this.#ended.signal.aborted;
    if (!this.#running) return;
    this.#wanted.delete(id);
    const asked = performance.now();
    this.#known.set(id, { ...this.#known.get(id), asked });
    try {
      const found = await this.#session.get(`/v1/jobs/${id}/curves?points=${POINTS}`, { signal: this.#ended.signal });
      this.#known.set(id, { asked, values: found.steps.loss ?? [], key: `${found.steps.step.at(-1)}` });
      this.#told();
    } catch {
      // Another user's, or gone: there is no curve then.
    }
    this.#callOff = later(() => this.#next(), performance.now() - asked);
  }
}

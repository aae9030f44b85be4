// The jobs that the page shows, read with as little as can be: those that run again and again, all of
// them where something has happened. A job that has not changed stays the same object.

import { OPEN, RUNS } from "./format.js";

const PAGE = 100;
const MOST = 1000;

export class JobLists {
  jobs = new Map();
  /** States of which there are more jobs than are shown. */
  cut = new Set();
  /** Whether there are more, and whether they can be asked for. */
  more = false;
  #session;
  #limit = PAGE;
  #known = new Map();

  constructor(session) {
    this.#session = session;
  }

  showMore() {
    this.#limit = Math.min(MOST, this.#limit + 2 * PAGE);
    this.#known.clear();
  }

  /** Read all that is shown. */
  async readAll() {
    const newest = await this.#list("");
    const found = [newest];
    const cut = new Set();
    if (newest.next !== null) {
      // A long queue has these on no first page.
      for (const state of OPEN) {
        const list = await this.#list(`&state=${state}`);
        found.push(list);
        if (list.next !== null) cut.add(state);
      }
    }
    const jobs = new Map();
    for (const list of found) for (const job of list.jobs) jobs.set(job.id, this.#same(job));
    this.jobs = new Map([...jobs.entries()].sort(([a], [b]) => b - a));
    this.cut = cut;
    this.more = newest.next !== null && this.#limit < MOST;
  }

  /** Read those that run; says whether one of them does so no longer. */
  async readRunning() {
    const before = [...this.jobs.values()].filter((job) => RUNS.has(job.state));
    const found = new Set();
    for (const state of new Set(before.map((job) => job.state))) {
      const { jobs } = await this.#list(`&state=${state}`);
      for (const job of jobs) {
        found.add(job.id);
        if (this.jobs.has(job.id)) this.jobs.set(job.id, this.#same(job));
      }
    }
    return before.some((job) => !found.has(job.id));
  }

  #same(job) {
    const before = this.jobs.get(job.id);
    return before && (before === job || JSON.stringify(before) === JSON.stringify(job)) ? before : job;
  }

  async #list(which) {
    const path = `/v1/jobs?limit=${this.#limit}${which}`;
    const known = this.#known.get(path);
    const headers = known ? { "If-None-Match": known.tag } : {};
    const answer = await this.#session.request(path, { headers }).catch((error) => {
      if (error.status === 304 && known) return null;
      throw error;
    });
    if (answer === null) return known.list;
    const list = await answer.json();
    if (answer.headers.has("ETag")) this.#known.set(path, { tag: answer.headers.get("ETag"), list });
    return list;
  }
}

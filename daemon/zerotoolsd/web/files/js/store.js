// What the page knows of the queue and the machine, and when it is asked for again.
//
// Events say that a job has changed; its progress is no event, so that jobs that run are asked for
// every few seconds while somebody looks.

import { follow } from "./event_stream.js";
import { OVER, RUNS } from "./format.js";
import { Away, LIVE } from "./session.js";

const RUNNING_MS = 3000;
const HIDDEN_MS = 20000;
const SETTLE_MS = 250;
const EVENTS_KEPT = 500;
const PAGE = 100;
/** States that are asked for by themselves: a long queue has them on no first page. */
const OPEN_STATES = ["launching", "running", "stopping", "pausing", "yielding", "queued", "held", "waiting_retry", "paused", "on_hold", "waiting"];

export class Store extends EventTarget {
  jobs = new Map();
  events = [];
  health = null;
  machine = null;
  machineError = null;
  loaded = false;
  more = false;
  #session;
  #limit = PAGE;
  #tags = new Map();
  #asked = 0;
  #timer = null;
  #stream = null;
  #wantsMachine = new Set();

  constructor(session) {
    super();
    this.#session = session;
    session.addEventListener("state", () => session.state === LIVE && this.#again());
    document.addEventListener("visibilitychange", () => document.hidden || this.refresh());
  }

  /** Begin, and go on until the page is left. */
  begin() {
    this.#again();
  }

  #again() {
    this.#stream?.abort();
    this.#stream = new AbortController();
    this.#follow(this.#stream.signal);
    this.refresh();
  }

  async #follow(signal) {
    try {
      this.health = await this.#session.get("/v1/health");
      if (this.events.length === 0) await this.#oldEvents();
      const last = this.events.length ? this.events[this.events.length - 1].seq : this.health.last_event;
      await follow(this.#session, last ?? 0, (event) => this.#take(event.data), signal);
      if (!signal.aborted) this.#session.lose();
    } catch (error) {
      if (!signal.aborted && !(error instanceof Away)) this.#session.lose();
    }
  }

  async #oldEvents() {
    const since = Math.max(0, (this.health.last_event ?? 0) - EVENTS_KEPT);
    const found = await this.#session.get(`/v1/events?since=${since}`);
    this.events = found.events.slice(-EVENTS_KEPT);
    this.#tell("events");
  }

  #take(event) {
    if (this.events.length && event.seq <= this.events[this.events.length - 1].seq) return;
    this.events = [...this.events.slice(1 - EVENTS_KEPT), event];
    this.#tell("events");
    this.#soon(SETTLE_MS);
  }

  #soon(ms) {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.refresh(), ms);
  }

  /** Show more of the jobs that are over. */
  showMore() {
    this.#limit = Math.min(1000, this.#limit + PAGE);
    this.refresh();
  }

  /** Keep the machine up to date while `whose` looks at it. */
  wantMachine(whose, wanted) {
    if (wanted) this.#wantsMachine.add(whose);
    else this.#wantsMachine.delete(whose);
    if (wanted) this.refresh();
  }

  /** Ask now for what is shown. */
  async refresh() {
    if (this.#session.state !== LIVE) return;
    const round = ++this.#asked;
    clearTimeout(this.#timer);
    try {
      await Promise.all([this.#readJobs(), this.#wantsMachine.size ? this.#readMachine() : null]);
    } catch (error) {
      if (!(error instanceof Away)) console.warn(error);
    }
    if (round !== this.#asked) return;
    const busy = [...this.jobs.values()].some((job) => RUNS.has(job.state)) || this.#wantsMachine.size > 0;
    if (document.hidden) this.#soon(HIDDEN_MS);
    else if (busy) this.#soon(RUNNING_MS);
  }

  async #readJobs() {
    const newest = await this.#list(`/v1/jobs?limit=${this.#limit}`);
    const lists = [newest];
    if (newest.next !== null) {
      for (const state of OPEN_STATES) lists.push(await this.#list(`/v1/jobs?state=${state}&limit=${PAGE}`));
    }
    const found = new Map();
    for (const list of lists) for (const job of list.jobs) found.set(job.id, job);
    this.jobs = new Map([...found.entries()].sort(([a], [b]) => b - a));
    this.more = newest.next !== null && this.#limit < 1000;
    this.loaded = true;
    this.#tell("jobs");
  }

  async #list(path) {
    const known = this.#tags.get(path);
    const headers = known ? { "If-None-Match": known.tag } : {};
    const answer = await this.#session.request(path, { headers }).catch((error) => {
      if (error.status === 304 && known) return null;
      throw error;
    });
    if (answer === null) return known.list;
    const list = await answer.json();
    if (answer.headers.has("ETag")) this.#tags.set(path, { tag: answer.headers.get("ETag"), list });
    return list;
  }

  async #readMachine() {
    this.machine = await this.#session.get("/v1/machine");
    this.#tell("machine");
  }

  /** A job with all of its fields; what the list has is less. */
  async readJob(id, signal) {
    return this.#session.get(`/v1/jobs/${id}`, { signal });
  }

  /** Jobs that run or wait, and those that are over. */
  get open() {
    return [...this.jobs.values()].filter((job) => !OVER.has(job.state));
  }

  #tell(what) {
    this.dispatchEvent(new Event(what));
  }
}

// What the page knows of the queue and the machine, and when it is asked for again.
//
// Events say that a job has changed; its progress is no event, so that jobs that run are asked for
// every few seconds. While nobody looks nothing is asked for and nothing is drawn.

import { follow } from "./event_stream.js";
import { RUNS } from "./format.js";
import { JobLists } from "./job_lists.js";
import { later } from "./later.js";
import { Away, LIVE } from "./session.js";

const RUNNING_MS = 3000;
const ALL_MS = 20000;
const SETTLE_MS = 250;
/** So many times as long as reading took it rests: a long queue leaves the daemon to others. */
const REST = 4;
const EVENTS_KEPT = 500;

export class Store extends EventTarget {
  events = [];
  health = null;
  machine = null;
  loaded = false;
  #session;
  #lists;
  #stale = true;
  #allAt = -Infinity;
  #reading = false;
  #rested = 0;
  #due = Infinity;
  #callOff = null;
  #stream = null;
  #wantsMachine = new Set();
  #untold = new Set();
  #changed = new Set();

  constructor(session) {
    super();
    this.#session = session;
    this.#lists = new JobLists(session);
    session.addEventListener("state", () => session.state === LIVE && this.#again());
    document.addEventListener("visibilitychange", () => document.hidden || this.refresh());
  }

  get jobs() {
    return this.#lists.jobs;
  }

  get more() {
    return this.#lists.more;
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
    this.events.push(event);
    if (this.events.length > 2 * EVENTS_KEPT) this.events = this.events.slice(-EVENTS_KEPT);
    this.#changed.add(event.job_id);
    this.#tell("events");
    this.#stale = true;
    this.#soon(SETTLE_MS);
  }

  /** How many jobs are in one of these states; and whether there are more than were read. */
  count(states) {
    let number = 0;
    for (const job of this.jobs.values()) if (states.has(job.state)) number += 1;
    return { number, atLeast: [...this.#lists.cut].some((state) => states.has(state)) };
  }

  /** Show more of the jobs. */
  showMore() {
    this.#lists.showMore();
    this.refresh();
  }

  /** Keep the machine up to date while `whose` looks at it. */
  wantMachine(whose, wanted) {
    if (wanted) this.#wantsMachine.add(whose);
    else this.#wantsMachine.delete(whose);
    if (wanted) this.#soon(0);
  }

  /** Ask now for what is shown. */
  refresh() {
    this.#stale = true;
    this.#rested = 0;
    this.#soon(0);
  }

  // What is due earlier stays so: events that come all the time must not put it off for ever.
  #soon(ms) {
    const due = Math.max(performance.now() + ms, this.#rested);
    if (this.#reading || due >= this.#due) return;
    this.#callOff?.();
    this.#due = due;
    this.#callOff = later(() => this.#read(), due - performance.now());
  }

  async #read() {
    this.#due = Infinity;
    if (this.#session.state !== LIVE) return;
    this.#reading = true;
    const began = performance.now();
    try {
      await Promise.all([this.#readJobs(began), this.#wantsMachine.size ? this.#readMachine() : null]);
    } catch (error) {
      if (!(error instanceof Away)) console.warn(error);
    }
    this.#reading = false;
    const now = performance.now();
    this.#rested = now + REST * (now - began);
    const busy = this.#wantsMachine.size > 0 || this.count(RUNS).number > 0;
    this.#soon(this.#stale ? SETTLE_MS : busy ? RUNNING_MS : ALL_MS);
  }

  async #readJobs(now) {
    if (this.#stale || now - this.#allAt >= ALL_MS) {
      this.#stale = false;
      this.#allAt = now;
      await this.#lists.readAll();
      this.health = await this.#session.get("/v1/health"); // it may be drained since
    } else if (await this.#lists.readRunning()) this.#stale = true;
    this.loaded = true;
    this.#tell("jobs");
  }

  async #readMachine() {
    this.machine = await this.#session.get("/v1/machine");
    this.#tell("machine");
  }

  /** A job with all of its fields; what the list has is less. */
  async readJob(id, signal) {
    return this.#session.get(`/v1/jobs/${id}`, { signal });
  }

  // At most once for each picture that the browser draws, and so never while nobody looks.
  #tell(what) {
    if (this.#untold.has(what)) return;
    this.#untold.add(what);
    requestAnimationFrame(() => {
      this.#untold.delete(what);
      const jobs = this.#changed;
      if (what === "events") this.#changed = new Set();
      this.dispatchEvent(new CustomEvent(what, { detail: { jobs } }));
    });
  }
}

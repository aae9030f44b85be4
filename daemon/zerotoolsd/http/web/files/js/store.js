// What the page knows of the queue and the machine, and when it is asked for again.
//
// Events say that a job has changed; its progress is no event, so that jobs that run are asked for
// every few seconds. While nobody looks nothing is asked for and nothing is drawn.

import { later } from "./dom.js";
import { OPEN, OVER, RUNS, titleOf } from "./format.js";
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

  /** `#7 tiny`; of a job that is not shown its number alone. */
  titleOf(id) {
    return titleOf(this.jobs.get(id) ?? { id });
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
      // It may be drained since.
      this.health = await this.#session.get("/v1/health");
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

// Server-sent events over fetch: EventSource would send the cookie to whoever listens at the port
// after the daemon is gone.

/** The events in the text of a stream so far, and what is left of it. */
export function parseEvents(text) {
  const events = [];
  const parts = text.split("\n\n");
  const rest = parts.pop();
  for (const part of parts) {
    const event = { id: null, kind: "message", data: "" };
    for (const line of part.split("\n")) {
      if (line.startsWith("id: ")) event.id = Number(line.slice(4));
      else if (line.startsWith("event: ")) event.kind = line.slice(7);
      else if (line.startsWith("data: ")) event.data += line.slice(6);
    }
    if (event.id !== null) events.push({ ...event, data: JSON.parse(event.data) });
  }
  return { events, rest };
}

/** Call `take(event)` for every event behind `since`, until `signal`; raises where it breaks. */
async function follow(session, since, take, signal) {
  const answer = await session.request(`/v1/events/stream?since=${since}`, { signal, endless: true });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const found = parseEvents(rest + value);
    rest = found.rest;
    for (const event of found.events) take(event);
  }
}

const PAGE = 100;
const MOST = 1000;

// The jobs that are shown, read with as few requests as possible: those that run again and again, all
// of them where something has happened. A job that has not changed stays the same object.
class JobLists {
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
    let found = [newest.jobs];
    const cut = new Set();
    if (newest.next !== null) {
      // Of a long queue: what starts next, which the newest are not.
      found = [newest.jobs.filter((job) => OVER.has(job.state))];
      for (const state of OPEN) {
        const list = await this.#list(`&state=${state}${RUNS.has(state) ? "" : "&order=priority"}`);
        found.push(list.jobs);
        if (list.next !== null) cut.add(state);
      }
    }
    const jobs = new Map();
    for (const job of found.flat()) jobs.set(job.id, this.#same(job));
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

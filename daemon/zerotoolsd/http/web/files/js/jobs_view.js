// The queue: what runs, what waits and why, what is over.

import { choices, fillOnce, h, keyed, later, setText, svg, table, tickBox } from "./dom.js";
import { OPEN, OVER, RUNS, SLOW, UNKNOWN, ago, bytes, count, duration, hasSpeed, isNumber, measure, now, ownerOf, passing, plainName, stateOf, stateWords, titleOf } from "./format.js";

const FILTERS = [["open", "Active"], ["over", "Ended"], ["all", "All"]];
const MOST_COMPARED = 8;
/** The columns by which jobs are sorted, and the value of each; null: unknown, which comes last. */
const SORTS = {
  Job: (job) => job.id,
  Owner: ownerOf,
  Ranks: (job) => job.world_size,
  State: (job) => stateOf(job)[0],
  Progress: doneOf,
  Loss: (job) => job.progress?.loss,
  Speed: (job) => (hasSpeed(job) ? job.progress.tokens_per_second : null),
  Checkpoint: (job) => job.latest_checkpoint?.step,
};
const WAITS = new Set(OPEN.filter((state) => !RUNS.has(state)));

/** Whether a job is one of those that are asked for. */
function isShown(job, { filter, mine }, passes, uid) {
  if (filter === "open" && OVER.has(job.state)) return false;
  if (filter === "over" && !OVER.has(job.state)) return false;
  if (mine && job.uid !== uid) return false;
  return passes(`#${job.id} ${job.name ?? ""} ${job.user ?? job.uid} ${stateOf(job)[0]} ${job.reason ?? ""}`);
}

/** Seconds that a job still takes at the speed of its last steps; null: nobody knows. */
export function secondsLeft(job) {
  const progress = job.progress;
  if (!RUNS.has(job.state) || !progress || job.phase?.step_is_old) return null;
  if (isNumber(progress.seconds_left)) return progress.seconds_left;
  const left = progress.steps - progress.step;
  return isNumber(progress.step_seconds) && left >= 0 ? left * progress.step_seconds : null;
}

/** How many of a job's steps are done, from 0 to 1; null: nobody knows. */
export function doneOf(job) {
  const { step, steps } = job.progress ?? {};
  return isNumber(step) && isNumber(steps) && steps > 0 ? Math.min(1, Math.max(0, step / steps)) : null;
}

export class JobsView {
  #page;
  #wanted;
  #rows = h("tbody");
  #empty = h("p", { class: "empty" });
  #more = h("button", { type: "button", class: "plain", onclick: () => this.#page.store.showMore() }, "Older jobs are not listed: show more");
  #compare = h("a", { class: "button primary", hidden: true });
  #strip = h("dl", { class: "strip" });
  #curves;
  #inSight = new IntersectionObserver((seen) => this.#see(seen), { rootMargin: "200px" });
  #drawn = new WeakMap();
  #listen;
  #chosen = new Set();
  #heads = Object.keys(SORTS).map((name) => h("button", { type: "button", class: "plain", onclick: () => this.#sort(name) }, name));

  constructor(page) {
    this.#page = page;
    this.#wanted = { filter: "open", text: "", mine: false, sort: null, down: false, ...page.wantedJobs };
    page.wantedJobs = this.#wanted;
    this.element = this.#build();
    this.#listen = () => this.#draw();
    this.#curves = new SmallCurves(page.session, () => this.#draw());
    page.store.addEventListener("jobs", this.#listen);
    page.store.addEventListener("machine", this.#listen);
    page.store.wantMachine(this, true);
    this.#draw();
  }

  close() {
    this.#page.store.removeEventListener("jobs", this.#listen);
    this.#page.store.removeEventListener("machine", this.#listen);
    this.#page.store.wantMachine(this, false);
    this.#curves.close();
    this.#inSight.disconnect();
  }

  #build() {
    this.search = h("input", { type: "search", placeholder: "Search name, owner, state", title: "Words, -words to leave out, regular expressions", "aria-label": "Search jobs", value: this.#wanted.text, oninput: (event) => this.#want({ text: event.target.value }) });
    const heads = [h("span", { class: "unseen" }, "Compare"), ...this.#heads];
    return h("div", {},
      h("h1", { class: "unseen" }, "Jobs"),
      this.#strip,
      h("div", { class: "bar" }, this.search, choices("filter", "Which jobs", FILTERS, this.#wanted.filter, (filter) => this.#want({ filter })), tickBox("Mine", this.#wanted.mine, (mine) => this.#want({ mine })), h("span", { class: "grow" }), this.#compare),
      table("jobs", "Jobs", heads, this.#rows), this.#empty, this.#more);
  }

  #want(change) {
    Object.assign(this.#wanted, change);
    this.search.value = this.#wanted.text;
    this.element.querySelector(`[name="filter"][value="${this.#wanted.filter}"]`).checked = true;
    this.#draw();
  }

  /** By a column from its least value, then from its greatest, then as before. */
  #sort(name) {
    const { sort, down } = this.#wanted;
    this.#want(sort !== name ? { sort: name, down: false } : down ? { sort: null, down: false } : { down: true });
  }

  // As in `queue`: what runs, what waits in the order in which it starts, and last what is over.
  #inOrder(jobs) {
    const { sort, down } = this.#wanted;
    const place = ({ state, id, priority }) => (RUNS.has(state) ? id - 1e13 : OVER.has(state) ? 1e13 - id : id - 1e11 * priority);
    jobs.sort((a, b) => place(a) - place(b));
    for (const button of this.#heads) {
      const by = button.textContent === sort;
      button.parentElement.ariaSort = by ? (down ? "descending" : "ascending") : null;
    }
    if (sort === null) return jobs;
    const values = new Map(jobs.map((job) => [job, SORTS[sort](job) ?? null]));
    const compared = (a, b) => (a < b ? -1 : Number(a > b));
    return jobs.sort((one, other) => {
      const [a, b] = [values.get(one), values.get(other)];
      return a === null || b === null ? Number(a === null) - Number(b === null) : down ? compared(b, a) : compared(a, b);
    });
  }

  #draw() {
    const { store, session } = this.#page;
    const passes = passing(this.#wanted.text);
    const jobs = [...store.jobs.values()].filter((job) => isShown(job, this.#wanted, passes, session.me.uid));
    keyed(this.#rows, this.#inOrder(jobs), (job) => job.id, (job) => this.#row(job), (row, job) => this.#update(row, job));
    const none = store.jobs.size ? "No job matches the search and the filters." : "No job was submitted yet. Submit one, or: zerotools submit job.toml";
    setText(this.#empty, store.loaded ? none : "Reading the queue…");
    this.#empty.hidden = jobs.length > 0;
    this.#more.hidden = !store.more;
    this.#drawStrip();
    this.#drawCompare();
  }

  #drawStrip() {
    const jobs = [...this.#page.store.jobs.values()];
    const number = (states, less = 0) => {
      const found = this.#page.store.count(states);
      return `${found.number - less}${found.atLeast ? " or more" : ""}`;
    };
    const slow = SLOW.map((word) => [word, jobs.filter((job) => job.state_word === word).length, stateWords(word)[1]]).filter(([, found]) => found);
    const day = now() - 86400;
    const failed = jobs.filter((job) => job.state === "failed" && job.ended > day).length;
    const cards = [["running", number(RUNS, slow.reduce((sum, [, found]) => sum + found, 0))], ...slow, ["waiting", number(WAITS)], ["failed today", failed, failed && "bad"]];
    const machine = this.#page.store.machine;
    if (machine?.snapshot) {
      const { gpus, host } = machine.snapshot;
      const leased = new Set(machine.leases.map((lease) => lease.gpu_uuid));
      if (gpus.length) cards.push(["GPUs in use", `${gpus.filter((gpu) => leased.has(gpu.uuid)).length} of ${gpus.length}`]);
      cards.push(["host memory", `${bytes(host.memory_used_bytes)} of ${bytes(host.memory_total_bytes)}`]);
    }
    keyed(this.#strip, cards, ([name]) => name, ([name]) => h("div", {}, h("dt", {}, name), h("dd", {})), (card, [name, value, meaning]) => {
      const failed = meaning && name === "failed today";
      fillOnce(card.lastElementChild, [value, failed], () => (failed ? h("button", { type: "button", class: "plain", "aria-label": `${value} failed today: show them`, onclick: () => this.#want({ filter: "over", text: "failed" }) }, String(value)) : String(value)));
      card.lastElementChild.className = meaning || "";
    });
  }

  #drawCompare() {
    const chosen = [...this.#chosen].sort((a, b) => a - b);
    this.#compare.hidden = chosen.length < 2;
    setText(this.#compare, `Compare ${chosen.length} jobs`);
    if (chosen.length > 1) this.#compare.href = `#/jobs/${chosen[0]}/curves/${chosen.slice(1).join("+")}`;
  }

  #row(job) {
    const box = h("input", { type: "checkbox", "aria-label": `Compare ${titleOf(job)}`, checked: this.#chosen.has(job.id), onchange: (event) => this.#choose(job.id, event.target) });
    const cell = (name, label) => h("td", { class: name, "data-label": label });
    const row = h("tr", {},
      h("td", { class: "pick" }, box),
      h("th", { scope: "row", class: "job" }, h("a", { href: `#/jobs/${job.id}` }), h("small", { class: "why" })),
      cell("owner", "Owner"), cell("ranks", "Ranks"), cell("state", "State"), cell("progress", "Progress"), cell("loss", "Loss"), cell("speed", "Speed"), cell("saved", "Checkpoint"));
    this.#inSight.observe(row);
    row.addEventListener("click", (event) => {
      if (!event.target.closest("a, input, button")) location.hash = `#/jobs/${job.id}`;
    });
    return row;
  }

  #choose(id, box) {
    if (box.checked && this.#chosen.size >= MOST_COMPARED) {
      box.checked = false;
      this.#page.say(`${MOST_COMPARED} jobs can be compared at a time`, "warning");
    } else if (box.checked) this.#chosen.add(id);
    else this.#chosen.delete(id);
    this.#drawCompare();
  }

  #see(seen) {
    for (const { target, isIntersecting } of seen) target.inSight = isIntersecting;
    this.#draw();
  }

  // Of a long queue few rows change at a time; ages in words change each minute.
  #update(row, job) {
    this.#wantCurve(row, job);
    const drawn = [job, this.#curves.of(job.id), Math.floor(now() / 60)];
    if (this.#drawn.get(row)?.every((each, index) => each === drawn[index])) return;
    this.#drawn.set(row, drawn);
    this.#redraw(row, job);
  }

  #redraw(row, job) {
    const [words, meaning, sign] = stateOf(job);
    const at = (name) => row.querySelector(`.${name}`);
    setText(at("job").firstElementChild, titleOf(job));
    setText(at("why"), whyOf(job));
    setText(at("owner"), ownerOf(job));
    const ranks = ranksOf(job);
    fillOnce(at("ranks"), ranks, () => [ranks[0], h("small", {}, ranks[1])]);
    fillOnce(at("state"), `${words} ${meaning}`, () => badge(words, meaning, sign));
    this.#drawProgress(at("progress"), job);
    const value = job.progress?.loss;
    const shown = job.progress && "loss" in job.progress ? (isNumber(value) ? measure(value) : "not a number") : UNKNOWN;
    fillOnce(at("loss"), `${shown} ${this.#curveOf(job)?.key ?? ""}`, () => [h("span", { class: isNumber(value) || value === undefined ? "" : "bad" }, shown), sparkline(this.#curveOf(job)?.values ?? [])]);
    setText(at("speed"), hasSpeed(job) ? `${count(job.progress.tokens_per_second)} tok/s` : UNKNOWN);
    const saved = job.latest_checkpoint;
    fillOnce(at("saved"), saved ? `${saved.step} ${Boolean(saved.verified)} ${ago(saved.verified?.time)}` : "none", () => (saved ? savedWords(saved) : UNKNOWN));
    for (const cell of row.querySelectorAll("td[data-label]")) cell.classList.toggle("none", cell.textContent === UNKNOWN && !cell.querySelector("polyline"));
  }

  #drawProgress(cell, job) {
    const done = doneOf(job);
    if (done === null) {
      fillOnce(cell, "none", () => UNKNOWN);
      return;
    }
    const { step, steps } = job.progress;
    const left = secondsLeft(job);
    const words = `${count(step)} of ${count(steps)}`;
    const more = left === null ? "" : `${duration(left)} left`;
    fillOnce(cell, `${words} ${more} ${job.state}`, () => [
      h("progress", { max: 1, value: done, "aria-label": `${Math.round(done * 100)} % of the steps` }),
      h("small", {}, words, more ? h("span", { class: "left" }, more) : null),
    ]);
  }

  #curveOf(job) {
    return job.masked || !job.attempt ? null : this.#curves.of(job.id);
  }

  #wantCurve(row, job) {
    if (row.inSight && !job.masked && job.attempt && (RUNS.has(job.state) || job.progress)) this.#curves.want(job.id, RUNS.has(job.state));
  }

  key(event) {
    const links = [...this.#rows.querySelectorAll("th a")];
    const at = links.indexOf(document.activeElement);
    if (event.key === "j") links[Math.min(at + 1, links.length - 1)]?.focus();
    else if (event.key === "k") links[Math.max(at - 1, 0)]?.focus();
    else if (event.key === "/") this.search.focus();
    else if (event.key === "x" && at >= 0) links[at].closest("tr").querySelector("input").click();
    else return false;
    return true;
  }
}

/** The state of a job: its word, a sign and a colour. */
export function badge(words, meaning, sign) {
  return h("span", { class: `badge ${meaning}` }, h("span", { "aria-hidden": "true" }, sign), words);
}

/** `2 GPU`, and since when it runs, waits or is over. */
function ranksOf(job) {
  const [words, time] = OVER.has(job.state) ? ["ended", job.ended] : RUNS.has(job.state) ? ["started", job.started] : ["submitted", job.created];
  return [job.world_size ? `${job.world_size} ${job.device === "cpu" ? "CPU" : "GPU"}` : UNKNOWN, isNumber(time) ? `${words} ${ago(time)}` : ""];
}

/** Why a job waits, what it does, or how it ended. */
export function whyOf(job) {
  const parts = [job.reason, job.phase?.stalled ? (job.phase.stall ?? "stalled") : job.phase?.name === "complete" ? "it reported that it is complete, and has not ended" : job.phase?.step_is_old ? `no step for ${duration(now() - job.phase.last_step)}` : job.phase?.quiet ? "no progress" : null];
  return plainName(parts.filter(Boolean).join("; "));
}

function savedWords(saved) {
  const sure = saved.verified;
  return [`step ${count(saved.step)} `, h("span", { class: sure ? "good" : "quiet", title: sure ? `verified ${ago(sure.time)}` : (saved.not_verified ?? "not verified") }, sure ? "✓ verified" : "not verified")];
}

const POINTS = 60;
const CURVES_MS = 30000;

// The curves of the rows that are in sight, read one after the other.
class SmallCurves {
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
    if (known && !(grows && performance.now() - known.asked > CURVES_MS)) return;
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

const WIDTH = 96;
const HEIGHT = 22;

/** The points of a polyline; of no or equal values a line in the middle. */
function pointsOf(values) {
  const known = values.filter(isNumber);
  if (known.length < 2) return "";
  const least = Math.min(...known);
  const span = Math.max(...known) - least;
  return known
    .map((value, index) => {
      const x = (index / (known.length - 1)) * (WIDTH - 2) + 1;
      const y = span > 0 ? HEIGHT - 2 - ((value - least) / span) * (HEIGHT - 4) : HEIGHT / 2;
      return `${x.toFixed(1)},${y.toFixed(1)}`;
    })
    .join(" ");
}

// A curve in the space of a word.
function sparkline(values) {
  const made = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: WIDTH, height: HEIGHT, class: "spark", "aria-hidden": "true" });
  const points = pointsOf(values);
  if (points) made.append(svg("polyline", { points }));
  return made;
}

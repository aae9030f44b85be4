// The machine over time: a row of colours for each GPU, the curves of one of them, and who used them.

import { Chart, TIME_AXIS, colour, style, summary } from "./charts.js";
import { byOwner, stacked, withGaps } from "./curve_data.js";
import { choices, fill, fillOnce, h, later, setText, wideTable } from "./dom.js";
import { UNKNOWN, bytes, isNumber, now, percent, plainName } from "./format.js";
import { HeatMap } from "./heat_map.js";
import { passes } from "./session.js";

const SPANS = [[900, "15 min"], [3600, "1 h"], [21600, "6 h"], [86400, "24 h"], [604800, "7 days"], [2592000, "30 days"]];
const COLOURS_SHOW = [["busy", "Utilisation"], ["memory", "Memory"]];
const PAST_POINTS = 300;
const LEAST_PAST_MS = 5000;
const MOST_PEAKS = 1000;
const CURVE_PIXELS = 150;
const UTILISATION = /^gpu\.(.+)\.utilization_percent$/;
const JOB_ON_HOST = /^job\.(\d+)\.host_memory_bytes$/;
const LINES = [["utilization_percent", "Utilisation", percent, 100], ["temperature_celsius", "Temperature", (value) => `${Math.round(value)} °C`, 100], ["power_watts", "Power", (value) => `${Math.round(value)} W`, null]];
const HOST_LINES = [["host.cpu_percent", "CPU", percent, 100], ["host.memory_stalled_percent", "Stalled for memory", percent, 100]];

export class MachinePast {
  #page;
  #told;
  #wants = { seconds: 3600, shown: "busy", ...MachinePast.wants };
  #open = null;
  #past = null;
  #uids = new Map();
  #users = new Map();
  #timer = null;
  #ended = new AbortController();
  #map = new HeatMap();
  #charts = new Map();
  #said = h("p", { class: "quiet" });
  #curves = h("section", { hidden: true, "aria-labelledby": "opened" });
  #use = h("section", { "aria-label": "Who used the GPUs" });

  /** `told()` is called after each reading. */
  constructor(page, told) {
    this.#page = page;
    this.#told = told;
    this.element = h("div", {},
      h("div", { class: "bar" }, h("h2", {}, "History"), choices("span", "How far back", SPANS, this.#wants.seconds, (seconds) => this.#want({ seconds })), choices("shown", "Colours show", COLOURS_SHOW, this.#wants.shown, (shown) => this.#want({ shown }))),
      this.#map.element, this.#said, this.#curves, this.#use);
    this.#map.element.hidden = true;
    this.#read();
  }

  close() {
    this.#ended.abort();
    this.#timer?.();
    this.#map.close();
    this.#closeCharts();
  }

  /** Show the curves of the GPU with this index, or of `host`; null: none. */
  open(name) {
    this.#open = name;
    this.#draw();
    if (name !== null) this.#curves.scrollIntoView({ block: "nearest" });
  }

  /** Move the focus among the rows. */
  move(by) {
    this.#map.move(by);
  }

  /** The bytes that jobs have by the newest point: on a GPU, or with null on the host. */
  jobBytes(uuid) {
    let sum = 0;
    for (const [name, { mean }] of Object.entries(this.#past?.series ?? {})) {
      const job = uuid === null ? jobIn(JOB_ON_HOST, name) : jobIn(JOB_ON_GPU, name, uuid);
      if (job !== null) sum += mean.slice(-3).findLast(isNumber) ?? 0;
    }
    return sum;
  }

  #want(change) {
    Object.assign(this.#wants, change);
    MachinePast.wants = this.#wants;
    if ("seconds" in change) this.#read();
    else this.#draw();
  }

  async #read() {
    this.#timer?.();
    const { seconds } = this.#wants;
    const { signal } = this.#ended;
    try {
      const found = await this.#page.session.get(`/v1/history?seconds=${seconds}&points=${PAST_POINTS}`, { signal });
      await this.#readUids(found, signal);
      if (seconds !== this.#wants.seconds) return;
      this.#past = found;
      this.#draw();
      this.#told();
    } catch (error) {
      if (signal.aborted) return;
      if (!passes(error)) setText(this.#said, error.message);
    }
    const ms = Math.max(LEAST_PAST_MS, (1000 * seconds) / PAST_POINTS / 2);
    if (!signal.aborted) this.#timer = later(() => this.#read(), Math.min(ms, 60000));
  }

  // Whose jobs these are: the list of jobs has the newest alone.
  async #readUids(past, signal) {
    for (const { id, uid, user } of this.#page.store.jobs.values()) {
      this.#uids.set(id, uid);
      this.#users.set(uid, user);
    }
    const unknown = Object.keys(past.series).map((name) => jobIn(JOB_ON_GPU, name)).some((job) => job !== null && !this.#uids.has(job));
    if (!unknown) return;
    const { peaks } = await this.#page.session.get(`/v1/peaks?limit=${MOST_PEAKS}`, { signal });
    for (const { job_id: job, uid, user } of peaks) {
      this.#uids.set(job, uid);
      this.#users.set(uid, user);
    }
    for (const name of Object.keys(past.series)) {
      const job = jobIn(JOB_ON_GPU, name);
      if (job !== null && !this.#uids.has(job)) this.#uids.set(job, null);
    }
  }

  #gpus() {
    const known = this.#page.store.machine?.snapshot?.gpus ?? [];
    const found = Object.keys(this.#past.series).map((name) => UTILISATION.exec(name)?.[1] ?? /^gpu\.(.+)\.memory_used_bytes$/.exec(name)?.[1]);
    return [...new Set(found.filter(Boolean))].map((uuid) => {
      const gpu = known.find((each) => each.uuid === uuid);
      const key = encodeURIComponent(gpu ? gpu.index : uuid);
      return { uuid, key, title: gpu ? `GPU ${gpu.index}` : `GPU ${plainName(uuid.slice(0, 12))}`, total: gpu?.memory_total_bytes ?? null, watts: gpu?.power_limit_watts ?? null, order: gpu?.index ?? 999 };
    }).sort((a, b) => a.order - b.order);
  }

  #draw() {
    if (!this.#past) return;
    const { times, trouble, step_seconds: step } = this.#past;
    const gpus = this.#gpus();
    setText(this.#said, trouble ? `Nothing is kept: ${plainName(trouble)}` : `A point each ${spanWords(step)}. Choose a row for its curves.`);
    this.#map.element.hidden = times.length === 0;
    if (times.length) {
      const end = Math.max(now(), times.at(-1) + step);
      this.#map.draw({ label: "The machine over time", rows: [...gpus.map((gpu) => this.#gpuRow(gpu)), this.#hostRow()], times, step, begin: Math.floor((end - this.#wants.seconds) / step) * step, end, open: this.#open, scale: this.#wants.shown === "busy" ? { least: "0 %", most: "100 %" } : { least: "empty", most: "full" } });
    }
    this.#drawCurves(gpus);
    this.#drawUse(gpus, times, step);
  }

  #gpuRow(gpu) {
    const { series } = this.#past;
    const used = series[`gpu.${gpu.uuid}.memory_used_bytes`]?.mean ?? [];
    const values = this.#wants.shown === "memory" ? used : (series[`gpu.${gpu.uuid}.utilization_percent`]?.mean ?? []);
    const jobs = Object.keys(series).map((name) => [jobIn(JOB_ON_GPU, name, gpu.uuid), name]).filter(([job]) => job !== null);
    const more = (index) => jobs.filter(([, name]) => series[name].mean[index] > 0).map(([job]) => `, ${this.#page.store.titleOf(job)}`).join("");
    return { ...this.#scaled(values, gpu.total ?? Math.max(1, ...used.filter(isNumber))), key: gpu.key, href: `#/machine/${gpu.key}`, title: gpu.title, more };
  }

  #hostRow() {
    const { series } = this.#past;
    const name = this.#wants.shown === "memory" ? "host.memory_used_bytes" : "host.cpu_percent";
    return { ...this.#scaled(series[name]?.mean ?? [], this.#hostBytes()), key: "host", href: "#/machine/host", title: "Host" };
  }

  #scaled(values, total) {
    const memory = this.#wants.shown === "memory";
    const words = memory ? bytes : percent;
    return { values, words, most: memory ? total : 100, now: words(values.findLast(isNumber) ?? null) };
  }

  #hostBytes() {
    return this.#page.store.machine?.snapshot?.host.memory_total_bytes ?? 1;
  }

  #drawCurves(gpus) {
    const gpu = gpus.find((each) => each.key === this.#open);
    const host = this.#open === "host";
    this.#curves.hidden = !gpu && !host;
    if (this.#curves.hidden) {
      this.#closeCharts();
      return;
    }
    fillOnce(this.#curves, this.#open, () => {
      this.#closeCharts();
      this.place = h("div", { class: "past" });
      return [h("div", { class: "bar" }, h("h2", { id: "opened" }, gpu?.title ?? "Host"), h("a", { class: "button", href: "#/machine" }, "Close")), this.place];
    });
    const { times, series } = withGaps(this.#past);
    const used = host ? "host.memory_used_bytes" : `gpu.${gpu.uuid}.memory_used_bytes`;
    const total = host ? this.#hostBytes() : gpu.total;
    const ofJob = (name) => (host ? jobIn(JOB_ON_HOST, name) : jobIn(JOB_ON_GPU, name, gpu.uuid));
    if (series[used]) this.#drawStack("Memory", times, byOwner(series, used, ofJob), total);
    const lines = host ? HOST_LINES : LINES.map(([name, ...rest]) => [`gpu.${gpu.uuid}.${name}`, ...rest]);
    for (const [name, title, words, most] of lines) {
      if (series[name]) this.#drawLine(title, words, times, series[name].mean, most ?? gpu?.watts);
    }
  }

  #closeCharts() {
    for (const chart of this.#charts.values()) chart.close();
    this.#charts.clear();
  }

  #drawChart(title, options, data) {
    let chart = this.#charts.get(title);
    if (!chart) {
      chart = new Chart();
      this.#charts.set(title, chart);
      this.place.append(h("section", {}, h("h3", {}, title), chart.element));
    }
    chart.draw({ ...options, height: CURVE_PIXELS, inset: this.#map.inset, x: { ...TIME_AXIS, range: this.#map.range } }, data);
  }

  #drawStack(title, times, { owners, others }, total) {
    const columns = [...owners.map((owner) => owner.values), others];
    const sums = stacked(columns);
    const lines = [];
    const data = [times];
    // From the top down: each area is drawn over the one below which it ends.
    for (let index = columns.length - 1; index >= 0; index -= 1) {
      const owner = owners[index];
      const tint = owner ? colour(owner.job) : style("--others");
      lines.push({ name: owner ? this.#page.store.titleOf(owner.job) : "others", colour: tint, fill: tint, real: columns[index] });
      data.push(sums[index]);
    }
    const label = [summary(title, times, sums.at(-1)), ...owners.map((owner) => `${this.#page.store.titleOf(owner.job)}: at most ${bytes(Math.max(...owner.values.filter(isNumber)))}`)].join(". ");
    this.#drawChart(title, { label, lines, stack: true, y: { words: bytes, range: (plot, least, most) => [0, Math.max(1, total ?? most * 1.05)] } }, data);
  }

  #drawLine(title, words, times, values, most) {
    const line = { name: title, colour: colour(0) };
    const range = (plot, least, greatest) => [0, Math.max(most ?? 1, greatest)];
    this.#drawChart(title, { label: summary(title, times, values), lines: [line], y: { words, range } }, [times, values]);
  }

  #userName(uid) {
    if (uid === null) return "unknown";
    return plainName(this.#users.get(uid) ?? `uid ${uid}`);
  }

  #drawUse(gpus, times, step) {
    if (!gpus.length || !times.length) {
      fill(this.#use);
      return;
    }
    const end = times.at(-1) + step;
    const begin = end - this.#wants.seconds;
    const days = daysOf(begin, end);
    const users = gpuHours(this.#past, this.#uids, days);
    const words = (value) => (value === 0 ? UNKNOWN : value < 10 ? value.toFixed(1) : String(Math.round(value)));
    const rows = users.map(([uid, hours]) => [this.#userName(uid), ...hours.map(words), words(hours.reduce((a, b) => a + b, 0))]);
    const heads = ["User", ...days.map((day) => new Date(day * 1000).toLocaleDateString(undefined, { day: "numeric", month: "short" })), "Total"];
    fillOnce(this.#use, [rows, heads], () => [
      h("h2", {}, "Who used the GPUs"),
      h("p", { class: "quiet" }, `GPU-hours in which a job had memory there, in the last ${SPANS.find(([seconds]) => seconds === this.#wants.seconds)[1]}. This machine has ${gpus.length}, which is ${words((gpus.length * this.#wants.seconds) / 3600)} GPU-hours.`),
      rows.length ? wideTable("use", "GPU-hours by user and day", heads, rows.map(([user, ...values]) => h("tr", {}, h("th", { scope: "row" }, user), values.map((value) => h("td", {}, value))))) : h("p", { class: "empty" }, "No job had memory on a GPU."),
    ]);
  }
}
MachinePast.wants = {};

const spanWords = (seconds) => (seconds < 120 ? `${seconds} s` : seconds < 7200 ? `${seconds / 60} min` : `${seconds / 3600} h`);

function jobIn(pattern, name, uuid) {
  const found = pattern.exec(name);
  return found && (uuid === undefined || found[2] === uuid) ? Number(found[1]) : null;
}

/** The part of a point that a job has on average if it has neither, one or both of its ends there. */
const PART = [1, 1 / 2, 1 / 3];
const JOB_ON_GPU = /^job\.(\d+)\.gpu\.(.+)\.memory_used_bytes$/;

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

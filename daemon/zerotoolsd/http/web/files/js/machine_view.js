// The machine now and over time: whose memory it is.

import { Chart, TIME_AXIS, colour, style, summary } from "./charts.js";
import { byOwner, stacked } from "./curve_data.js";
import { fill, fillOnce, h, setText } from "./dom.js";
import { UNKNOWN, bytes, isNumber, percent, plainName, titleOf } from "./format.js";
import { later } from "./later.js";
import { passes } from "./session.js";

const SPANS = [[900, "15 min"], [3600, "1 h"], [21600, "6 h"], [86400, "24 h"], [604800, "7 days"], [2592000, "30 days"]];
const POINTS = 300;
const LEAST_AGAIN_MS = 5000;
const DRIVERS_OWN = 2 ** 30;
const JOB_ON_GPU = /^job\.(\d+)\.gpu\.(.+)\.memory_used_bytes$/;
const JOB_ON_HOST = /^job\.(\d+)\.host_memory_bytes$/;

/** The memory of a GPU by who holds it: jobs, other processes, nobody, free. `ours` are the bytes of
 * jobs by the history's newest point. */
export function sharesOf(gpu, ours) {
  const used = gpu.memory_used_bytes;
  const total = gpu.memory_total_bytes;
  if (!isNumber(used) || !isNumber(total) || total <= 0) return null;
  const held = gpu.processes.every((process) => isNumber(process.memory_used_bytes)) ? gpu.processes.reduce((sum, process) => sum + process.memory_used_bytes, 0) : null;
  const jobs = Math.min(used, ours);
  const residue = held === null || used - held <= DRIVERS_OWN * Math.max(1, gpu.processes.length) ? 0 : used - held;
  return { jobs, others: Math.max(0, used - jobs - residue), residue, free: Math.max(0, total - used), total };
}

export class MachineView {
  #page;
  #seconds = MachineView.seconds ?? 3600;
  #past = null;
  #timer = null;
  #ended = new AbortController();
  #cards = new Map();
  #charts = new Map();
  #gpus = h("div", { class: "gpus" });
  #host = h("section", { class: "card host-card", "aria-label": "Host" });
  #said = h("p", { class: "quiet" });
  #pastPlace = h("div", { class: "past" });
  #listen = () => this.#drawNow();

  constructor(page) {
    this.#page = page;
    const spans = SPANS.map(([seconds, words]) => h("label", { class: "choice" }, h("input", { type: "radio", name: "span", value: seconds, checked: seconds === this.#seconds, onchange: () => this.#want(seconds) }), h("span", {}, words)));
    this.element = h("section", {}, h("h1", {}, "Machine"), this.#gpus, this.#host, h("div", { class: "bar" }, h("h2", {}, "Until now"), h("fieldset", { class: "choices" }, h("legend", { class: "unseen" }, "How far back"), spans)), this.#said, this.#pastPlace);
    page.store.addEventListener("machine", this.#listen);
    page.store.wantMachine(this, true);
    this.#drawNow();
    this.#readPast();
  }

  close() {
    this.#ended.abort();
    this.#timer?.();
    this.#page.store.removeEventListener("machine", this.#listen);
    this.#page.store.wantMachine(this, false);
    for (const chart of this.#charts.values()) chart.close();
  }

  #want(seconds) {
    this.#seconds = seconds;
    MachineView.seconds = seconds;
    this.#readPast();
  }

  async #readPast() {
    this.#timer?.();
    const seconds = this.#seconds;
    try {
      const found = await this.#page.session.get(`/v1/history?seconds=${seconds}&points=${POINTS}`, { signal: this.#ended.signal });
      if (seconds !== this.#seconds) return;
      this.#past = found;
      this.#drawPast();
      this.#drawNow();
    } catch (error) {
      if (this.#ended.signal.aborted) return;
      if (!passes(error)) setText(this.#said, error.message);
    }
    const ms = Math.max(LEAST_AGAIN_MS, (1000 * seconds) / POINTS / 2);
    if (!this.#ended.signal.aborted) this.#timer = later(() => this.#readPast(), Math.min(ms, 60000));
  }

  #newest(name) {
    const mean = this.#past?.series[name]?.mean ?? [];
    for (let index = mean.length - 1; index >= Math.max(0, mean.length - 3); index -= 1) if (isNumber(mean[index])) return mean[index];
    return 0;
  }

  #oursOn(uuid) {
    let sum = 0;
    for (const name of Object.keys(this.#past?.series ?? {})) {
      const found = JOB_ON_GPU.exec(name);
      if (found && found[2] === uuid) sum += this.#newest(name);
    }
    return sum;
  }

  #drawNow() {
    const machine = this.#page.store.machine;
    if (!machine?.snapshot) return;
    const { gpus, gpus_error: why, host } = machine.snapshot;
    if (!gpus.length) fill(this.#gpus, h("p", { class: "quiet" }, `No GPU is shown: ${plainName(why ?? "NVML answers, and reports none")}`));
    else {
      if (!this.#cards.size) fill(this.#gpus);
      for (const gpu of gpus) this.#drawGpu(gpu, machine.leases);
      if (why) this.#gpus.prepend(this.#stale ??= h("p", { class: "warning" }));
      if (this.#stale) setText(this.#stale, why ? `These are old: ${plainName(why)}` : "");
    }
    this.#drawHost(host);
  }

  #stale = null;

  #drawGpu(gpu, leases) {
    let card = this.#cards.get(gpu.index);
    if (!card) {
      card = h("section", { class: "card gpu", "aria-label": `GPU ${gpu.index}` }, h("h2"), h("div"), h("p", { class: "jobs-here" }));
      this.#cards.set(gpu.index, card);
      this.#gpus.append(card);
    }
    const shares = sharesOf(gpu, this.#oursOn(gpu.uuid));
    const mine = leases.filter((lease) => lease.gpu_uuid === gpu.uuid);
    const facts = [
      ["busy", percent(gpu.utilization_percent)],
      ["", isNumber(gpu.temperature_celsius) ? `${gpu.temperature_celsius} °C` : null],
      ["", isNumber(gpu.power_watts) ? `${Math.round(gpu.power_watts)}${isNumber(gpu.power_limit_watts) ? ` of ${Math.round(gpu.power_limit_watts)}` : ""} W` : null],
      ["", isNumber(gpu.sm_clock_mhz) ? `${gpu.sm_clock_mhz} MHz` : null],
      ["slowed down by", gpu.throttle_reasons?.length ? gpu.throttle_reasons.join(", ") : null, "warning"],
      ["ECC errors", gpu.ecc_uncorrected_errors > 0 ? String(gpu.ecc_uncorrected_errors) : null, "bad"],
      ["XID", gpu.xids?.length ? String(gpu.xids.at(-1).code) : null, "bad"],
    ].filter(([, value]) => value !== null && value !== UNKNOWN);
    const [title, place, jobs] = card.children;
    fillOnce(title, [gpu.index, gpu.name], () => [`GPU ${gpu.index}`, h("small", {}, plainName(gpu.name ?? ""))]);
    fill(place,
      gpu.error ? h("p", { class: "bad" }, plainName(gpu.error)) : null,
      gpu.excluded ? h("p", { class: "quiet" }, "no job gets it (gpus.exclude)") : null,
      shares ? memoryBar(shares, `Memory of GPU ${gpu.index}`) : null,
      h("p", { class: "memory" }, `${bytes(gpu.memory_used_bytes)} of ${bytes(gpu.memory_total_bytes)}`, shares?.residue ? h("span", { class: "bad" }, ` ${bytes(shares.residue)} held by no process`) : null),
      h("p", { class: "quiet chips" }, facts.map(([name, value, meaning]) => h("span", { class: meaning ?? "" }, `${name} ${value}`.trim()))));
    const names = mine.map((lease) => [lease.job_id, this.#jobName(lease.job_id), lease.held_by]);
    fillOnce(jobs, names, () => (names.length ? names.map(([id, name, held]) => [h("a", { href: `#/jobs/${id}` }, name), held ? h("span", { class: "warning" }, ` held: ${plainName(held)}`) : null, " "]) : h("span", { class: "quiet" }, "no job")));
  }

  #jobName(id) {
    const job = this.#page.store.jobs.get(id);
    return job ? titleOf(job) : `#${id}`;
  }

  #drawHost(host) {
    const psi = host.pressure?.memory?.some_avg10_percent;
    const facts = [
      ["CPU", `${percent(host.cpu_percent)} of ${host.cpu_count} cores`],
      ["load", host.load_average[0].toFixed(1)],
      ["swap", host.swap_total_bytes ? `${bytes(host.swap_used_bytes)} of ${bytes(host.swap_total_bytes)}` : null],
      ["stalled for memory", isNumber(psi) ? `${psi.toFixed(1)} %` : null, psi >= 10 ? "bad" : ""],
      ["network", isNumber(host.network_received_bytes_per_second) ? `${bytes(host.network_received_bytes_per_second)}/s in, ${bytes(host.network_sent_bytes_per_second)}/s out` : null],
    ].filter(([, value]) => value !== null);
    const jobs = Object.keys(this.#past?.series ?? {}).filter((name) => JOB_ON_HOST.test(name)).reduce((sum, name) => sum + this.#newest(name), 0);
    const used = host.memory_used_bytes;
    const shares = { jobs: Math.min(jobs, used), others: Math.max(0, used - jobs), residue: 0, free: host.memory_available_bytes, total: host.memory_total_bytes };
    fill(this.#host, h("h2", {}, "Host"), memoryBar(shares, "Memory of the host"), h("p", { class: "memory" }, `${bytes(used)} of ${bytes(host.memory_total_bytes)}`), h("p", { class: "quiet chips" }, facts.map(([name, value, meaning]) => h("span", { class: meaning ?? "" }, `${name} ${value}`))));
  }

  #drawPast() {
    const { times, series, trouble, step_seconds: step } = this.#past;
    setText(this.#said, trouble ? `Nothing is kept: ${plainName(trouble)}` : `A point each ${step} s. Colours are jobs; grey is everything else.`);
    const wanted = [["host.memory_used_bytes", "Host memory", (name) => jobIn(JOB_ON_HOST, name)]];
    for (const name of Object.keys(series)) {
      const found = /^gpu\.(.+)\.memory_used_bytes$/.exec(name);
      if (found) wanted.push([name, `${this.#gpuName(found[1])} memory`, (each) => jobIn(JOB_ON_GPU, each, found[1])]);
    }
    const lines = [["host.cpu_percent", "Host CPU", percent], ["host.memory_stalled_percent", "Stalled for memory", percent]];
    for (const name of Object.keys(series)) {
      const found = /^gpu\.(.+)\.utilization_percent$/.exec(name);
      if (found) lines.push([name, `${this.#gpuName(found[1])} busy`, percent]);
    }
    for (const [name, title, ofJob] of wanted) if (series[name]) this.#drawStack(name, title, times, byOwner(series, name, ofJob));
    for (const [name, title, words] of lines) if (series[name]) this.#drawLine(name, title, words, times, series[name].mean);
  }

  #gpuName(uuid) {
    const gpu = this.#page.store.machine?.snapshot?.gpus.find((each) => each.uuid === uuid);
    return gpu ? `GPU ${gpu.index}` : `GPU ${uuid.slice(0, 12)}`;
  }

  #chart(name, title) {
    let chart = this.#charts.get(name);
    if (!chart) {
      chart = new Chart();
      this.#charts.set(name, chart);
      this.#pastPlace.append(h("section", {}, h("h3"), chart.element));
    }
    setText(chart.element.previousElementSibling, title);
    return chart;
  }

  #drawStack(name, title, times, { owners, others }) {
    const columns = [...owners.map((owner) => owner.values), others];
    const sums = stacked(columns);
    const lines = [];
    const data = [times];
    // From the top down: each area is drawn over the one below which it ends.
    for (let index = columns.length - 1; index >= 0; index -= 1) {
      const owner = owners[index];
      const tint = owner ? colour(owner.job) : style("--others");
      lines.push({ name: owner ? this.#jobName(owner.job) : "others", colour: tint, fill: tint, real: columns[index] });
      data.push(sums[index]);
    }
    const label = [summary(title, times, sums.at(-1)), ...owners.map((owner) => `${this.#jobName(owner.job)}: at most ${bytes(Math.max(...owner.values.filter(isNumber)))}`)].join(". ");
    this.#chart(name, title).draw({ label, height: 200, lines, log: false, stack: true, x: TIME_AXIS, y: { words: bytes, range: (plot, least, most) => [0, Math.max(1, most * 1.05)] } }, data);
  }

  #drawLine(name, title, words, times, values) {
    const line = { name: title, colour: colour(0) };
    this.#chart(name, title).draw({ label: summary(title, times, values), height: 130, lines: [line], log: false, x: TIME_AXIS, y: { words, range: [0, 100] } }, [times, values]);
  }
}

function jobIn(pattern, name, uuid) {
  const found = pattern.exec(name);
  return found && (uuid === undefined || found[2] === uuid) ? Number(found[1]) : null;
}

/** A bar of who holds how much; its label says it in words. */
export function memoryBar(shares, what) {
  const parts = [["jobs", "jobs"], ["others", "other programs"], ["residue", "no process"], ["free", "free"]].filter(([name]) => shares[name] > 0);
  const words = parts.map(([name, text]) => `${text} ${bytes(shares[name])}`).join(", ");
  const bar = h("div", { class: "memory-bar", role: "img", "aria-label": `${what}: ${words}`, title: words }, parts.map(([name]) => {
    const part = h("span", { class: `of-${name}` });
    part.style.flexGrow = String(shares[name]);
    return part;
  }));
  return bar;
}

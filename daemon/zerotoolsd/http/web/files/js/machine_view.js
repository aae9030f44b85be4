// The machine: whose memory it is now, and what was measured until now.

import { fill, fillOnce, h, setText } from "./dom.js";
import { UNKNOWN, bytes, isNumber, percent, plainName } from "./format.js";
import { MachinePast } from "./machine_past.js";

const DRIVERS_OWN = 2 ** 30;

/** The memory of a GPU by who holds it: jobs, other processes, nobody, free. `ours` are the bytes of
 * jobs by the history's newest point. */
function sharesOf(gpu, ours) {
  const used = gpu.memory_used_bytes;
  const total = gpu.memory_total_bytes;
  if (!isNumber(used) || !isNumber(total) || total <= 0) return null;
  const held = gpu.processes.every((process) => isNumber(process.memory_used_bytes)) ? gpu.processes.reduce((sum, process) => sum + process.memory_used_bytes, 0) : null;
  const jobs = Math.min(used, ours);
  const residue = held === null || used - held <= DRIVERS_OWN * Math.max(1, gpu.processes.length) ? 0 : used - held;
  return { jobs, others: Math.max(0, used - jobs - residue), residue, free: Math.max(0, total - used), total };
}

/** With more GPUs than this, the map of all is above their cards. */
const MANY_GPUS = 16;

export class MachineView {
  #page;
  #cards = new Map();
  #gpus = h("div", { class: "gpus" });
  #host = h("section", { class: "card host-card", "aria-label": "Host" });
  #past;
  #listen = () => this.#drawNow();

  constructor(page, rest) {
    this.#page = page;
    this.#past = new MachinePast(page, this.#listen);
    this.element = h("section", {}, h("h1", {}, "Machine"), this.#gpus, this.#host, this.#past.element);
    page.store.addEventListener("machine", this.#listen);
    page.store.wantMachine(this, true);
    this.#drawNow();
    this.turn(rest);
  }

  close() {
    this.#past.close();
    this.#page.store.removeEventListener("machine", this.#listen);
    this.#page.store.wantMachine(this, false);
  }

  /** The address has the GPU of which the curves are shown, if any. */
  turn([name]) {
    this.#past.open(name || null);
  }

  key(event) {
    const by = { j: 1, k: -1 }[event.key];
    if (by) this.#past.move(by);
    return by !== undefined;
  }

  #drawNow() {
    const machine = this.#page.store.machine;
    if (!machine?.snapshot) return;
    const { gpus, gpus_error: why, host } = machine.snapshot;
    if (!gpus.length) fill(this.#gpus, h("p", { class: "quiet" }, `No GPU is shown: ${plainName(why ?? "NVML works, but reports no GPU")}`));
    else {
      if (!this.#cards.size) {
        fill(this.#gpus);
        if (gpus.length > MANY_GPUS) this.#gpus.before(this.#past.element);
      }
      for (const gpu of gpus) this.#drawGpu(gpu, machine.leases);
      if (why) this.#gpus.prepend(this.#stale ??= h("p", { class: "warning" }));
      if (this.#stale) setText(this.#stale, why ? `These measurements are old: ${plainName(why)}` : "");
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
    const shares = sharesOf(gpu, this.#past.jobBytes(gpu.uuid));
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
      isNumber(gpu.utilization_percent) ? h("progress", { max: 100, value: gpu.utilization_percent, "aria-label": `GPU ${gpu.index} is busy` }) : null,
      h("p", { class: "quiet chips" }, facts.map(([name, value, meaning]) => h("span", { class: meaning ?? "" }, `${name} ${value}`.trim()))));
    const names = mine.map((lease) => [lease.job_id, this.#page.store.titleOf(lease.job_id), lease.held_by]);
    fillOnce(jobs, names, () => (names.length ? names.map(([id, name, held]) => [h("a", { href: `#/jobs/${id}` }, name), held ? h("span", { class: "warning" }, ` held: ${plainName(held)}`) : null, " "]) : h("span", { class: "quiet" }, "no job")));
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
    const jobs = this.#past.jobBytes(null);
    const used = host.memory_used_bytes;
    const shares = { jobs: Math.min(jobs, used), others: Math.max(0, used - jobs), residue: 0, free: host.memory_available_bytes, total: host.memory_total_bytes };
    fill(this.#host, h("h2", {}, "Host"), memoryBar(shares, "Memory of the host"), h("p", { class: "memory" }, `${bytes(used)} of ${bytes(host.memory_total_bytes)}`), h("p", { class: "quiet chips" }, facts.map(([name, value, meaning]) => h("span", { class: meaning ?? "" }, `${name} ${value}`))));
  }
}

/** A bar of who holds how much; its label says it in words. */
function memoryBar(shares, what) {
  const parts = [["jobs", "jobs"], ["others", "other programs"], ["residue", "no process"], ["free", "free"]].filter(([name]) => shares[name] > 0);
  const words = parts.map(([name, text]) => `${text} ${bytes(shares[name])}`).join(", ");
  return h("div", { class: "memory-bar", role: "img", "aria-label": `${what}: ${words}`, title: words }, parts.map(([name]) => {
    const part = h("span", { class: `of-${name}` });
    part.style.flexGrow = String(shares[name]);
    return part;
  }));
}

// uPlot in the colours of the page, at the size of its place.

import uPlot from "../vendor/uplot/uPlot.js";
import { h } from "./dom.js";
import { UNKNOWN, bytes, clock, isNumber, measure } from "./format.js";

const COLOURS = 8;
const TICK_PIXELS = 80;

/** The most ticks of an axis of this many pixels. */
export const ticksIn = (pixels) => Math.max(2, Math.floor(pixels / TICK_PIXELS));

/** An axis of moments. */
export const TIME_AXIS = {
  kind: "time",
  label: "time",
  words: (value) => clock(value),
  splits: (plot, axis, least, most) => timeTicks(least, most, ticksIn(plot.bbox.width / devicePixelRatio)),
  values: (plot, ticks) => ticks.map((tick) => tickLabel(tick, plot.scales.x.max - plot.scales.x.min)),
};

/** The colour of the nth line, as the style sheet has it now. */
export function colour(number) {
  return style(`--line-${(number % COLOURS) + 1}`);
}

export function style(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** A chart in an element of its own: `draw(options, data)` makes it or changes it. `options` are
 * `label` (what it shows, for those who do not see it), `height`, `lines`, `log`, `x`, `y`,
 * `marks`, `stack` and `inset` (a function of the plot: the pixels to the left and right of its area). */
export class Chart {
  #plot = null;
  #shape = "";
  #width = 0;
  #last = null;
  #watch;
  marks = [];
  lines = [];

  constructor() {
    this.place = h("div", { class: "plot" });
    this.element = h("figure", { class: "chart", role: "group" }, this.place);
    this.#watch = new ResizeObserver(() => this.#resize());
    this.#watch.observe(this.element);
    this.themed = () => this.redraw();
    addEventListener("themechange", this.themed);
  }

  /** Draw it anew, in other colours. */
  redraw() {
    this.#shape = "";
    if (this.#last) this.draw(...this.#last);
  }

  /** No page shows it any more. */
  close() {
    this.#watch.disconnect();
    removeEventListener("themechange", this.themed);
    this.#plot?.destroy();
    this.#plot = null;
  }

  draw(options, data) {
    this.#last = [options, data];
    this.marks = options.marks ?? [];
    this.lines = options.lines;
    this.element.setAttribute("aria-label", options.label);
    this.#width = Math.max(200, Math.floor(this.element.clientWidth || 600));
    const shape = JSON.stringify([options.lines.map((line) => [line.name, line.dash, line.faint, line.dots, line.colour]), options.log, options.trim, options.height, options.stack, options.x.kind]);
    if (this.#plot && shape === this.#shape) {
      this.#plot.setData(data);
      showLast(this.#plot, options.stack);
      return;
    }
    this.#plot?.destroy();
    this.#shape = shape;
    this.#plot = new uPlot(shaped(this, options, this.#width), data, this.place);
  }

  #resize() {
    const width = Math.max(200, Math.floor(this.element.clientWidth));
    if (this.#plot && width !== this.#width) {
      this.#width = width;
      this.#plot.setSize({ width, height: this.#plot.height });
    }
  }
}

function shaped(chart, options, width) {
  const text = style("--muted");
  const grid = { stroke: style("--grid"), width: 1 };
  const font = `12px ${style("--font")}`;
  const axis = { stroke: text, grid, ticks: { ...grid, size: 4 }, font, gap: 4 };
  const time = options.x.kind === "time";
  return {
    width,
    height: options.height,
    padding: [null, options.inset ? (plot) => options.inset(plot).right : TICK_PIXELS / 3, null, null],
    cursor: { y: false, drag: { x: true, y: false }, points: { size: 7 } },
    legend: { show: true, live: true, markers: markersOf(chart) },
    scales: {
      x: { time, range: options.x.range },
      y: options.log ? { distr: 3, log: 10 } : options.y.range ? { range: options.y.range } : options.y.words === bytes ? { range: (plot, least, most) => [0, 1.1 * most || 1] } : options.trim ? { range: (plot) => trimmed(chart.lines, plot.scales.x) } : {},
    },
    axes: [
      { ...axis, size: 28, values: options.x.values, splits: options.x.splits, incrs: options.x.incrs },
      {
        ...axis,
        size: options.inset ? (plot) => options.inset(plot).left : 70,
        incrs: options.y.words === bytes && BINARY,
        values: (plot, ticks) => ticks.map((tick) => (tick === null ? "" : shortened(options.y.words(tick)))),
      },
    ],
    series: [
      { label: options.x.label, value: (plot, value) => (value === null ? "" : options.x.words(value)) },
      ...options.lines.map((line) => ({
        label: line.name,
        stroke: line.colour,
        width: line.faint ? 1 : 2,
        alpha: line.faint ? 0.35 : 1,
        dash: line.dash && [5, 4],
        fill: line.fill,
        spanGaps: !options.inset,
        points: line.dots ? { show: true, size: 6, fill: line.colour } : { show: false },
        value: (plot, value, number, index) => worded(chart.lines[number - 1], value, index, options.y.words),
      })),
    ],
    plugins: [marking(chart)],
    hooks: { ready: [(plot) => showLast(plot, options.stack)], setCursor: [(plot) => showLast(plot, options.stack)] },
  };
}

/** What 96 of 100 of the shown values lie in, with a margin: one spike does not flatten the others. */
export function trimmed(lines, { min, max }) {
  const shown = lines.flatMap(({ x, y }) => y.filter((value, index) => isNumber(value) && x[index] >= min && x[index] <= max)).sort((a, b) => a - b);
  const [least, most] = [0.02, 0.98].map((part) => shown[Math.round(part * (shown.length - 1))] ?? 0);
  const margin = (most - least) / 10 || Math.abs(most) / 10 || 1;
  return [least - margin, most + margin];
}

// While nobody points at a chart, its legend has the last value of each line; of lines that are stacked,
// what each has at the end.
function showLast(plot, stack) {
  if (plot.cursor.idx !== null && plot.cursor.idx !== undefined) return;
  const idxs = plot.data.map((values) => (stack ? plot.data[0].length - 1 : values.findLastIndex((value) => value !== null && value !== undefined)));
  plot.setLegend({ idxs: idxs.map((index) => (index < 0 ? null : index)) }, false);
}

// Lines of one colour differ in the legend as they do in the chart.
function markersOf(chart) {
  const line = (number) => chart.lines[number - 1] ?? {};
  return {
    width: 2,
    stroke: (plot, number) => line(number).colour,
    fill: (plot, number) => (line(number).faint || line(number).dots ? "transparent" : line(number).colour),
    dash: (plot, number) => (line(number).faint ? "dotted" : line(number).dash ? "dashed" : "solid"),
  };
}

/** Distances of ticks for what is counted: 1, 2, 5, 10 ... */
export const WHOLE = Array.from({ length: 45 }, (_, index) => [1, 2, 5][index % 3] * 10 ** Math.floor(index / 3));

// Distances of ticks for bytes: 1, 2, 4 ... of each unit.
const BINARY = Array.from({ length: 52 }, (_, power) => 2 ** power);

// `0.003000` at an axis is `0.003`, and `2.000 GiB` is `2 GiB`.
const shortened = (words) => words.replace(/(\.\d*?)0+(?=\D|$)/, "$1").replace(/\.(?=\D|$)/, "");

// Of a line that is stacked upon others, its own value and not the sum.
function worded(line, value, index, words) {
  if (value === null || value === undefined) return UNKNOWN;
  const real = line?.real;
  return words(real && index !== null ? (real[index] ?? 0) : value);
}

// Vertical lines at some x, each with a word: where a run was resumed, what was saved.
function marking(chart) {
  return {
    hooks: {
      drawClear: (plot) => {
        const { ctx, bbox } = plot;
        ctx.save();
        for (const mark of chart.marks) {
          const x = Math.round(plot.valToPos(mark.x, "x", true));
          if (x < bbox.left || x > bbox.left + bbox.width) continue;
          ctx.strokeStyle = mark.colour;
          ctx.lineWidth = devicePixelRatio;
          ctx.setLineDash(mark.solid ? [] : [3 * devicePixelRatio, 3 * devicePixelRatio]);
          ctx.beginPath();
          const top = mark.short ? bbox.top + bbox.height - 8 * devicePixelRatio : bbox.top;
          ctx.moveTo(x, top);
          ctx.lineTo(x, bbox.top + bbox.height);
          ctx.stroke();
        }
        ctx.restore();
      },
    },
  };
}

/** A line of the last values, small, without axes; `label` is read to those who do not see it. */
export function summary(name, xs, values) {
  const known = values.filter((value) => value !== null && value !== undefined);
  if (known.length === 0) return `${name}: nothing was reported yet`;
  const least = known.reduce((a, b) => Math.min(a, b));
  const most = known.reduce((a, b) => Math.max(a, b));
  return `${name}: ${known.length} points, from ${measure(known[0])} to ${measure(known[known.length - 1])}, least ${measure(least)}, greatest ${measure(most)}`;
}

const MINUTE = 60;
const HOUR = 3600;
const DAY = 86400;
const STEPS = [1, 5, 15, 30, MINUTE, 2 * MINUTE, 5 * MINUTE, 10 * MINUTE, 15 * MINUTE, 30 * MINUTE, HOUR, 2 * HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 2 * DAY, 7 * DAY, 14 * DAY, 28 * DAY];

/** At most `most` moments from `begin` to `end`, in seconds: whole hours or minutes, or midnights, in
 * the time of this browser. */
export function timeTicks(begin, end, most) {
  const step = STEPS.find((each) => (end - begin) / each <= most) ?? STEPS.at(-1);
  const found = [];
  const midnight = new Date(begin * 1000);
  midnight.setHours(0, 0, 0, 0);
  // Days are counted by the calendar: one of them has 23 hours, and one has 25.
  for (let day = 0; midnight.getTime() / 1000 <= end; day += 1) {
    const first = midnight.getTime() / 1000;
    midnight.setDate(midnight.getDate() + 1);
    if (step >= DAY && day % (step / DAY)) continue;
    const next = midnight.getTime() / 1000;
    for (let tick = first; tick < next && tick <= end; tick += Math.min(step, DAY)) {
      if (tick >= begin) found.push(tick);
      if (step >= DAY) break;
    }
  }
  return found;
}

/** The label of a tick: its day at midnight, else its hour, and its second on a short axis. */
export function tickLabel(time, span) {
  const date = new Date(time * 1000);
  const hour = date.toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit", second: span < 600 ? "2-digit" : undefined, hour12: false, hourCycle: "h23" });
  return hour.startsWith("00:00") ? date.toLocaleDateString(undefined, { day: "numeric", month: "short" }) : hour;
}

// What was measured over time as rows of colours, one row for each GPU.

import { style, tickLabel, ticksIn, timeTicks } from "./charts.js";
import { fillOnce, h, keyed, setCurrent, setText } from "./dom.js";
import { UNKNOWN, clock, isNumber } from "./format.js";

/** The colour between the stops of a scale, which are `#rrggbb`, at `part` of it, from 0 to 1. */
export function shade(stops, part) {
  const place = Math.min(1, Math.max(0, part)) * (stops.length - 1);
  const below = Math.min(stops.length - 2, Math.floor(place));
  const at = (stop, channel) => parseInt(stop.slice(1 + 2 * channel, 3 + 2 * channel), 16);
  const mixed = [0, 1, 2].map((channel) => Math.round(at(stops[below], channel) + (place - below) * (at(stops[below + 1], channel) - at(stops[below], channel))));
  return `rgb(${mixed.join(" ")})`;
}

/** The mean and the greatest of the values that are known, in words. */
function said(values, words) {
  const known = values.filter(isNumber);
  if (!known.length) return "nothing was measured";
  return `on average ${words(known.reduce((a, b) => a + b, 0) / known.length)}, at most ${words(Math.max(...known))}`;
}

export class HeatMap {
  #rows = h("ul", { class: "heat-rows" });
  #ticks = h("div", { class: "heat-ticks", "aria-hidden": "true" });
  #read = h("output", { class: "heat-read quiet" });
  #scale = h("span", { class: "heat-scale", "aria-hidden": "true" });
  #last = null;
  #themed = () => this.#paint();
  #watch = new ResizeObserver(() => this.#drawTicks());

  constructor() {
    this.element = h("figure", { class: "heat card", role: "group" }, this.#rows, this.#ticks, h("figcaption", {}, this.#read, this.#scale));
    this.element.addEventListener("pointerleave", () => this.#point(null));
    this.#watch.observe(this.element);
    addEventListener("themechange", this.#themed);
  }

  close() {
    this.#watch.disconnect();
    removeEventListener("themechange", this.#themed);
  }

  /** Draw `rows`: each has `key`, `href`, `title`, `values` (one for each of `times`, or null), `most`
   * (the value of the last colour) and `words` (a value as text). `step` are the seconds of a point,
   * `begin` and `end` those of the axis, and `open` is the key of the row that is shown below. */
  draw(wanted) {
    this.#last = wanted;
    this.element.setAttribute("aria-label", wanted.label);
    keyed(this.#rows, wanted.rows, (row) => row.key, (row) => this.#make(row.key), (item, row) => {
      const [link] = item.children;
      link.href = row.href;
      setCurrent(link, row.key === wanted.open);
      setText(link.children[0], row.title);
      link.children[1].setAttribute("aria-label", said(row.values, row.words));
      setText(link.children[2], row.now);
    });
    const { least, most } = wanted.scale;
    fillOnce(this.#scale, wanted.scale, () => [least, h("i"), most, h("i", { class: "none" }), "not measured"]);
    this.#paint();
    this.#drawTicks();
  }

  #make(key) {
    const strip = h("canvas", { role: "img", height: 1 });
    strip.addEventListener("pointermove", (event) => this.#point(key, event.offsetX / strip.clientWidth));
    return h("li", {}, h("a", {}, h("span", { class: "heat-name" }), strip, h("span", { class: "heat-now" })));
  }

  #paint() {
    if (!this.#last) return;
    const { rows, times, step, begin, end } = this.#last;
    const stops = [0, 1, 2].map((stop) => style(`--heat-${stop}`));
    const columns = Math.max(1, Math.ceil((end - begin) / step));
    for (const [number, row] of rows.entries()) {
      const strip = this.#rows.children[number].querySelector("canvas");
      strip.width = columns;
      const pen = strip.getContext("2d");
      row.values.forEach((value, index) => {
        if (!isNumber(value)) return;
        pen.fillStyle = shade(stops, row.most > 0 ? value / row.most : 0);
        pen.fillRect(Math.floor((times[index] - begin) / step), 0, 1, 1);
      });
    }
  }

  /** The pixels to the left and right of the area of a chart below, so that it lies below the rows. */
  inset = (plot) => {
    const { left } = plot.root.getBoundingClientRect();
    const strip = this.#rows.querySelector("canvas").getBoundingClientRect();
    return { left: strip.left - left, right: left + plot.width - strip.right };
  };

  /** The range of its axis: that of the rows, unless it is zoomed. */
  range = (plot, least, most) => (least <= this.#last.times[0] && most >= this.#last.times.at(-1) ? [this.#last.begin, this.#last.end] : [least, most]);

  #drawTicks() {
    if (!this.#last) return;
    const { begin, end } = this.#last;
    const strip = this.#rows.querySelector("canvas");
    const width = strip?.clientWidth ?? 0;
    const ticks = timeTicks(begin, end, ticksIn(width));
    fillOnce(this.#ticks, [ticks, width, begin], () => ticks.map((tick) => {
      const label = h("span", {}, tickLabel(tick, end - begin));
      label.style.left = `${strip.offsetLeft + ((tick - begin) / (end - begin)) * width}px`;
      return label;
    }));
  }

  #point(key, part = 0) {
    const row = this.#last?.rows.find((each) => each.key === key);
    if (!row) {
      setText(this.#read, "");
      return;
    }
    const { times, step, begin, end } = this.#last;
    const time = begin + Math.min(1, Math.max(0, part)) * (end - begin);
    const index = times.findLastIndex((each) => each <= time && each > time - step);
    const value = index < 0 ? null : row.values[index];
    setText(this.#read, `${row.title}, ${clock(time)}: ${isNumber(value) ? row.words(value) : UNKNOWN}${index < 0 ? "" : (row.more?.(index) ?? "")}`);
  }

  /** Move the focus by this many rows. */
  move(by) {
    const links = [...this.#rows.querySelectorAll("a")];
    const at = links.indexOf(document.activeElement);
    links[Math.min(links.length - 1, Math.max(0, at < 0 ? 0 : at + by))]?.focus();
  }
}

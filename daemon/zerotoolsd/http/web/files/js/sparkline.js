// A curve in the space of a word.

import { svg } from "./dom.js";
import { isNumber } from "./format.js";

const WIDTH = 96;
const HEIGHT = 22;

/** The points of a polyline; of no or equal values a line in the middle. */
export function pointsOf(values, width = WIDTH, height = HEIGHT) {
  const known = values.filter(isNumber);
  if (known.length < 2) return "";
  const least = Math.min(...known);
  const span = Math.max(...known) - least;
  return known
    .map((value, index) => {
      const x = (index / (known.length - 1)) * (width - 2) + 1;
      const y = span > 0 ? height - 2 - ((value - least) / span) * (height - 4) : height / 2;
      return `${x.toFixed(1)},${y.toFixed(1)}`;
    })
    .join(" ");
}

export function sparkline(values) {
  const made = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: WIDTH, height: HEIGHT, class: "spark", "aria-hidden": "true" });
  const points = pointsOf(values);
  if (points) made.append(svg("polyline", { points }));
  return made;
}

// Charts of all pages: lines over layers or steps, maps of cells, and histograms.
const pictures = document.querySelector("svg").namespaceURI;
const svg = (tag, attributes = {}, text) => {
  const element = document.createElementNS(pictures, tag);
  Object.entries(attributes).forEach(([name, value]) => element.setAttribute(name, value));
  if (text !== undefined) element.textContent = text;
  return element;
};
// The width of a label, and its first letters with an ellipsis where it is wider than it may be; `fromEnd` keeps the last ones.
const pen = document.createElement("canvas").getContext("2d");
const widthOf = (text) => { pen.font = `11px ${getComputedStyle(document.body).fontFamily}`; return pen.measureText(text).width; };
const fitted = (text, width, fromEnd) => {
  const cut = (letters) => letters === text.length ? text : fromEnd ? `…${text.slice(-letters)}` : `${text.slice(0, letters)}…`;
  let letters = text.length;
  while (letters > 1 && widthOf(cut(letters)) > width) letters -= 1;
  return cut(letters);
};
const power = (exponent) => `1e${exponent}`;
const ticksOf = (least, greatest, isLog, most = 5) => {
  if (isLog) {
    const [first, last] = [Math.floor(Math.log10(least)), Math.ceil(Math.log10(greatest))];
    const step = Math.max(1, Math.ceil((last - first) / most));
    const found = [];
    for (let exponent = first; exponent <= last; exponent += step) found.push([10 ** exponent, power(exponent)]);
    const shown = found.filter(([value]) => value >= least * 0.999 && value <= greatest * 1.001);
    if (shown.length > 1) return shown;
    // Few powers of ten: also their multiples by 2 and 5
    const more = [];
    for (let exponent = first - 1; exponent <= last; exponent += 1) [1, 2, 5].forEach((each) => more.push(Number(`${each}e${exponent}`)));
    return more.filter((value) => value >= least * 0.999 && value <= greatest * 1.001).map((value) => [value, figure(value)]);
  }
  const rough = (greatest - least) / most || 1;
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * unit).find((each) => each >= rough * 0.999);
  const found = [];
  for (let n = Math.ceil(least / step); n * step <= greatest * (1 + 1e-9); n += 1) found.push([n * step, figure(n * step)]);
  return found;
};

// Lines over x. A spec has: title, series ({name, colour, points: [x, y, isMarked]}), isLog, labelOf(x), at (a marked x), pick(x).
const drawLines = (host, spec) => {
  host.replaceChildren(make("h3", spec.title));
  // A logarithmic axis has no 0. A point without a place is a gap in its line, and its ring is on the axis.
  const isShown = (point) => point && Number.isFinite(point[1]) && (!spec.isLog || point[1] > 0);
  const points = spec.series.flatMap((each) => each.points), all = points.filter(isShown);
  if (!all.length) { host.append(make("p", spec.empty || "no values", "muted")); return; }
  const width = Math.max(220, host.clientWidth), height = 170;
  const xs = [...new Set(points.map(([x]) => x))].sort((a, b) => a - b);
  const [x0, x1] = [xs[0], xs[xs.length - 1]];
  let [y0, y1] = [Math.min(...all.map(([, y]) => y)), Math.max(...all.map(([, y]) => y))];
  if (spec.isLog) { const room = (y1 / y0) ** 0.06 * 1.02; y0 /= room; y1 *= room; if (Math.log10(y1 / y0) < 1) { y0 = 10 ** Math.floor(Math.log10(y0)); y1 = 10 ** Math.ceil(Math.log10(y1)); } } else { const room = (y1 - y0) * 0.06 || Math.abs(y1) * 0.1 || 1; y0 -= room; y1 += room; }
  const [left, top, bottom] = [54, 8, 24];
  const spaced = Math.max(1, Math.ceil(xs.length / Math.max(2, Math.floor((width - left) / 62))));
  const marked = spec.labelOf ? xs.filter((_, n) => n % spaced === 0).map((x) => [x, spec.labelOf(x)]) : ticksOf(x0, x1, false, Math.max(2, Math.floor(width / 90)));
  const gap = marked.length > 1 ? (width - left - 40) * spaced / (xs.length - 1) - 6 : 96;
  const labels = spec.labelOf ? marked.map(([x, text]) => [x, fitted(text, Math.min(96, gap))]) : marked;
  // The last label stands below its point, with all its letters in the picture.
  const right = Math.max(10, Math.ceil(widthOf(labels.at(-1)?.[1] || "") / 2));
  const scaled = (y) => spec.isLog ? Math.log10(y) : y;
  const px = (x) => left + (x1 === x0 ? 0.5 : (x - x0) / (x1 - x0)) * (width - left - right);
  const py = (y) => top + (1 - (scaled(y) - scaled(y0)) / (scaled(y1) - scaled(y0))) * (height - top - bottom);
  const picture = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", tabindex: 0, "aria-label": `${spec.title}: ${spec.series.map((each) => each.name).join(", ")}; arrow keys read values` });
  ticksOf(y0, y1, spec.isLog).forEach(([y, text]) => {
    picture.append(svg("line", { x1: left, x2: width - right, y1: py(y), y2: py(y), class: "grid" }), svg("text", { x: left - 6, y: py(y) + 4, class: "tick end" }, text));
  });
  labels.forEach(([x, text]) => picture.append(svg("text", { x: px(x), y: height - 8, class: "tick middle" }, text)));
  if (spec.at !== undefined && spec.at !== null && spec.at >= x0 && spec.at <= x1) picture.append(svg("line", { x1: px(spec.at), x2: px(spec.at), y1: top, y2: height - bottom, class: "at" }));
  spec.series.forEach((each) => {
    const path = each.points.map((point, n) => isShown(point) ? `${isShown(each.points[n - 1]) ? "L" : "M"}${px(point[0]).toFixed(1)},${py(point[1]).toFixed(1)}h0` : "").join("");
    picture.append(svg("path", { d: path, class: "line", style: `stroke:${each.colour}` }));
    const shown = each.points.filter(isShown);
    if (shown.length <= 80) shown.forEach(([x, y]) => picture.append(svg("circle", { cx: px(x), cy: py(y), r: 2.5, style: `fill:${each.colour}` })));
    each.points.filter((point) => point[2]).forEach((point) => picture.append(svg("circle", { cx: px(point[0]), cy: isShown(point) ? py(point[1]) : height - bottom, r: 6, class: "ring" })));
  });
  const cursor = picture.appendChild(svg("line", { y1: top, y2: height - bottom, class: "cursor", visibility: "hidden" }));
  makeReadable(picture, {
    none: -1,
    placeAt: (event) => { const at = event.clientX - picture.getBoundingClientRect().left; return xs.reduce((best, x, n) => Math.abs(px(x) - at) < Math.abs(px(xs[best]) - at) ? n : best, 0); },
    moved: movedAlong(xs.length),
    show: (place, clientX, clientY) => {
      const x = xs[place], box = picture.getBoundingClientRect();
      cursor.setAttribute("x1", px(x));
      cursor.setAttribute("x2", px(x));
      cursor.setAttribute("visibility", "visible");
      const texts = spec.series.map((each) => [each, each.points.find((point) => point[0] === x)]).filter(([, point]) => point).map(([each, point]) => `${each.name} ${figure(point[1])}${point[2] ? " (outlier)" : ""}`);
      showTip(`${spec.nameOf ? spec.nameOf(x) : x}: ${texts.join(", ")}`, clientX ?? box.left + px(x), clientY ?? box.top + 20);
    },
    hide: () => cursor.setAttribute("visibility", "hidden"),
    pick: spec.pick && ((place) => spec.pick(xs[place])),
  });
  host.append(picture);
  if (spec.series.length > 1) {
    const legend = make("ul", undefined, "legend");
    spec.series.forEach((each) => { const item = make("li"); const swatch = make("span"); swatch.style.background = each.colour; item.append(swatch, each.name); legend.append(item); });
    host.append(legend);
  }
};

// A map of cells. A spec has: rows, columns (texts), titleOf(column), colourOf(row, column), wordsOf(row, column), isMarked(row, column), pick(row, column), name.
const drawCells = (host, spec) => {
  host.replaceChildren();
  if (!spec.rows.length || !spec.columns.length) { host.append(make("p", "no values", "muted")); return; }
  const narrow = host.clientWidth < 560;
  const left = narrow ? 116 : 210, high = 18, top = 18;
  const wide = Math.max(9, Math.min(64, Math.floor((host.clientWidth - left - 4) / spec.columns.length)));
  const width = left + wide * spec.columns.length + 2, height = top + high * spec.rows.length + 2;
  const picture = svg("svg", { width, height, role: "img", tabindex: 0, "aria-label": `${spec.name}: ${spec.rows.length} rows, ${spec.columns.length} columns; arrow keys read cells` });
  spec.rows.forEach((row, r) => {
    const text = svg("text", { x: left - 6, y: top + high * r + 13, class: "tick end" }, fitted(row, left - 8, true));
    text.append(svg("title", {}, row));
    picture.append(text);
  });
  const longest = Math.max(...spec.columns.map((each) => each.length));
  const every = Math.max(1, Math.ceil((longest * 6.5 + 6) / wide));
  spec.columns.forEach((column, c) => {
    if (c % every === 0) picture.append(svg("text", { x: every > 1 ? Math.min(left + wide * c, width - widthOf(column)) : left + wide * (c + 0.5), y: 12, class: every > 1 ? "tick" : "tick middle" }, column));
  });
  spec.rows.forEach((_, r) => spec.columns.forEach((__, c) => {
    const colour = spec.colourOf(r, c);
    if (colour === null) return;
    picture.append(svg("rect", { x: left + wide * c, y: top + high * r, width: wide - 1, height: high - 1, style: `fill:${colour}` }));
    if (spec.isMarked && spec.isMarked(r, c)) picture.append(svg("rect", { x: left + wide * c + 1.5, y: top + high * r + 1.5, width: Math.max(4, wide - 4), height: high - 4, class: "ring" }));
  }));
  const cursor = picture.appendChild(svg("rect", { width: wide, height: high, class: "here", visibility: "hidden" }));
  makeReadable(picture, {
    none: null,
    placeAt: (event) => {
      const box = picture.getBoundingClientRect();
      const [r, c] = [Math.floor((event.clientY - box.top - top) / high), Math.floor((event.clientX - box.left - left) / wide)];
      return r < 0 || c < 0 || r >= spec.rows.length || c >= spec.columns.length ? null : [r, c];
    },
    moved: (place, key) => {
      const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[key];
      const [r, c] = place || [-1, -1];
      return step && [within(r + step[0], spec.rows.length), within(c + step[1], spec.columns.length)];
    },
    show: ([r, c], x, y) => {
      cursor.setAttribute("x", left + wide * c - 0.5);
      cursor.setAttribute("y", top + high * r - 0.5);
      cursor.setAttribute("visibility", "visible");
      const box = picture.getBoundingClientRect();
      showTip(spec.wordsOf(r, c), x ?? box.left + left + wide * (c + 1), y ?? box.top + top + high * r);
    },
    hide: () => cursor.setAttribute("visibility", "hidden"),
    pick: spec.pick && ((place) => spec.pick(...place)),
  });
  host.append(picture);
};

// From `flat` over `part` of the way to `warm`; negative parts go to `cold`.
const mixed = (part) => `color-mix(in oklab, var(--${part < 0 ? "cold" : "warm"}) ${Math.round(100 * Math.min(1, Math.abs(part)))}%, var(--flat))`;
const drawScale = (host, texts, parts) => {
  const scale = make("div", undefined, "scale");
  const bar = make("span", undefined, "ramp");
  bar.style.background = `linear-gradient(90deg, ${parts.map(mixed).join(", ")})`;
  scale.append(make("span", texts[0]), bar, make("span", texts[1]));
  host.append(scale);
};

// A histogram of magnitudes by powers of two: negative numbers, zeros, positive numbers.
const drawHistogram = (host, title, first, negative, positive, zeros) => {
  const box = make("figure");
  box.append(make("figcaption", title));
  const bars = [];
  const shows = negative.some((each) => each);
  if (shows) [...negative].reverse().forEach((number, n) => bars.push([number, `${count(number)} from ${figure(-(2 ** (first + negative.length - n)))} to ${figure(-(2 ** (first + negative.length - 1 - n)))}`]));
  if (zeros || shows) bars.push([zeros, `${count(zeros)} zero`]);
  positive.forEach((number, n) => bars.push([number, `${count(number)} from ${figure(2 ** (first + n))} to ${figure(2 ** (first + n + 1))}`]));
  const width = 300, height = 84, wide = width / bars.length;
  const most = Math.max(1, ...bars.map(([number]) => number));
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height + 16}`, role: "img", tabindex: 0, "aria-label": `${title}: histogram of magnitudes; arrow keys read bars` });
  const drawn = bars.map(([number], n) => {
    const tall = number ? Math.max(1, number / most * height) : 0;
    return picture.appendChild(svg("rect", { x: n * wide, y: height - tall, width: Math.max(0.5, wide - 0.6), height: tall, class: "bar-of" }));
  });
  const mark = (place) => drawn.forEach((bar, n) => bar.classList.toggle("now", n === place));
  makeReadable(picture, {
    none: -1,
    placeAt: (event) => { const area = picture.getBoundingClientRect(); return within(Math.floor((event.clientX - area.left) / area.width * bars.length), bars.length); },
    moved: movedAlong(bars.length),
    show: (place, x, y) => { const area = picture.getBoundingClientRect(); mark(place); showTip(bars[place][1], x ?? area.left + (place + 0.5) / bars.length * area.width, y ?? area.top + 20); },
    hide: () => mark(-1),
  });
  picture.append(svg("line", { x1: 0, x2: width, y1: height, y2: height, class: "grid" }));
  const last = first + positive.length;
  if (shows) picture.append(svg("text", { x: 0, y: height + 13, class: "tick" }, figure(-(2 ** last))), svg("text", { x: width / 2, y: height + 13, class: "tick middle" }, "0"));
  else picture.append(svg("text", { x: 0, y: height + 13, class: "tick" }, zeros ? "0" : figure(2 ** first)));
  if (shows || positive.length) picture.append(svg("text", { x: width, y: height + 13, class: "tick end" }, figure(2 ** last)));
  box.append(picture);
  host.append(box);
};

"use strict";
// What all pages share. Values come from the JSON element alone, and names are set as text.
const values = JSON.parse(document.getElementById("values").textContent);
const byId = (id) => document.getElementById(id);
const make = (tag, text, className) => {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (className) element.className = className;
  return element;
};
// Give each cell the head of its column, which stands before it where the window is narrow.
const nameCells = (table) => {
  const heads = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
  [...table.tBodies].flatMap((body) => [...body.rows]).forEach((row) => [...row.cells].forEach((cell, n) => { cell.dataset.head = heads[n]; }));
};
const size = (bytes) => {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (bytes >= 1024 && unit < units.length - 1) { bytes /= 1024; unit += 1; }
  return `${unit && bytes < 100 ? bytes.toFixed(1) : Math.round(bytes).toLocaleString("en")} ${units[unit]}`;
};
const count = (number) => number.toLocaleString("en");
const figure = (number) => {
  if (number === null || number === undefined) return "-";
  if (number === 0 || (Math.abs(number) >= 0.001 && Math.abs(number) < 100000)) return String(Number(number.toPrecision(4)));
  return number.toExponential(2);
};
const share = (part) => part === null ? "-" : part === 1 ? "100 %" : part > 0.999 ? ">99.9 %" : `${(100 * part).toFixed(1)} %`;

const tip = byId("tip");
const showTip = (text, x, y) => {
  tip.hidden = false;
  tip.textContent = text;
  tip.style.left = `${Math.max(4, Math.min(x + 12, innerWidth - tip.offsetWidth - 8))}px`;
  tip.style.top = `${Math.min(y + 16, innerHeight - tip.offsetHeight - 4)}px`;
};
const hideTip = () => { tip.hidden = true; };

// Let a picture be read place by place: with a pointer, with a finger, which the next touch ends, and with keys.
// A spec has: none (the place before the first), placeAt(event) or null, moved(place, key) or undefined, show(place, x, y), hide(), pick(place).
const makeReadable = (picture, spec) => {
  let here = spec.none;
  const away = () => { if (spec.hide) spec.hide(); hideTip(); };
  const read = (place, x, y) => { here = place; spec.show(place, x, y); };
  const point = (event) => { const place = spec.placeAt(event); if (place === null) away(); else read(place, event.clientX, event.clientY); };
  picture.classList.add("readable");
  picture.addEventListener("pointermove", point);
  picture.addEventListener("pointerdown", point);
  picture.addEventListener("pointerleave", (event) => { if (event.pointerType !== "touch") away(); });
  picture.addEventListener("blur", away);
  picture.addEventListener("click", () => { if (spec.pick && here !== spec.none) spec.pick(here); });
  picture.addEventListener("keydown", (event) => {
    const to = spec.moved(here, event.key);
    if (to !== undefined) read(to);
    else if (event.key === "Enter" && spec.pick && here !== spec.none) spec.pick(here);
    else if (event.key === "Escape") away();
    else return;
    event.preventDefault();
  });
};
const within = (place, number) => Math.max(0, Math.min(number - 1, place));
const STEPS = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity };
const movedAlong = (number) => (place, key) => key in STEPS ? within(place + STEPS[key], number) : undefined;

// What is drawn again when the window gets another width.
const drawings = [];
let resize = 0;
addEventListener("resize", () => { cancelAnimationFrame(resize); resize = requestAnimationFrame(() => drawings.forEach((draw) => draw())); });
addEventListener("beforeprint", () => drawings.forEach((draw) => draw()));

// Head
byId("title").textContent = values.title;
byId("verdict").textContent = values.doubt ? `${values.verdict}; ${values.doubt}` : values.verdict;
byId("verdict").classList.toggle("doubt", Boolean(values.doubt));
byId("verdict").classList.toggle("whole", values.is_whole);
byId("verdict").classList.toggle("unknown", Boolean(values.is_unknown));
values.facts.forEach(([name, value]) => {
  const pair = make("div");
  pair.append(make("dt", name), make("dd", value));
  byId("facts").append(pair);
});
// The first problems and notes, and the others on request.
const drawMessages = (texts, all, words, className) => {
  const list = (some) => { const found = make("ul"); some.forEach((text) => found.append(make("li", text, className))); return found; };
  const shown = texts.length > 6 ? 5 : texts.length;
  if (shown) byId("messages").append(list(texts.slice(0, shown)));
  if (shown === texts.length) return;
  const more = make("details"), rest = list(texts.slice(shown));
  if (all > texts.length) rest.append(make("li", `and ${count(all - texts.length)} more`));
  more.append(make("summary", `${count(all - shown)} more ${words}`), rest);
  byId("messages").append(more);
};
drawMessages(values.problems, values.problem_count, "problems", "problem");
drawMessages(values.notes, values.notes.length, "notes", "");

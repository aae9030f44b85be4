// Elements. Text is always set as text: nothing that a job says can become markup.

/** An element with attributes and children; an attribute that is null, undefined or false is left
 * out, one that begins with "on" is a listener. Children are nodes or text. */
export function h(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  setAll(made, attributes);
  made.append(...present(children));
  return made;
}

const present = (children) => children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);

const SVG = "http://www.w3.org/2000/svg";

/** An element of SVG. */
export function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) made.setAttribute(name, String(value));
  }
  made.append(...children);
  return made;
}

function setAll(made, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "hidden" || name === "disabled") made[name] = value;
    else made.setAttribute(name, value === true ? "" : String(value));
  }
}

/** A table: `rows` are those of its body, or the body itself; a `caption` is for those who do not see it. */
export function table(kind, caption, heads, rows) {
  return h("table", { class: kind },
    caption && h("caption", { class: "unseen" }, caption),
    h("thead", {}, h("tr", {}, heads.map((head) => h("th", { scope: "col" }, head)))),
    rows instanceof Node ? rows : h("tbody", {}, rows));
}

/** A table that is scrolled sideways where it is wider than the page. */
export const wideTable = (kind, caption, heads, rows) => h("div", { class: "wide", tabindex: 0, role: "group", "aria-label": caption }, table(kind, caption, heads, rows));

/** A box or a radio button, and its words. */
export const choice = (input, words) => h("label", { class: "choice" }, input, h("span", {}, words));

/** A box that is ticked or not: `choose(ticked)` is called when that changes. */
export const tickBox = (words, checked, choose) => choice(h("input", { type: "checkbox", checked, onchange: (event) => choose(event.target.checked) }), words);

/** A radio button for each of `values`, pairs of a value and its words: `choose(value)` is called for
 * another than the `chosen` one. */
export const choices = (name, legend, values, chosen, choose) => h("fieldset", { class: "choices" }, h("legend", { class: "unseen" }, legend), values.map(([value, words]) => choice(h("input", { type: "radio", name, value, checked: value === chosen, onchange: () => choose(value) }), words)));

/** Mark a link as the one that is shown, or not. */
export function setCurrent(link, here, kind = "true") {
  if (here) link.setAttribute("aria-current", kind);
  else link.removeAttribute("aria-current");
}

/** Put these children in the place of all that `parent` has. */
export function fill(parent, ...children) {
  parent.replaceChildren(...present(children));
}

/** Rows by key: those that stay are kept, so that focus and scroll positions do. `make(item)` makes
 * a row, `update(row, item)` changes one. */
export function keyed(parent, items, key, make, update) {
  const focused = document.activeElement;
  const wanted = new Set(items.map((item) => String(key(item))));
  const before = new Map();
  for (const row of [...parent.children]) {
    if (wanted.has(row.dataset.key)) before.set(row.dataset.key, row);
    else row.remove();
  }
  let place = parent.firstElementChild;
  for (const item of items) {
    const name = String(key(item));
    let row = before.get(name);
    if (row === undefined) {
      row = make(item);
      row.dataset.key = name;
    }
    update(row, item);
    if (row === place) place = place.nextElementSibling;
    else parent.insertBefore(row, place);
  }
  // A row that has moved lost it.
  if (focused !== document.activeElement && parent.contains(focused)) focused.focus({ preventScroll: true });
}

/** Give an element the focus, unless another one has it: a button that was disabled has lost it. */
export function refocus(element) {
  if (document.activeElement === document.body) element.focus();
}

/** Put what `make()` makes in the place of all that `parent` has, unless it shows the same `key`
 * already: what has the focus stays. */
export function fillOnce(parent, key, make) {
  const name = JSON.stringify(key);
  if (parent.dataset.shown === name) return;
  parent.dataset.shown = name;
  fill(parent, make());
}

/** Set a text only where it is another one: what is selected stays selected. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** A button that copies a text. */
export function copyButton(text, what) {
  return h("button", {
    type: "button",
    class: "small",
    "aria-label": `Copy ${what}`,
    onclick: async (event) => {
      const button = event.currentTarget;
      const done = await copied(text);
      button.textContent = done ? "Copied" : "Select and copy it";
      setTimeout(() => (button.textContent = "Copy"), 2000);
    },
  }, "Copy");
}

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // The browser does not allow it.
    return false;
  }
}

/** Call `act` after `ms` milliseconds, and not before the page is seen. What comes back calls it off. */
export function later(act, ms) {
  const go = () => {
    if (document.hidden) document.addEventListener("visibilitychange", go, { once: true });
    else act();
  };
  const timer = setTimeout(go, ms);
  return () => {
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", go);
  };
}

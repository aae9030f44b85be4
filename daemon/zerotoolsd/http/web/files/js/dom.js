// Elements. Text is always set as text: nothing that a job says can become markup.

/** An element with attributes and children; an attribute that is null, undefined or false is left
 * out, one that begins with "on" is a listener. Children are nodes or text. */
export function h(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  setAll(made, attributes);
  made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

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

/** Put these children in the place of all that `parent` has. */
export function fill(parent, ...children) {
  parent.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
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
    return false; // the browser does not allow it
  }
}

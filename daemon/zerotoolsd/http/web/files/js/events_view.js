// What was committed, the newest first.

import { fill, h, keyed, table } from "./dom.js";
import { clock, plainName, stateWords } from "./format.js";
import { badge } from "./jobs_view.js";

const MOST = 500;

export class EventsView {
  #page;
  #rows = h("tbody");
  #listen = () => this.#draw();

  constructor(page) {
    this.#page = page;
    page.store.addEventListener("events", this.#listen);
    this.element = h("section", {}, h("h1", {}, "Events"),
      table("plain-table events", "Events, the newest first", ["Time", "Job", "What", "State", "Why"], this.#rows));
    this.#draw();
  }

  close() {
    this.#page.store.removeEventListener("events", this.#listen);
  }

  #draw() {
    const events = this.#page.store.events.slice(-MOST).toReversed();
    if (!events.length) {
      fill(this.#rows, h("tr", {}, h("td", { colspan: 5, class: "empty" }, "Nothing has happened yet.")));
      return;
    }
    if (!this.#rows.firstElementChild?.dataset.key) fill(this.#rows);
    keyed(this.#rows, events, (event) => event.seq, (event) => rowOf(event, this.#page.store), () => {});
  }
}

function rowOf(event, store) {
  return h("tr", {},
    h("td", { "data-label": "Time" }, clock(event.time)),
    h("td", { "data-label": "Job" }, event.job_id === null ? "–" : h("a", { href: `#/jobs/${event.job_id}` }, store.titleOf(event.job_id)), event.attempt === null ? "" : h("small", { class: "quiet" }, ` attempt ${event.attempt}`)),
    h("td", { "data-label": "What" }, plainName(event.kind).replaceAll("_", " ")),
    h("td", { "data-label": "State" }, event.to_state === null ? "" : badge(...stateWords(event.to_state))),
    h("td", { "data-label": "Why", class: "why" }, plainName(event.why ?? "")));
}

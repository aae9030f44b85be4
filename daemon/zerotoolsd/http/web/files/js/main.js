// The frame of the page: whose it is, which view is shown, whether the daemon answers.

import { Alerts } from "./alerts.js";
import { askLeave, showKeys } from "./dialogs.js";
import { fill, h, setCurrent, setText } from "./dom.js";
import { plainName } from "./format.js";
import { JobsView } from "./jobs_view.js";
import { Away, ENDED, LIVE, Session } from "./session.js";
import { Store } from "./store.js";

const byId = (id) => document.getElementById(id);
/** Views whose modules are read after the first picture, and long before they are asked for: whoever
 * takes the port of a daemon that has gone must not be asked for a script. */
const LATER = { job: "JobView", machine: "MachineView", submit: "SubmitView", events: "EventsView" };
const LINK_WORDS = { live: "live", lost: "the daemon does not answer", ended: "session over" };

class Page {
  session = new Session();
  store = new Store(this.session);
  #view = null;
  #alerts = null;
  #place = "";
  #asked = "";

  async begin() {
    this.session.addEventListener("state", () => this.#tellState());
    addEventListener("hashchange", () => this.show());
    byId("theme").addEventListener("click", () => turnTheme());
    byId("help").addEventListener("click", () => showKeys());
    byId("leave").addEventListener("click", () => this.leave());
    addEventListener("keydown", (event) => this.#key(event));
    for (const kind of ["dragover", "drop"]) addEventListener(kind, (event) => this.#drop(event));
    await this.#identify();
    this.#alerts = new Alerts(byId("alerts"), byId("heard"), this.store);
    this.store.begin();
    this.store.addEventListener("jobs", () => setTimeout(() => this.#load("job")), { once: true });
    await this.show();
  }

  async #identify() {
    for (;;) {
      try {
        await this.session.begin();
        break;
      } catch (error) {
        if (!(error instanceof Away) || this.session.state === ENDED) throw error;
        await new Promise((done) => this.session.addEventListener("state", done, { once: true }));
      }
    }
    const { name, uid, host, version } = this.session.me;
    setText(byId("who"), plainName(name ?? `uid ${uid}`));
    setText(byId("host"), plainName(host));
    byId("host").title = `zerotools ${version}`;
    document.title = `zerotools on ${plainName(host)}`;
    this.#tellState();
  }

  /** Show what the address says. */
  async show() {
    const [, named = "jobs", ...rest] = location.hash.split("/");
    const id = named === "jobs" && /^\d{1,15}$/.test(rest[0] ?? "") ? Number(rest[0]) : null;
    const page = id !== null ? "job" : Object.hasOwn(LATER, named) && named !== "job" ? named : "jobs";
    const place = `${page}/${id ?? ""}`;
    if (id !== null) rest.shift();
    this.#asked = place;
    const View = page in LATER ? await this.#load(page) : JobsView;
    if (this.#asked !== place || View === null || this.session.state === ENDED) return;
    if (this.#view && place === this.#place) {
      this.#view.turn?.(rest);
      return;
    }
    const isFirst = this.#place === "";
    this.#view?.close();
    this.#place = place;
    this.#view = id === null ? new View(this, rest) : new View(this, id, rest);
    fill(byId("main"), this.#view.element);
    for (const link of document.querySelectorAll("nav [data-page]")) {
      setCurrent(link, link.dataset.page === (id === null ? page : "jobs"), "page");
    }
    if (!isFirst || document.activeElement !== document.body) byId("main").focus({ preventScroll: true });
    scrollTo(0, 0);
  }

  async #load(page) {
    try {
      return (await import("./views.js"))[LATER[page]];
    } catch {
      this.say("This part of the page could not be read: load the page again", "bad");
      return null;
    }
  }

  /** Say something that was done, or why not. */
  say(text, meaning = "quiet") {
    const place = byId("said");
    fill(place, h("p", { class: `toast ${meaning}` }, text));
    clearTimeout(this.sayTimer);
    this.sayTimer = setTimeout(() => fill(place), 8000);
  }

  /** End the session. */
  async leave() {
    if (!(await askLeave())) return;
    try {
      await this.session.post("/session/end");
    } catch {
      // It is over for this page all the same.
    }
    this.session.end();
  }

  #tellState() {
    const state = this.session.state;
    byId("link").className = `link ${state}`;
    setText(byId("link").lastElementChild, LINK_WORDS[state]);
    document.body.classList.toggle("away", state !== LIVE);
    if (state === ENDED) this.#end();
  }

  #end() {
    this.#view?.close();
    this.#view = null;
    this.#alerts?.close();
    for (const id of ["said", "host", "who"]) fill(byId(id));
    document.title = "zerotools: no session";
    fill(byId("main"), h("div", { class: "lone" },
      h("h1", {}, this.session.me ? "This session has ended" : "This tab has no session"),
      h("p", {}, "Type this on the machine that trains, and open the link that it prints:"),
      h("pre", {}, "zerotools web")));
  }

  // A browser would leave the page to show the file. Text that is dropped into a field stays there.
  async #drop(event) {
    if (!event.dataTransfer.types.includes("Files")) return;
    event.preventDefault();
    if (event.type !== "drop" || this.session.state !== LIVE) return;
    const files = [...event.dataTransfer.files];
    location.hash = "#/submit";
    await this.show();
    await this.#view?.take?.(files);
  }

  #key(event) {
    const typing = event.target.closest?.("select, textarea, dialog, input:not([type=checkbox], [type=radio])");
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    const places = { 1: "#/jobs", 2: "#/machine", 3: "#/events", 4: "#/submit" };
    if (event.key in places) location.hash = places[event.key];
    else if (event.key === "?") showKeys();
    else if (event.key === "t") turnTheme();
    else if (event.key === "Escape" && location.hash.split("/").length > 2) location.hash = location.hash.split("/").slice(0, 2).join("/");
    else if (!this.#view?.key?.(event)) return;
    event.preventDefault();
  }
}

function turnTheme() {
  const root = document.documentElement;
  root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
  try {
    localStorage.setItem("zerotools-theme", root.dataset.theme);
  } catch {
    // Storage is switched off: it counts until the page is loaded again.
  }
  dispatchEvent(new Event("themechange"));
}

new Page().begin().catch((error) => {
  if (!(error instanceof Away)) throw error;
});

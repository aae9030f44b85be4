// Whose page this is, and every request that it makes.
//
// When the daemon is gone, somebody else could listen at its port. So after a request that nobody
// answered no cookie and no secret is sent until whoever is there has proved to be the same daemon: it
// has the key of this session. Until then the secrets are in the memory of this page alone, so that a
// page of somebody else's that is loaded in its place does not find them.

import { setNow } from "./format.js";
import { answerTabs, forget, fromAnotherTab, keep, kept } from "./secrets.js";

const AGAIN_MS = 2000;
const PATIENCE_MS = 20000;
const STAYS_MS = 5000;

export const LIVE = "live";
const LOST = "lost";
export const ENDED = "ended";

/** A request that the daemon refused; `message` is its sentence. */
class Refused extends Error {
  constructor(status, problem) {
    super(problem.detail ?? problem.title ?? `HTTP status ${status}`);
    this.status = status;
    this.code = problem.code ?? "";
  }
}

/** The session has ended, or the daemon does not answer now. */
export class Away extends Error {}

/** Whether a request that failed may succeed later: what was shown stays, and is asked for again. */
export const passes = (error) => error instanceof Away || (error instanceof Refused && (error.status === 429 || error.status >= 500));

export class Session extends EventTarget {
  state = LIVE;
  me = null;
  #secrets = null;
  #left = false;
  #missed = false;
  #back = null;

  constructor() {
    super();
    // A page that is left or loaded anew breaks its own requests off: that is no daemon that is lost.
    for (const kind of ["beforeunload", "pagehide"]) addEventListener(kind, () => (this.#left = true));
    addEventListener("beforeunload", () => setTimeout(() => this.#stay(), STAYS_MS));
    addEventListener("pageshow", () => this.#stay());
  }

  /** Read whose page it is. */
  async begin() {
    this.#secrets ??= kept() ?? (await fromAnotherTab());
    if (this.#secrets === null) {
      this.#turn(ENDED);
      throw new Away("this tab has no session");
    }
    this.me = await this.get("/session");
    keep(this.#secrets);
    answerTabs(async () => (this.state === LIVE && (await this.#prove()) ? this.#secrets : null));
  }

  /** The JSON of an answer; `signal` gives it up, and one that is `slow` may take minutes. */
  async get(path, { signal, slow = false } = {}) {
    const answer = await this.request(path, { signal, endless: slow });
    return answer.json();
  }

  /** Ask for a change; one that is `slow` may take minutes. */
  async post(path, body = {}, { slow = false, signal, headers } = {}) {
    const answer = await this.request(path, { method: "POST", headers: { "Content-Type": "application/json", ...headers }, body: JSON.stringify(body), endless: slow, signal });
    return answer.json();
  }

  /** A response whose status is good. Raises Refused, Away. */
  async request(path, options = {}) {
    if (this.state !== LIVE) throw new Away("the daemon does not answer");
    const { signal, endless, headers: more, ...rest } = options;
    const headers = { ...more, "Zerotools-Page": this.#secrets.secret };
    const signals = [signal, endless ? null : AbortSignal.timeout(PATIENCE_MS)].filter(Boolean);
    let answer;
    try {
      answer = await fetch(path, { ...rest, headers, cache: "no-store", credentials: "same-origin", redirect: "error", signal: anyOf(signals) });
    } catch (error) {
      if (signal?.aborted) throw error;
      this.lose();
      throw new Away("the daemon does not answer");
    }
    setNow(Date.parse(answer.headers.get("Date")) / 1000);
    if (answer.status === 401) {
      this.#turn(ENDED);
      throw new Away("the session has ended");
    }
    if (!answer.ok) throw new Refused(answer.status, await answer.json().catch(() => ({})));
    return answer;
  }

  /** It is over, for this page at least. */
  end() {
    this.#turn(ENDED);
  }

  /** Nobody answered: look for the daemon until it is there again. */
  lose() {
    this.#missed = this.#left;
    if (this.state !== LIVE || this.#left) return;
    this.#turn(LOST);
    this.#back ??= this.#return().finally(() => (this.#back = null));
  }

  // It was not left after all, or is shown again as it was.
  #stay() {
    this.#left = false;
    if (this.#missed) this.lose();
  }

  async #return() {
    while (this.state === LOST) {
      await new Promise((done) => setTimeout(done, AGAIN_MS));
      const found = await this.#prove().catch(() => null);
      if (found === true) this.#turn(LIVE);
      else if (found === false) this.#turn(ENDED);
    }
  }

  /** Whether the daemon is there and has the session; null: something else is, or nothing. */
  async #prove() {
    const nonce = hexOfBytes(crypto.getRandomValues(new Uint8Array(16)));
    const answer = await fetch(`/hello?session=${this.#secrets.id}&nonce=${nonce}`, {
      cache: "no-store",
      credentials: "omit",
      redirect: "error",
      signal: AbortSignal.timeout(PATIENCE_MS),
    });
    if (answer.status === 404) {
      const problem = await answer.json().catch(() => ({}));
      return problem.code === "not_found" ? false : null;
    }
    if (!answer.ok) return null;
    const { proof } = await answer.json();
    const key = await crypto.subtle.importKey("raw", bytesOfHex(this.#secrets.key), { name: "HMAC", hash: "SHA-256" }, false, ["verify"]);
    const text = new TextEncoder().encode(`proof:${nonce}`);
    return (await crypto.subtle.verify("HMAC", key, bytesOfHex(String(proof)), text)) ? true : null;
  }

  #turn(state) {
    if (this.state === state) return;
    this.state = state;
    if (state === LIVE) keep(this.#secrets);
    else forget();
    this.dispatchEvent(new Event("state"));
  }
}

function anyOf(signals) {
  if (signals.length < 2) return signals[0];
  const both = new AbortController();
  for (const each of signals) {
    if (each.aborted) both.abort(each.reason);
    else each.addEventListener("abort", () => both.abort(each.reason), { once: true });
  }
  return both.signal;
}

export const hexOfBytes = (bytes) => [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");

/** Text that is none gives no bytes. */
export function bytesOfHex(text) {
  const pairs = /^(?:[0-9a-f]{2})*$/.test(text) ? (text.match(/../g) ?? []) : [];
  return new Uint8Array(pairs.map((pair) => parseInt(pair, 16)));
}

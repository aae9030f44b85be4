// A checkpoint as a picture: a document of its own in a frame, with nothing of this page.

import { fill, h } from "./dom.js";

export class PicturePart {
  #view;
  #id;
  #step;
  element = h("section");

  constructor(view, id) {
    this.#view = view;
    this.#id = id;
  }

  close() {
    this.#step = null;
  }

  /** Draw this step, or else the checkpoint that is the newest at first. */
  update([given]) {
    const step = given ? given >>> 0 : this.#step ?? this.#view.job.latest_checkpoint?.step;
    if (step === undefined) this.#say("There is no checkpoint yet.");
    else if (step !== this.#step) this.#draw((this.#step = step));
  }

  async #draw(step) {
    this.#say("Reading…");
    const { url, message } = await this.#view.session.get(`/v1/jobs/${this.#id}/checkpoints/${step}/picture`, { slow: true }).catch((error) => error);
    if (step !== this.#step) return;
    if (message) this.#say(message);
    else fill(this.element, h("p", {}, h("a", { href: url, target: "_blank" }, "Open in a tab")), h("iframe", { src: url, title: "Picture", width: "100%", height: 0.85 * innerHeight, frameborder: 0 }));
  }

  #say(text) {
    fill(this.element, h("p", { class: "empty wrap" }, text));
  }
}

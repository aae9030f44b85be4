// Follows a one-time link: the browser gets a cookie, and this tab the secrets of the session.

import { keep } from "./secrets.js";

const byId = (id) => document.getElementById(id);

function say(title, text, command) {
  document.title = `zerotools: ${title.toLowerCase()}`;
  byId("title").textContent = title;
  byId("said").textContent = text;
  byId("command").hidden = !command;
}

async function follow() {
  const answer = await fetch(location.pathname, { method: "POST", headers: { "Content-Type": "application/json" }, body: "{}", credentials: "same-origin", cache: "no-store", redirect: "error" });
  if (answer.ok) {
    keep(await answer.json());
    location.replace("/");
  } else if (answer.status === 403) {
    say("This link is used up", "A link works once, for two minutes. Type this on the machine that trains, and open the new one:", true);
  } else say("This link was not followed", "The daemon has too much to do: reload this page in a moment.", false);
}

follow().catch(() => say("The daemon does not answer", "When the daemon runs again, type this on its machine for a new link:", true));

// Runs before the first paint, so that a page in the dark does not flash.
"use strict";
{
  let chosen = null;
  try {
    chosen = localStorage.getItem("zerotools-theme");
  } catch {
    chosen = null; // storage is switched off: the system's choice counts
  }
  if (chosen === "dark" || chosen === "light") {
    document.documentElement.dataset.theme = chosen;
  }
}

// Runs before the first paint, so that a page in the dark does not flash. Other scripts hear of another
// theme by the event `themechange`.
"use strict";
{
  const system = matchMedia("(prefers-color-scheme: dark)");
  const show = () => {
    let chosen = null;
    try {
      chosen = localStorage.getItem("zerotools-theme");
    } catch {
      // Storage is switched off: the system's choice counts.
    }
    const theme = chosen === "dark" || chosen === "light" ? chosen : system.matches ? "dark" : "light";
    document.documentElement.dataset.theme = theme;
    dispatchEvent(new Event("themechange"));
  };
  show();
  system.addEventListener("change", show);
}

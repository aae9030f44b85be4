// What is done again and again is done while somebody looks.

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

// Whole moments of an axis of time, and their labels. No page, no requests.

const MINUTE = 60;
const HOUR = 3600;
const DAY = 86400;
const STEPS = [1, 5, 15, 30, MINUTE, 2 * MINUTE, 5 * MINUTE, 10 * MINUTE, 15 * MINUTE, 30 * MINUTE, HOUR, 2 * HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 2 * DAY, 7 * DAY, 14 * DAY, 28 * DAY];

/** At most `most` moments from `begin` to `end`, in seconds: whole hours or minutes, or midnights, in
 * the time of this browser. */
export function timeTicks(begin, end, most) {
  const step = STEPS.find((each) => (end - begin) / each <= most) ?? STEPS.at(-1);
  const found = [];
  const midnight = new Date(begin * 1000);
  midnight.setHours(0, 0, 0, 0);
  // Days are counted by the calendar: one of them has 23 hours, and one has 25.
  for (let day = 0; midnight.getTime() / 1000 <= end; day += 1) {
    const first = midnight.getTime() / 1000;
    midnight.setDate(midnight.getDate() + 1);
    if (step >= DAY && day % (step / DAY)) continue;
    const next = midnight.getTime() / 1000;
    for (let tick = first; tick < next && tick <= end; tick += Math.min(step, DAY)) {
      if (tick >= begin) found.push(tick);
      if (step >= DAY) break;
    }
  }
  return found;
}

/** The label of a tick: its day at midnight, else its hour, and its second on a short axis. */
export function tickLabel(time, span) {
  const date = new Date(time * 1000);
  const hour = date.toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit", second: span < 600 ? "2-digit" : undefined, hour12: false, hourCycle: "h23" });
  return hour.startsWith("00:00") ? date.toLocaleDateString(undefined, { day: "numeric", month: "short" }) : hour;
}

// Written by scripts/make_reference.py from zerotools/jobs/states.py; do not edit.

/** The words for stored states that people read otherwise. */
export const WORDS = {
  "on_hold": "held",
  "launching": "starting",
  "pausing": "holding",
  "paused": "held"
};

/** The stored states. */
export const STATES = ["on_hold", "waiting", "queued", "launching", "running", "stopping", "pausing", "yielding", "paused", "waiting_retry", "held", "succeeded", "failed", "cancelled", "stopped"];

/** The meaning of each word, which is its colour. */
export const MEANINGS = {
  "held": "warning",
  "holding": "warning",
  "waiting": "quiet",
  "queued": "quiet",
  "starting": "busy",
  "running": "busy",
  "saving": "busy",
  "late": "warning",
  "stalled": "bad",
  "stopping": "warning",
  "yielding": "warning",
  "waiting_retry": "warning",
  "succeeded": "good",
  "failed": "bad",
  "cancelled": "quiet",
  "stopped": "warning"
};

/** The words that are followed by the time in this state. */
export const TIMED_WORDS = ["holding", "late", "saving", "stalled", "starting", "stopping", "yielding"];

/** What each verb does to a job. */
export const VERBS = ["hold", "release", "retry"];
export const VERB_ROWS = [
  {
    "job": "waits",
    "hold": "it does not start: it is held",
    "release": "refused",
    "retry": "refused"
  },
  {
    "job": "runs",
    "hold": "it saves and stops (holding), then it is held",
    "release": "refused",
    "retry": "refused"
  },
  {
    "job": "is stopping after a cancel",
    "hold": "refused",
    "release": "refused",
    "retry": "refused"
  },
  {
    "job": "is held, or holding",
    "hold": "nothing changes",
    "release": "it returns to its old position, and continues",
    "retry": "refused: release it"
  },
  {
    "job": "is held by the daemon",
    "hold": "refused: it is held already",
    "release": "it continues; running ranks are kept",
    "retry": "refused: release it"
  },
  {
    "job": "failed, or was stopped",
    "hold": "refused",
    "release": "refused",
    "retry": "a new job continues from its checkpoint"
  },
  {
    "job": "has succeeded",
    "hold": "refused",
    "release": "refused",
    "retry": "refused, unless --from-start is given"
  }
];

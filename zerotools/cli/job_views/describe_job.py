"""Describes a job in words. A job is a JSON object of the daemon."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, TextIO

from zerotools.cli.output import render
from zerotools.cli.output.colours import paint
from zerotools.core.counts_and_sizes import count_text
from zerotools.jobs import states
from zerotools.jobs.binding.bind import plain_json
from zerotools.jobs.jobfile_tables.checkpoint import EXPORT
from zerotools.jobs.jobfile_tables.script import AdoptedProcess, adopted_process
from zerotools.jobs.join_attempt_curves import finite_number
from zerotools.jobs.states import ACTIVE, SUCCEEDED, TERMINAL

Job = Mapping[str, Any]
COMPLETE = "complete"
"""The phase of a program that has reported that its work is done."""
SHOWN_SECONDS = 10.0
"""A late rank is named only if the other ranks have waited for it for at least this many seconds.
"""
_STATES = {
    "T": " (stopped by a signal)",
    "t": " (stopped by a debugger)",
    "D": " (waiting in the kernel)",
}
LONGEST_LINE = 120
"""The largest number of columns of the last log line that are shown."""


def title(job: Job) -> str:
    """Return the name of a job for messages: `job 7 (tiny)`."""
    name = render.clean(str(job["name"] or ""))
    return f"job {job['id']} ({name})" if name else f"job {job['id']}"


def user_of(job: Job) -> str:
    """Return the name of the job's owner, or the uid if it has no name."""
    return render.clean(str(job.get("user") or f"uid {job['uid']}"))


def reason_text(job: Job, now: float | None = None) -> str:
    """Return the reason why a job waits, or how it ended.

    For a running job, return its phase, the duration of the phase, and whether the job makes
    progress: `loading the weights for 12 min 00 s, no progress for 5 min 00 s; the last log line:
    ...`.
    """
    phase, reason = job.get("phase"), str(job["reason"] or "")
    if not phase:
        return "; ".join(filter(None, (reason, *usual_start(job))))
    now = time.time() if now is None else now
    parts = [reason] if reason else []
    if reason and reason == phase["doing"] and phase["since"] is not None:
        parts = [f"{reason} for {render.duration(now - phase['since'])}"]
        if (usual := phase.get("usual_seconds")) is not None:
            parts[0] += f" (usually {render.duration(usual)} here)"
        parts += usual_start(job, now)
    if is_stalled(job) and phase.get("stall"):  # a daemon of an older version says no sentence
        parts.append(render.clean(str(phase["stall"])))
    elif standing := stall_text(job, now):
        parts.append(standing)
    elif phase["quiet"]:
        parts.append(f"no progress for {render.duration(now - phase['last_progress'])}")
    text = ", ".join(parts)
    if phase["last_line"] and (phase["quiet"] or is_compiling(job)):
        text += f"; the last log line: {render.shorten(phase['last_line'], LONGEST_LINE)}"
    return text


def usual_start(job: Job, now: float | None = None) -> list[str]:
    """Return a sentence about the usual time from the start of the job to its first step. If the
    job has started, the sentence also has the time since its start.

    The result is a list with this sentence. It is empty if the usual time is not known, or if the
    job has made a step already.
    """
    usual, attempt = job.get("usual_start_seconds"), job.get("attempt")
    if usual is None:
        return []
    begun = attempt["started"] if attempt and job.get("phase") else None
    if begun is None or now is None:
        return [f"usually {render.duration(usual)} from the start to the first step here"]
    passed, whole = render.duration(now - begun), render.duration(usual)
    return [f"{passed} since the start, first step usually after {whole}"]


def is_stalled(job: Job) -> bool:
    """Return whether the job runs and has made no progress for longer than its phase allows."""
    return job["state"] == states.RUNNING and bool((job.get("phase") or {}).get("stalled"))


def shown_state(job: Job) -> str:
    """Return the state that is displayed for a job: its stored state in words, or, for a running
    job, a word for its progress (`starting`, `saving`, `late`, `stalled`).
    """
    attempt = job.get("attempt")
    age_seconds = time.time() - attempt["started"] if attempt and attempt["started"] else None
    word = states.display_name(str(job["state"]), job.get("phase"), age_seconds)
    return word.replace("_", " ")


def state_text(job: Job, now: float | None = None) -> str:
    """Return the displayed state of a job. `starting`, `saving`, `late`, `stalled` and the states
    of a job that stops are followed by their duration: `stalled 12m`.
    """
    word, since = shown_state(job), job.get("state_since")  # an older daemon does not send it
    if since is None or word not in states.TIMED_WORDS:
        return word
    return f"{word} {render.age((time.time() if now is None else now) - since)}"


def state_words(job: Job) -> str:
    """Return the stored state of a job in words. Every kind of hold becomes `held`."""
    return states.display_text(str(job["state"]))


def has_old_step(job: Job) -> bool:
    """Return whether the job's last speed is outdated, because its last step was too long ago."""
    return _is_old(job.get("phase") or {}) or is_stalled(job)


def _is_old(phase: Mapping[str, Any]) -> bool:
    return bool(phase.get("step_is_old", phase.get("late")))  # an older daemon's `late` says this


def has_no_heartbeat(job: Job) -> bool:
    """Return whether the job runs without reporting progress. Only a user's own program may do
    this.
    """
    phase = job.get("phase")
    own = bool(job["spec"].get("script")) and watched_process(job) is None
    return bool(phase) and own and "name" in (phase or {}) and (phase or {})["name"] is None


def since_step(job: Job, now: float | None = None) -> str:
    """Return the time since the last step, as `41 s`; empty if the job has made no step."""
    last = (job.get("phase") or {}).get("last_step")
    return "" if last is None else render.duration((time.time() if now is None else now) - last)


def stall_text(job: Job, now: float) -> str:
    """Return a phrase about the time without a step, and about the rank that the other ranks wait
    for; empty if steps are regular.

    An example: `no step for 41 s (steps take 0.4 s): rank 1 has been in step 812 for 41 s (stopped
    by a signal), and the others wait for it`.
    """
    phase, text = job.get("phase") or {}, ""
    late = phase.get("waits_for")
    if phase.get("name") == COMPLETE:
        told = "reported that its work is complete"
        if not late or late["since"] is None:
            return told
        ending = f"has not ended for {render.duration(now - late['since'])}"
        return f"{told}, but {ending}{_STATES.get(late['state'], '')}"
    if _is_old(phase):
        seconds, name = phase.get("step_seconds"), phase.get("name")
        doing = f"{name}, " if name in ("evaluating", "saving", "finishing") else ""
        text = f"{doing}no step for {since_step(job, now)}"
        text += "" if seconds is None else f" (steps take {seconds:.2g} s)"
    if not late or late["since"] is None or now - late["since"] < SHOWN_SECONDS:
        return text
    state = _STATES.get(late["state"], "")
    at = f"in {render.clean(late['at'])} for {render.duration(now - late['since'])}{state}"
    alone = job["world_size"] == 1
    if alone and phase.get("doing") and not state:
        return text  # the reason says so already
    rank = f"rank {late['rank']} has been {at}, and the others wait for it"
    who = f"it has been {at}" if alone else rank
    return f"{text}: {who}" if text else who


def is_compiling(job: Job) -> bool:
    """Return whether the ranks wait for a compiler. In that case all new log lines come from the
    compiler.
    """
    phase = job.get("phase") or {}
    return str(phase.get("doing") or "").startswith("compiling ")


def is_over(job: Job) -> bool:
    """Return whether the job has ended and will not restart."""
    return job["state"] in TERMINAL


def queue_order(job: Job) -> tuple[int, int, float]:
    """Return a sort key: running jobs, then waiting jobs by priority, and finished jobs last, the
    newest first.
    """
    if job["state"] in ACTIVE:
        return 0, 0, job["created"]
    return (
        (2, 0, -job["created"])
        if is_over(job)
        else (1, -(job.get("priority") or 0), job["created"])
    )


def ranks(job: Job) -> str:
    """Return the number of ranks with their device: `2 GPU` or `2 CPU`. For a job that watches a
    process, return `pid 7`.

    For an elastic job, return `2-8 GPU` before its first start, and `2 of 2-8 GPU` after it.
    """
    what = "GPU" if job["device"] == "cuda" else "CPU"
    if (watched := watched_process(job)) is not None:
        return f"pid {watched.pid}"
    if not (sizes := job.get("sizes")):
        return f"{job['world_size']} {what}"
    between = f"{sizes[0]}-{sizes[-1]} {what}"
    return f"{job['world_size']} of {between}" if job.get("attempts") else between


def watched_process(job: Job) -> AdoptedProcess | None:
    """Return the process that the job watches (`zerotools adopt`). Return None for a job that
    starts its processes.
    """
    adopted = (job["spec"].get("script") or {}).get("adopted")
    return None if adopted is None else adopted_process(adopted)


def plan(job: Job) -> str:
    """Return a phrase about the work of the job: `2 ranks on CPU, ZeRO stage 3, 40 steps`, or `...,
    its own program`.
    """
    if (watched := watched_process(job)) is not None:
        return f"watches process {watched.pid}, which was started by hand"
    steps = job["spec"].get("train", {}).get("steps")
    where = "GPU" if job["device"] == "cuda" else "CPU"
    sizes = job.get("sizes") or (job["world_size"],)
    count = count_text(sizes[-1], "rank")
    parts = [f"{count if len(sizes) == 1 else f'{sizes[0]} to {count}'} on {where}"]
    meeting = job["spec"].get("rendezvous") or {}
    if meeting.get("nodes", 1) > 1:
        parts.append(f"node {meeting['node_rank']} of {meeting['nodes']}")
    parts.append(_what(job) if job["stage"] is None else f"ZeRO stage {job['stage']}")
    if steps is not None:
        parts.append(count_text(steps, "step"))
    return ", ".join(parts)


def _what(job: Job) -> str:
    script = job["spec"].get("script")
    if script is None:
        return "unknown to this version"
    launcher = script["launcher"]
    return "its own program" if launcher == "plain" else f"a program under {launcher}"


def steps(job: Job) -> str:
    """Return the number of steps done and the total, as `12/40`; `-` before the first step."""
    progress = job["progress"] or {}
    step = progress.get("step")
    total = job["spec"].get("train", {}).get("steps") or progress.get("steps")
    if not _is_count(step):
        return render.UNKNOWN
    return f"{step}/{total}" if _is_count(total) else str(step)


def progress_of(job: Job) -> tuple[int, int]:
    """Return the number of steps done and the total, or two zeros if they are unknown."""
    done, _, total = steps(job).partition("/")
    known = done.isdecimal() and total.isdecimal() and int(total) > 0
    return (min(int(done), int(total)), int(total)) if known else (0, 0)


def remaining_seconds(job: Job) -> float | None:
    """Return the number of seconds until the last step, from the estimate of the ranks, or else
    from the duration of the newest step.

    Return None if the number is unknown, or if the newest step was too long ago.
    """
    done, total = progress_of(job)
    if job["state"] != states.RUNNING or not total or has_old_step(job):
        return None
    record = job["progress"] or {}
    left, step = (
        finite_number(record.get("seconds_left")),
        finite_number(record.get("step_seconds")),
    )
    if left is None and step is not None:
        left = step * (total - done)
    return left if left is not None and 0 <= left < sys.maxsize and math.isfinite(left) else None


def _is_count(value: object) -> bool:
    """Return whether `value` is a whole number from 0 to 2^63. A user's program may report any JSON
    value.
    """
    return type(value) is int and 0 <= value < 2**63


def loss(progress: Mapping[str, Any] | None) -> str:
    """Return the loss with four decimals. A record with null gives `nan`, because JSON has no
    NaN.
    """
    if not progress or "loss" not in progress:
        return render.UNKNOWN
    value = progress["loss"]
    if isinstance(value, bool | str | list | dict):
        return render.UNKNOWN
    return "nan" if value is None else render.loss(value)


def age(job: Job, now: float | None = None) -> str:
    """Return the time since the job ended. If it has not ended, return the time since its
    submission.
    """
    since = job["ended"] or job["created"]
    return render.age((time.time() if now is None else now) - since)


def outcome(job: Job) -> str:
    """Return a phrase about the end of a finished job: `succeeded at step 40 of 40, after 32 s`.

    A reason follows also after success: a later step, such as an export, has failed.
    """
    text = state_words(job)
    done = steps(job)
    if done != render.UNKNOWN:
        text += f" at step {done.replace('/', ' of ')}"
    if job["started"] and job["ended"]:
        text += f", after {render.duration(job['ended'] - job['started'])}"
    if job["reason"]:
        text += f": {render.clean(job['reason'])}"
    return text


def how_it_waits(job: Job) -> str:
    """Return the state of a job that was just submitted: `queued` (with a reason), or `held`. If
    the daemon already had the job, return its state and `(already submitted before)`."""
    if job["state"] == states.WAITING and job["reason"]:
        return f"queued ({render.clean(job['reason'])})"
    if job["state"] in (states.ON_HOLD, states.WAITING, states.QUEUED):
        return "held" if job["state"] == states.ON_HOLD else "queued"
    if job["attempts"] == []:
        return "queued"
    return f"{state_words(job)} (already submitted before)"


def how_it_stops(job: Job) -> str:
    """Return a phrase about the next actions of a job that is cancelled: `saves at its next step,
    then stops`.

    The phrase depends on the engine and the phase of the job.
    """
    if (watched := watched_process(job)) is not None:
        pid = watched.pid
        return f"stops watching process {pid}, which keeps running (to end it: kill {pid})"
    grace = "processes that still run after stop.grace_seconds are killed"
    if job["spec"].get("script") is not None:
        return "gets SIGTERM and may save; " + grace
    if job["stage"] is None:
        return f"gets a request to stop; {grace}"
    phase = job.get("phase")
    if not phase:
        return "stops before it begins; there is nothing to save"
    if phase["quiet"]:
        return f"gets a request to save and stop, although it shows no progress; {grace}"
    if phase["doing"]:
        doing = render.clean(str(phase["doing"]))
        return f"stops as soon as {doing} ends, before its first step, so it saves nothing; {grace}"
    if not (job["attempt"] or {}).get("steps_done"):
        return f"gets a request to stop, and saves if it has made a step; {grace}"
    return "saves at its next step, then stops"


def checkpoint_path(job: Job) -> str:
    """Return the path of the newest checkpoint, or "" if the job has no checkpoint."""
    checkpoint = job["latest_checkpoint"]
    return render.clean(str(checkpoint["path"])) if checkpoint else ""


_WAYS = {
    "at_save": "its structure was checked when it was saved",
    "digests": "every byte was checked when the job continued from it",
    "unchanged": "its files were unchanged since the save when the job resumed from it",
    "structure": "its structure was checked when it was found",
}


def verification(job: Job) -> str:
    """Return a phrase about the verification of the newest checkpoint: `step 40: verified 10:31:02
    (...)`, or the reason why it was not verified.

    The phrase is empty if the job has no checkpoint. Older daemons do not report the reason.
    """
    checkpoint = job["latest_checkpoint"]
    if not checkpoint:
        return ""
    step, said = checkpoint.get("step"), checkpoint.get("verified")
    if thinned := thinning(job):
        return f"step {step}: {thinned}"
    if said:
        when = f" {render.moment(said['time'])}" if said.get("time") else ""
        return f"step {step}: verified{when} ({_WAYS.get(said.get('how'), 'in another way')})"
    why = checkpoint.get("not_verified") or "no report; check it with zerotools verify"
    return f"step {step}: not verified: {render.clean(str(why))}"


def uploaded(job: Job) -> str:
    """Return the newest copy of a checkpoint in an object store, and the reason if a later upload
    failed. Return an empty string if the job has uploaded nothing and no upload failed.
    """
    found = job.get("uploaded") or {}
    said = []
    if found.get("path"):
        when = f", {render.moment(found['time'])}" if found.get("time") else ""
        said.append(f"step {found.get('step')}: {render.clean(str(found['path']))}{when}")
    if found.get("why"):
        said.append(f"could not upload: {render.clean(str(found['why']))}")
    return "; ".join(said)


def thinning(job: Job) -> str | None:
    """Return the daemon's sentence about the thinning of the newest checkpoint; None if it was not
    thinned.

    The checkpoint itself is not read, because its file system may hang.
    """
    said = job["latest_checkpoint"].get("thinned")
    return render.clean(said) if isinstance(said, str) else None


def saved_step(job: Job) -> str:
    """Return the step of the newest checkpoint with its state: `40 verified`, `40 not verified`,
    `40 thinned`, or `40` if its verification is unknown. Return `-` without a checkpoint.
    """
    checkpoint = job["latest_checkpoint"]
    if not checkpoint or not _is_count(checkpoint.get("step")):
        return render.UNKNOWN
    text = str(checkpoint["step"])
    if thinning(job):
        return f"{text} thinned"
    if checkpoint.get("verified"):
        return f"{text} verified"
    return f"{text} not verified" if checkpoint.get("not_verified") else text


def exported_model(job: Job) -> str:
    """Return the path of the model that the job exported at its end; empty if it exported none. If
    the export failed, `job["reason"]` says why."""
    export_dtype = job["spec"].get("checkpoint", {}).get("export_on_finish")
    if not export_dtype or job["state"] != SUCCEEDED or job["reason"]:
        return ""
    return render.clean(f"{job['output_dir']}/{EXPORT}")


def paint_state(state: str, stream: TextIO) -> str:
    """Return the displayed state of a job in its colour. `state` may be padded with spaces."""
    return paint(state, meaning_of(state), stream)


def meaning_of(state: str) -> str:
    """Return the meaning of a displayed state, such as `warning`. The displayed state may be
    followed by a duration. A meaning is a key of the table of colours (`colours`).
    """
    words = state.strip()
    for known in (words.replace(" ", "_"), words.rpartition(" ")[0].replace(" ", "_")):
        if known in states.MEANINGS:
            return states.MEANINGS[known]
    return "strong"


def keys_set_by_author(job: Job) -> dict[str, Any]:
    """Return the keys of the job file that its author set, as a tree.

    An older daemon does not report these keys. Then return the keys with a value other than the
    default, and keys that this version does not know.
    """
    from zerotools.jobs.imports.reading.look_up_job_keys import default_of, job_keys

    known = job_keys()
    set_keys = job.get("set_keys")

    def is_set(key: str, value: object) -> bool:
        if set_keys is not None:
            return key in set_keys
        return key not in known or value not in (plain_json(default_of(key)), {})

    def kept(tree: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
        for name, value in tree.items():
            key = f"{prefix}{name}"
            if isinstance(value, Mapping) and (key not in known or set_keys is not None):
                if inner := dict(kept(value, f"{key}.")):
                    yield name, inner
            elif is_set(key, value):
                yield name, value

    return dict(kept(job["spec"], ""))

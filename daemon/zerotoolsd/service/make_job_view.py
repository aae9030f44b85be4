"""Makes the views of jobs that clients get, from database rows and run directories."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from zerotools.jobs import states
from zerotools.jobs.jobfile.parse import job_to_dict, keys_set
from zerotools.jobs.jobfile_tables.notify import masked_url
from zerotools.jobs.jobfile_tables.spec import SLURM, JobSpec
from zerotools.jobs.text.mask_secrets import (
    HIDDEN,
    Steps,
    mask_steps,
    mask_text,
    mask_tree,
    result_of,
)
from zerotoolsd.attempts import last_report
from zerotoolsd.attempts.choose_numa_binding import shown_binding
from zerotoolsd.attempts.current_phase import phase_of
from zerotoolsd.attempts.job_environment import NOT_CAPTURED, secrets_of, unshown_values
from zerotoolsd.attempts.usual_start_duration import TO_FIRST_STEP, name_of
from zerotoolsd.interface.api_types import AttemptView, JobView
from zerotoolsd.queue.fair_share import UserShare
from zerotoolsd.queue.rows import AttemptRow, JobRow, UnreadableSpec
from zerotoolsd.queue.sql_values import one_line, shortened_reason
from zerotoolsd.queue.tables.dependency_table import DependencyRow
from zerotoolsd.users.account import user_name

_MOST_SHORT_KEYS, _KEYS_AT_ONCE = 200, 2000


@dataclass(frozen=True)
class ShownSpec:
    """A job file as it is shown to clients, without its secrets.

    Attributes:
        tree: the job file.
        secrets: the removed values.
        shortened: whether long parts were left out.
        unshown: all values that may not appear in the messages of the job, including the secrets.
        set_keys: the keys that the submitter has set; None if unknown.
    """

    secrets: Sequence[str]
    tree: Mapping[str, Any]
    shortened: bool = False
    unshown: Sequence[str] = ()
    set_keys: tuple[str, ...] | None = None


STARTING = "starting the processes"
"""The phase of an attempt before its processes report."""
_BEFORE_A_START = frozenset((states.WAITING, states.QUEUED, states.WAITING_RETRY))
_AT_A_START = frozenset((states.LAUNCHING, states.RUNNING))


@dataclass(frozen=True, kw_only=True)
class RelatedJobs:
    """The jobs that are shown with a job: `after` are the jobs after which it starts.
    `evaluated_by` describes the newest job that evaluates it; None if no job does.
    """

    after: Sequence[DependencyRow] = ()
    evaluated_by: Mapping[str, Any] | None = None


def job_view(
    job: JobRow,
    attempts: Sequence[AttemptRow],
    waits: str | None,
    *,
    quiet_seconds: float,
    related: RelatedJobs | None = None,
    shown: ShownSpec | None = None,
    usual: Mapping[str, float] | None = None,
    since: float | None = None,
) -> JobView:
    """Return the view of one job.

    `waits` is the sentence in which the scheduler says why the job waits; None if it does not wait.
    A phase is shown as quiet after `quiet_seconds` without progress. `shown` is the job file as
    clients see it, if it was already made. `usual` has the usual duration of each phase on this
    machine in seconds, as `StartHistory` returns it. `since` is the time at which the job got its
    stored state.

    If another version of zerotools queued the job, only the readable part is shown.
    """
    spec, problem = job.reading.spec, None
    try:
        _ = job.spec
    except UnreadableSpec as error:
        problem = str(error)
    if shown is None:
        shown = _shown(job)
    related = related or RelatedJobs()
    secrets, unshown = shown.secrets, shown.unshown
    reason = waits or job.standing.reason or problem
    found = last_report.latest_checkpoint(job, attempts)
    known = [last_report.last_report(attempt) for attempt in reversed(attempts)]
    progress = next((each.step for each in known if each.step is not None), None)
    evaluation = next((each.evaluation for each in known if each.evaluation is not None), None)
    usual = usual or {}
    phase = _phase(job, attempts, known, quiet_seconds, usual)
    has_stepped = bool(known) and known[0].step is not None
    starts = job.state in _BEFORE_A_START or (job.state in _AT_A_START and not has_stepped)
    doing = phase["doing"] if phase else None
    uploaded = next((each.uploaded for each in known if each.uploaded is not None), None)
    view = JobView(
        id=job.id,
        name=job.name,
        state=job.state,
        reason=mask_text(told, unshown) if (told := reason or doing) else None,
        uid=job.uid,
        created=job.created,
        started=job.started,
        ended=job.ended,
        attempts=tuple(attempt_view(attempt, unshown) for attempt in attempts),
        world_size=_world_size(spec, attempts),
        sizes=spec.sizes if spec and spec.size_range is not None else None,
        device=spec.device if spec else "unknown",
        stage=spec.stage if spec else None,
        output_dir=job.output_dir,
        priority=job.priority,
        begin=job.begin,
        array=None if job.array is None else asdict(job.array),
        after=tuple(
            {"job": each.on_id, "condition": each.condition, "state": each.state}
            for each in related.after
        ),
        latest_checkpoint=None if found is None else _checkpoint(*found, attempts),
        uploaded=uploaded and {**uploaded, "why": _masked_text(uploaded["why"], unshown)},
        progress=_with_last_loss(progress),
        evaluation=evaluation,
        evaluated_by=related.evaluated_by,
        phase=_masked_phase(phase, secrets),
        usual_start_seconds=usual.get(TO_FIRST_STEP) if starts else None,
        spec=shown.tree,
        shortened=shown.shortened,
        environment=NOT_CAPTURED if spec and spec.captured_env is None else None,
        set_keys=shown.set_keys,
        state_since=job.ended or since,
    )
    if job.state == states.RUNNING and phase is not None:
        begun = states.since_of(view.state_word, phase, attempts[-1].started)
        return replace(view, state_since=begun)
    return view


def _with_last_loss(progress: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return `progress` with the last logged loss, if it has no loss of its last step."""
    if progress is None or "loss" in progress or "last_loss" not in progress:
        return progress
    return {**progress, "loss": progress["last_loss"]}


def _masked_text(text: str | None, secrets: Sequence[str]) -> str | None:
    return None if text is None else mask_text(text, secrets)


def _world_size(spec: JobSpec | None, attempts: Sequence[AttemptRow]) -> int:
    """Return the number of ranks in the job file, for an elastic job that of its newest attempt.
    Return 0 if the job file cannot be read.
    """
    if spec is None or spec.size_range is None:
        under_slurm = spec is not None and spec.backend == SLURM
        return spec.all_ranks if spec and under_slurm else spec.world_size if spec else 0
    return (attempts[-1].world_size if attempts else None) or spec.world_size


def _checkpoint(step: int, path: Path, attempts: Sequence[AttemptRow]) -> dict[str, Any]:
    """Return the view of the checkpoint at `path`.

    `verified` is `{"how", "time"}` of the check after the save; None if this is unknown. If the
    check failed, `verified` is also None, and `not_verified` has the reason. `thinned` is set
    later, by code that reads the checkpoint's files.
    """
    said = last_report.newest_verification(path, attempts)
    how = None if said is None or said.how is None else {"how": said.how, "time": said.time}
    why = None if said is None else said.why
    return {
        "step": step,
        "path": str(path),
        "verified": how,
        "not_verified": why,
        "thinned": None,
    }


def set_key_steps(job: JobRow, *, shortened: bool = False) -> Steps[tuple[str, ...] | None]:
    """Return the keys that the submitter has set in the job file; None if they are not known.

    If `shortened`, return only the first keys. This is a generator that works in short steps,
    because a job may have 50,000 keys.
    """
    if job.given_text is None:
        return None
    keys, most = list[str](), _MOST_SHORT_KEYS if shortened else math.inf
    try:
        yield
        given = json.loads(job.given_text)
        yield
        for key in keys_set(given):
            if len(keys) == most:
                break
            if not key.startswith("captured_env."):
                keys.append(key)
                if len(keys) % _KEYS_AT_ONCE == 0:
                    yield
    except (ValueError, RecursionError):
        return None
    return tuple(keys)


def public_view(job: JobRow, attempts: Sequence[AttemptRow]) -> JobView:
    """Return the part of a job that every user may see.

    The view is made from database rows only: no file of the job's owner is opened.
    """
    spec = job.reading.spec
    return replace(
        bare_view(job, ""),
        reason=None,
        output_dir="",
        world_size=_world_size(spec, attempts),
        sizes=spec.sizes if spec and spec.size_range is not None else None,
        device=spec.device if spec else "unknown",
        attempts=tuple(
            AttemptView(
                number=attempt.number,
                state=attempt.state,
                gpu_uuids=attempt.gpu_uuids,
                started=attempt.started,
                ended=attempt.ended,
                exit_code=None,
                signal=None,
                cause=None,
                resumed_from=None,
                peak_gpu_bytes=None,
                peak_host_bytes=None,
                steps_done=0,
                run_dir="",
                world_size=attempt.world_size,
            )
            for attempt in attempts
        ),
    )


def bare_view(job: JobRow, why: str) -> JobView:
    """Return the view of a job with a record that this version cannot read.

    The view has only the columns of the job's row. `why` is the error that was raised when the
    record was read.
    """
    return JobView(
        id=job.id,
        name=job.name,
        state=job.state,
        reason=f"{job.standing.reason or ''}; its records cannot be shown: {why}".lstrip("; "),
        uid=job.uid,
        created=job.created,
        started=job.started,
        ended=job.ended,
        attempts=(),
        world_size=0,
        device="unknown",
        stage=None,
        output_dir=job.output_dir,
        priority=job.priority,
        latest_checkpoint=None,
        progress=None,
        phase=None,
        spec={},
    )


def _phase(
    job: JobRow,
    attempts: Sequence[AttemptRow],
    known: Sequence[last_report.LastReport],
    quiet_seconds: float,
    usual: Mapping[str, float],
) -> dict[str, Any] | None:
    if job.state not in states.ACTIVE or not attempts:
        return None
    run_dir = Path(attempts[-1].run_dir)
    spec = job.reading.spec
    elsewhere = spec is not None and spec.backend == SLURM
    ranks = spec.world_size if spec and not elsewhere else 1
    found = phase_of(run_dir, known[0], ranks=ranks, quiet_seconds=quiet_seconds, now=time.time())
    if job.state == states.LAUNCHING:
        found |= {"doing": STARTING, "since": attempts[-1].started}
    doing = found["doing"]
    found["usual_seconds"] = usual.get(name_of(doing)) if doing and not elsewhere else None
    # On this machine one process watches the job; stalled ranks are on other machines.
    return {**found, "waits_for": None} if elsewhere else found


def empty_job_file(job: JobRow) -> ShownSpec:
    """Return an empty job file, which is shown if the job's own file cannot be read.

    Only `set_keys` is filled in.
    """
    return ShownSpec((), {}, set_keys=result_of(set_key_steps(job)))


def _shown(job: JobRow) -> ShownSpec:
    if (spec := job.reading.spec) is None:
        return empty_job_file(job)
    secrets = secrets_of(spec)
    tree = result_of(spec_steps(spec, job_to_dict(spec), secrets))
    return ShownSpec(
        secrets, tree, unshown=unshown_values(spec), set_keys=result_of(set_key_steps(job))
    )


def spec_steps(spec: JobSpec, tree: dict[str, Any], known: Sequence[str]) -> Steps[dict[str, Any]]:
    """Return `tree`, which is the job file `spec` or a part of it, with its secrets masked.

    This is a generator that works in short steps, as `mask_steps` does. `known` are the known
    secrets.
    """
    env = dict.fromkeys(tree.pop("env", ()), HIDDEN)
    shown: dict[str, Any] = yield from mask_steps(tree, known)
    if spec.notify.webhook is not None and isinstance(shown.get("notify"), Mapping):
        shown["notify"] = {**shown["notify"], "webhook": masked_url(spec.notify.webhook)}
    return {**shown, "env": env}


def _masked_phase(phase: dict[str, Any] | None, known: Sequence[str]) -> dict[str, Any] | None:
    return None if phase is None else mask_tree(phase, known)


def attempt_view(attempt: AttemptRow, secrets: Sequence[str] = ()) -> AttemptView:
    """Return the view of one attempt. If the attempt runs, the view has its ranks' reports up to
    now.

    `secrets` are values that are removed from the messages.
    """
    result = attempt.result or {}
    known = last_report.last_report(attempt)
    step = known.step or {}
    return AttemptView(
        number=attempt.number,
        state=attempt.state,
        gpu_uuids=attempt.gpu_uuids,
        started=attempt.started,
        ended=attempt.ended,
        exit_code=_status(result.get("exit_code")),
        signal=_status(result.get("signal")),
        cause=mask_text(one_line(shortened_reason(str(result["cause"])) or ""), secrets)
        if result.get("cause")
        else None,
        resumed_from=attempt.resumed_from,
        peak_gpu_bytes=known.peak_gpu_bytes,
        peak_host_bytes=known.peak_host_bytes,
        steps_done=_whole(result.get("steps_done", step.get("step"))),
        run_dir=attempt.run_dir,
        cause_kind=attempt.cause,
        world_size=attempt.world_size,
        binding=shown_binding(attempt),
    )


def _status(value: object) -> int | None:
    """Return `value` if it is an exit status, otherwise None.

    Ranks can write into the run directory, so the value may be anything.
    """
    return value if type(value) is int and 0 <= value < 256 else None


def _whole(value: object) -> int:
    return value if type(value) is int and 0 <= value < 2**63 else 0


def share_view(
    share: UserShare, gpus: Mapping[int, float], waiting: Mapping[int, int]
) -> dict[str, Any]:
    """Return the view of one user's share.

    `gpus` has the number of GPUs that the jobs of each user hold, and `waiting` the number of each
    user's waiting jobs. Both are keyed by uid.
    """
    return {
        "uid": share.uid,
        "name": user_name(share.uid),
        "weight": share.weight,
        "share": share.share,
        "used": share.used,
        "gpu_hours": share.gpu_seconds / 3600,
        "gpu_hours_in_all": share.gpu_seconds_in_all / 3600,
        "factor": share.factor,
        "gpus": gpus.get(share.uid, 0),
        "waiting": waiting.get(share.uid, 0),
    }

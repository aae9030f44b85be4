"""The lifecycle: every state with every event, and the budget of restarts."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerotools.jobs import states
from zerotools.jobs.states import QUEUED, STATES, TERMINAL
from zerotoolsd.queue import lifecycle
from zerotoolsd.queue.lifecycle import (
    OUTCOMES,
    TRANSITIONS,
    Admit,
    Cancel,
    Ended,
    JobStatus,
    LifecycleEvent,
    NotAllowed,
    Pause,
    PutOnHold,
    Ready,
    Release,
    Retry,
    RetryPolicy,
    Started,
    Unpause,
    Yield,
    advance_job,
    name_of,
)
from zerotoolsd.queue.retries_by_cause import HANG, REBOOT, RULES

POLICY = RetryPolicy(first_seconds=1, factor=4, most_seconds=10)
LONG = replace(POLICY, most_seconds=1e9)


def ended(
    outcome: str, *, saved: int = 0, restarts: int = 3, time_limit: str | None = None
) -> Ended:
    return Ended(
        outcome=outcome,
        cause=f"it {outcome}",
        saved_step=saved,
        max_restarts=restarts,
        time_limit=time_limit,
    )


EVERY: tuple[LifecycleEvent, ...] = (
    Admit(),
    Started(),
    Cancel(who="uid 1"),
    Retry(),
    PutOnHold(why="put on hold by uid 1"),
    Release(),
    Release(waits=True),
    Ready(),
    Pause(why="paused by uid 1"),
    Yield(why="stops for job 9"),
    Unpause(who="uid 1"),
    Unpause(who="uid 1", waits=True),
    *(ended(outcome) for outcome in OUTCOMES),
    *(ended(outcome, restarts=0) for outcome in OUTCOMES),
    *(ended(outcome, time_limit="2 h") for outcome in OUTCOMES),
)


@pytest.mark.parametrize(("state", "event"), list(itertools.product(states.STATES, EVERY)))
def test_every_state_takes_exactly_the_events_of_the_table(
    state: str, event: LifecycleEvent
) -> None:
    job = JobStatus(state=state)
    expected = lifecycle.TRANSITIONS.get((state, name_of(job, event)))
    if expected is None:
        with pytest.raises(NotAllowed, match=state):
            advance_job(job, event, now=0, policy=POLICY)
    else:
        assert advance_job(job, event, now=0, policy=POLICY).state == expected


@pytest.mark.parametrize(
    ("outcome", "running", "stopping"),
    [
        ("finished", "succeeded", "succeeded"),
        ("stopped", "waiting_retry", "cancelled"),  # nobody has asked one that runs
        ("bad_job", "failed", "cancelled"),
        ("bad_checkpoint", "failed", "cancelled"),
        ("not_started", "failed", "cancelled"),
        ("crashed", "waiting_retry", "cancelled"),
        ("killed", "waiting_retry", "cancelled"),
        ("lost", "waiting_retry", "cancelled"),
        ("not_ready", "waiting_retry", "cancelled"),
    ],
)
def test_where_each_outcome_leads(outcome: str, running: str, stopping: str) -> None:
    for state, expected in (("running", running), ("stopping", stopping)):
        after = advance_job(JobStatus(state=state), ended(outcome), now=0, policy=POLICY)
        assert after.state == expected


@pytest.mark.parametrize(
    ("outcome", "running", "stopping"),
    [
        ("finished", "succeeded", "succeeded"),
        ("stopped", "stopped", "cancelled"),
        ("bad_job", "failed", "cancelled"),
        ("crashed", "stopped", "cancelled"),
        ("killed", "stopped", "cancelled"),
    ],
)
def test_where_the_time_limit_leads(outcome: str, running: str, stopping: str) -> None:
    for state, expected in (("running", running), ("stopping", stopping)):
        event = ended(outcome, time_limit="2 h")
        after = advance_job(JobStatus(state=state), event, now=0, policy=POLICY)
        assert after.state == expected
        if expected == "stopped":
            assert after.reason == f"its time limit of 2 h is over; it {outcome}"


@pytest.mark.parametrize(
    ("outcome", "pausing", "yielding"),
    [
        ("finished", "succeeded", "succeeded"),
        ("stopped", "paused", "queued"),
        ("killed", "paused", "queued"),
        ("bad_job", "failed", "failed"),
        ("bad_checkpoint", "failed", "failed"),
        ("not_started", "failed", "failed"),
        ("crashed", "paused", "waiting_retry"),
        ("lost", "paused", "waiting_retry"),
        ("not_ready", "paused", "waiting_retry"),
    ],
)
def test_where_a_job_comes_that_gives_way(outcome: str, pausing: str, yielding: str) -> None:
    for state, expected in (("pausing", pausing), ("yielding", yielding)):
        after = advance_job(JobStatus(state=state), ended(outcome), now=0, policy=POLICY)
        assert after.state == expected
        counts = outcome in ("crashed", "lost")
        assert after.restarts_used == counts, "what it was asked for costs no restart"
    for state in ("pausing", "yielding"):
        after = advance_job(
            JobStatus(state=state), ended(outcome, restarts=0), now=0, policy=POLICY
        )
        assert after.state == ("failed" if counts else pausing if state == "pausing" else yielding)


def test_a_job_that_gives_way_says_why_and_what_it_lost() -> None:
    job = advance_job(
        JobStatus(state="running"), Pause(why="paused by uid 7"), now=0, policy=POLICY
    )
    end = replace(ended("stopped", saved=12), steps_lost=0)
    after = advance_job(job, end, now=0, policy=POLICY)
    assert (after.reason, after.best_step) == ("paused by uid 7; it stopped, 0 steps lost", 12)
    killed = advance_job(job, replace(ended("killed"), steps_lost=1), now=0, policy=POLICY)
    assert killed.reason == "paused by uid 7; it killed, 1 step lost"
    again = advance_job(job, Unpause(who="uid 7"), now=0, policy=POLICY)
    assert (again.state, again.reason) == ("yielding", "released by uid 7")
    assert advance_job(after, Unpause(who="uid 7"), now=0, policy=POLICY).reason is None


def test_a_cancel_wins_over_what_a_job_was_asked_for_before() -> None:
    for event in (Pause(why="paused by uid 7"), Yield(why="stops for job 9")):
        job = advance_job(JobStatus(state="running"), event, now=0, policy=POLICY)
        job = advance_job(job, Cancel(who="uid 1"), now=0, policy=POLICY)
        job = advance_job(job, ended("stopped"), now=0, policy=POLICY)
        assert (job.state, job.reason) == ("cancelled", "cancelled by uid 1; it stopped")


def crash(job: JobStatus, *, saved: int = 0, restarts: int = 3) -> JobStatus:
    event = ended("crashed", saved=saved, restarts=restarts)
    return advance_job(job, event, now=100, policy=POLICY)


def again(job: JobStatus) -> JobStatus:
    for event in (Retry(), Admit(), Started()):
        job = advance_job(job, event, now=100, policy=POLICY)
    return job


def test_a_crash_waits_longer_each_time_and_then_fails() -> None:
    job = JobStatus(state="running")
    waits = []
    for _ in range(3):
        job = crash(job)
        assert job.state == "waiting_retry"
        assert job.eligible_at is not None
        waits.append(job.eligible_at - 100)
        job = again(job)
    assert waits == [1, 4, 10]
    job = crash(job)
    assert job.state == "failed"
    assert job.reason == "it crashed; max_restarts = 3 allows no more restarts"


def ended_by(cause: str, *, same: int = 0, used: int = 0, saved: int = 0) -> JobStatus:
    """What follows an end by `cause`, by which it ended `same` times before."""
    end = replace(
        ended("crashed", saved=saved), rule=RULES[cause], same_before=same, wait_factor=0.9
    )
    job = JobStatus(state="running", restarts_used=used, best_step=5)
    return advance_job(job, end, now=100, policy=LONG)


@pytest.mark.parametrize("cause", sorted(RULES))
def test_each_cause_is_followed_by_as_many_starts_as_its_rule_says(cause: str) -> None:
    rule = RULES[cause]
    most = 3 if rule.retries is None else min(3, rule.retries)
    waits = []
    for same in range(most):
        after = ended_by(cause, same=same, used=same * rule.counts)
        assert after.state == "waiting_retry"
        assert after.restarts_used == (same + 1) * rule.counts
        assert after.eligible_at is not None
        waits.append(after.eligible_at - 100)
    factor = LONG.factor if rule.factor is None else rule.factor
    assert waits == pytest.approx([0.9 * rule.first * factor**n for n in range(most)])
    if rule.counts or rule.retries is not None:
        assert ended_by(cause, same=most, used=most * rule.counts).state == "failed"
        if most:  # progress begins the count anew
            assert ended_by(cause, same=most, used=most, saved=6).state == "waiting_retry"
    else:
        assert ended_by(cause, same=1000).state == "waiting_retry"


def test_the_reason_says_how_often_a_cause_may_come() -> None:
    assert ended_by(HANG).reason == (
        "it crashed; restart 1 of 3 (1 of at most 2 after ranks without progress) in 0.9 s"
    )
    assert ended_by(HANG, same=2, used=2).reason == (
        "it crashed; not started again: it was restarted 2 times after ranks without "
        "progress, and made no progress since"
    )
    assert ended_by(REBOOT).reason == (
        "it crashed; started again in 4.5 s; not counted as one of its 3 restarts"
    )


def test_a_job_without_restarts_is_not_started_again_for_any_cause() -> None:
    for rule in RULES.values():
        end = replace(ended("crashed", restarts=0), rule=rule)
        assert advance_job(JobStatus(state="running"), end, now=0, policy=LONG).state == "failed"


def test_the_reason_of_a_wait_says_which_restart_and_when() -> None:
    assert crash(JobStatus(state="running")).reason == "it crashed; restart 1 of 3 in 1 s"


def test_progress_gives_the_restarts_back() -> None:
    job = JobStatus(state="running")
    for step in (5, 9, 12, 13, 20):
        job = crash(job, saved=step, restarts=1)
        assert (job.state, job.restarts_used, job.best_step) == ("waiting_retry", 1, step)
        job = again(job)
    assert crash(job, saved=20, restarts=1).state == "failed"


def test_a_cancelled_job_says_by_whom_and_how_it_ended() -> None:
    job = advance_job(JobStatus(state="running"), Cancel(who="uid 7"), now=0, policy=POLICY)
    job = advance_job(job, ended("stopped"), now=0, policy=POLICY)
    assert (job.state, job.reason) == ("cancelled", "cancelled by uid 7; it stopped")


@given(st.lists(st.sampled_from(EVERY), max_size=30))
def test_no_sequence_of_events_leaves_the_table(events: list[LifecycleEvent]) -> None:
    job = JobStatus()
    for event in events:
        before = job
        try:
            job = advance_job(job, event, now=0, policy=POLICY)
        except NotAllowed:
            continue
        assert job.state in states.STATES
        assert before.state not in states.TERMINAL
        assert (job.eligible_at is not None) == (job.state == "waiting_retry")
        assert job.best_step >= before.best_step


def test_a_machine_that_is_not_ready_costs_no_restart_and_is_asked_ever_more_seldom() -> None:
    job, waits = JobStatus(state="running", restarts_used=1, best_step=5), []
    policy = RetryPolicy(first_seconds=1, factor=4, most_seconds=300)
    for before in range(5):
        end = replace(ended("not_ready", restarts=0), not_ready_before=before)
        after = advance_job(job, end, now=100, policy=policy)
        assert (after.state, after.restarts_used, after.best_step) == ("waiting_retry", 1, 5)
        assert after.eligible_at is not None
        waits.append(after.eligible_at - 100)
    assert waits == [1, 4, 16, 60, 60]
    assert after.reason == "the machine is not ready: it not_ready; next try in 60 s"


def test_the_table_uses_only_known_states() -> None:
    assert {state for state, _ in TRANSITIONS} <= set(STATES)
    assert set(TRANSITIONS.values()) <= set(STATES)


def test_nothing_follows_a_terminal_state() -> None:
    assert not [state for state, _ in TRANSITIONS if state in TERMINAL]


def test_every_state_is_reached_from_the_queue_and_ends() -> None:
    reached = {QUEUED}
    for _ in STATES:
        reached |= {to for (state, _), to in TRANSITIONS.items() if state in reached}
    assert reached == set(STATES)
    ends = set(TERMINAL)
    for _ in STATES:
        ends |= {state for (state, _), to in TRANSITIONS.items() if to in ends}
    assert ends == set(STATES)

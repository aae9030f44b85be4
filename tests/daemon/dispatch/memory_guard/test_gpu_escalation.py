from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.daemon.dispatch.memory_guard.test_host_forecast import GIB
from zerotoolsd.dispatch.memory_guard.escalation import Act, EscalationStep, MemoryHolder
from zerotoolsd.dispatch.memory_guard.gpu_escalation import (
    GpuJob,
    GpuNow,
    first_rung,
    next_on,
    wanted_on,
    why_asked,
    why_scarce,
)
from zerotoolsd.dispatch.memory_guard.gpu_forecast import GpuOutlook

TOTAL = 80 * GIB


def look(
    scarce: float = math.inf,
    gone: float = math.inf,
    free: float = 10.0,
    to_come: float = 0.0,
    by_others: float = math.inf,
) -> GpuOutlook:
    return GpuOutlook(scarce, gone, int(free * GIB), TOTAL, int(to_come * GIB), by_others)


def job(
    job_id: int,
    over: float = 0.0,
    *,
    to_come: float = 0.0,
    grows: bool = False,
    **holder: object,
) -> GpuJob:
    values: dict[str, object] = {"priority": 0, "held": 10 * GIB, "unsaved_seconds": 5.0, **holder}
    found = MemoryHolder(job_id=job_id, **values)  # type: ignore[arg-type]
    return GpuJob(holder=found, over=int(over * GIB), to_come=int(to_come * GIB), grows=grows)


def now(outlook: GpuOutlook, *jobs: GpuJob, strangers: bool = False) -> GpuNow:
    return GpuNow(look=outlook, jobs=jobs, owners=len(jobs), strangers=strangers)


@pytest.mark.parametrize(
    ("found", "rung"),
    [
        (look(), EscalationStep.CALM),
        (look(scarce=119, gone=200), EscalationStep.WAIT),
        (look(scarce=40, gone=200), EscalationStep.SAVE),
        (look(scarce=0, gone=200), EscalationStep.SAVE),  # at the reserve, and there is time
        (look(scarce=4, gone=9), EscalationStep.STOP),
        (look(scarce=40, gone=60, free=30), EscalationStep.CALM),  # there is enough
        (look(scarce=4, gone=9, free=30), EscalationStep.STOP),
    ],
)
def test_the_rung_is_how_soon_it_is_gone(found: GpuOutlook, rung: EscalationStep) -> None:
    assert first_rung(found) is rung


SOON, AT_ONCE = look(scarce=30, gone=60), look(scarce=2, gone=5)


def test_the_job_that_holds_more_than_it_declared_is_asked_whatever_its_value() -> None:
    leaks = job(1, 8, grows=True, priority=9, unsaved_seconds=900.0)
    assert next_on(now(SOON, leaks, job(2)), EscalationStep.STOP, 100.0) == Act(1, at_once=False)
    assert next_on(now(AT_ONCE, leaks, job(2)), EscalationStep.STOP, 100.0) == Act(1, at_once=True)
    assert next_on(now(AT_ONCE, leaks, job(2)), EscalationStep.SAVE, 100.0) == Act(1, at_once=False)
    assert next_on(now(AT_ONCE, leaks, job(2)), EscalationStep.WAIT, 100.0) is None


def test_nobody_has_another_s_job_ended_by_a_leak_of_their_own() -> None:
    leaks = job(1, 8, grows=True, saves=False, priority=9)
    small = job(2, priority=-9, grows=True, to_come=9)
    assert next_on(now(SOON, leaks, small), EscalationStep.STOP, 100.0) is None
    assert next_on(now(AT_ONCE, leaks, small), EscalationStep.STOP, 100.0) == Act(1, at_once=True)
    ended = job(1, 8, grows=True, priority=9, asked=99.0, ended=100.0)
    assert next_on(now(AT_ONCE, ended, small), EscalationStep.STOP, 200.0) is None


def test_of_those_that_hold_more_the_one_goes_first_that_takes_more_still() -> None:
    stands, leaks = job(1, 8, priority=-9), job(2, 3, grows=True, priority=9)
    assert next_on(now(SOON, stands, leaks), EscalationStep.STOP, 100.0) == Act(2, at_once=False)
    assert next_on(now(SOON, stands, job(2, 3)), EscalationStep.STOP, 100.0) == Act(
        1, at_once=False
    )


def test_a_little_more_than_declared_is_nobody_s_fault() -> None:
    a_little = now(SOON, job(1, 1.5, grows=True), job(2))
    assert wanted_on(a_little) is EscalationStep.WAIT
    assert next_on(a_little, EscalationStep.STOP, 100.0) is None
    full = now(look(scarce=0, gone=20, free=1), job(1, 1.5, grows=True), job(2))
    assert wanted_on(full) is EscalationStep.CALM


def test_a_job_alone_gets_the_driver_s_error_and_harms_nobody() -> None:
    assert next_on(now(AT_ONCE, job(1, 30, grows=True)), EscalationStep.STOP, 100.0) is None


def test_a_model_is_loaded_in_peace_while_that_is_possible() -> None:
    loads = job(1, 8, grows=True, loads=True)
    assert wanted_on(now(AT_ONCE, loads, job(2))) is EscalationStep.WAIT
    last = look(scarce=0, gone=2)
    assert next_on(now(last, loads, job(2)), EscalationStep.STOP, 100.0) == Act(1, at_once=True)


TAKEN = look(scarce=20, gone=40, by_others=20)


def test_beside_strangers_that_take_more_and_more_who_is_promised_more_makes_room() -> None:
    has_all, short = job(1, priority=-9), job(2, to_come=9)
    found = now(TAKEN, has_all, short, strangers=True)
    assert next_on(found, EscalationStep.STOP, 100.0) == Act(2, at_once=False)
    alone = now(TAKEN, job(1, to_come=9), strangers=True)
    assert next_on(alone, EscalationStep.STOP, 100.0) == Act(1, at_once=False)
    assert next_on(now(TAKEN, has_all, strangers=True), EscalationStep.STOP, 100.0) is None


def test_for_strangers_nobody_is_ended() -> None:
    gone = look(scarce=0, gone=3, by_others=0)
    asked = job(2, to_come=9, asked=90.0)
    assert next_on(now(gone, asked, strangers=True), EscalationStep.STOP, 100.0) is None
    assert next_on(now(gone, job(2, to_come=9), strangers=True), EscalationStep.STOP, 100.0) == Act(
        2, at_once=False
    )
    loads = look(scarce=20, gone=40)  # and stops doing so, perhaps
    assert (
        next_on(now(loads, job(2, to_come=9), strangers=True), EscalationStep.STOP, 100.0) is None
    )


@given(
    st.sampled_from([SOON, AT_ONCE, TAKEN]),
    st.lists(
        st.tuples(st.integers(-3, 3), st.floats(0, 30), st.booleans(), st.booleans()),
        min_size=1,
        max_size=6,
    ),
    st.booleans(),
)
def test_at_once_goes_only_who_holds_more_and_only_to_spare_another(
    outlook: GpuOutlook, jobs: list[tuple[int, float, bool, bool]], strangers: bool
) -> None:
    there = [
        job(n, over, priority=p, grows=grows, saves=saves)
        for n, (p, over, grows, saves) in enumerate(jobs)
    ]
    found = next_on(now(outlook, *there, strangers=strangers), EscalationStep.STOP, 100.0)
    if found is not None and found.at_once:
        assert len(there) > 1
        assert there[found.job_id].over >= 0.02 * TOTAL


def test_the_sentences_have_the_numbers() -> None:
    found = look(scarce=10, gone=30, free=3.1, to_come=2.0)
    assert why_scarce(found) == (
        "3.1 of its 80.0 GiB free, and its jobs still need 2.0, and they are gone in about 30 "
        "s as it goes"
    )
    assert why_scarce(look(free=1)) == "1.0 of its 80.0 GiB free"
    assert why_asked(job(1, 4), "GPU 1", look(gone=30, free=1)) == (
        "stops because the memory of GPU 1 runs out: it holds 10.0 GiB, 4.0 more than it "
        "declared, and GPU 1 has 1.0 of its 80.0 GiB free, and they are gone in about 30 s as "
        "it goes"
    )

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.daemon.dispatch.test_forecast_memory_exhaustion import GIB, TOTAL, curve
from zerotoolsd.dispatch.choose_low_memory_action import (
    CALM_SECONDS,
    HURRY_SECONDS,
    PAUSE_SECONDS,
    Escalation,
    EscalationStep,
    GpuJob,
    GpuMemoryState,
    MemoryAction,
    MemoryHolder,
    first_level,
    next_act,
    next_on,
    reserve_of,
    wanted_level,
    wanted_on,
    why_asked,
    why_scarce,
)
from zerotoolsd.dispatch.forecast_memory_exhaustion import GpuOutlook, MemorySample


def holder(job_id: int, **changes: object) -> MemoryHolder:
    values: dict[str, object] = {"priority": 0, "held": 10 * GIB, "unsaved_seconds": 5.0, **changes}
    return MemoryHolder(job_id=job_id, **values)  # type: ignore[arg-type]


def act(level: EscalationStep, *holders: MemoryHolder, now: float = 100.0) -> MemoryAction | None:
    return next_act(level, holders, TOTAL, now)


@pytest.mark.parametrize(
    ("rate", "left", "level"),
    [
        (0.0, 40.0, EscalationStep.CALM),
        (0.1, 40.0, EscalationStep.CALM),
        (0.5, 40.0, EscalationStep.CALM),  # there is enough
        (0.2, 18.0, EscalationStep.WAIT),
        (0.5, 18.0, EscalationStep.SAVE),
        (4.0, 30.0, EscalationStep.STOP),
        (0.0, 2.0, EscalationStep.WAIT),
        (0.01, 1.2, EscalationStep.STOP),
        (0.0, 1.2, EscalationStep.WAIT),  # full, and it stays so: what holds it works
    ],
)
def test_the_rung_is_how_soon_it_is_gone(rate: float, left: float, level: EscalationStep) -> None:
    samples = curve(lambda t: left + rate * (10 - t), 10)
    assert wanted_level(samples)[0] is level


def test_a_machine_that_only_waits_for_memory_is_out_of_it() -> None:
    stalled = [MemorySample(n / 2, TOTAL, 2 * GIB, stalled_percent=35.0) for n in range(10)]
    level, why = wanted_level(stalled)
    assert level is EscalationStep.SAVE
    assert why == (
        "2.0 of the host's 64.0 GiB of memory are left; all tasks waited for memory for 35 % "
        "of the last 10 s"
    )
    assert (
        wanted_level([MemorySample(0, TOTAL, 30 * GIB, stalled_percent=35.0)])[0]
        is EscalationStep.CALM
    )


def at_limit(left_gib: float, looks: int = 10, **changes: object) -> list[MemorySample]:
    of_group = [
        MemorySample(n / 2, TOTAL, int(left_gib * GIB), of_limit=True) for n in range(looks)
    ]
    return [replace(each, **changes) for each in of_group]  # type: ignore[arg-type]


def test_taking_memory_back_at_the_limit_all_the_time_says_that_it_is_used_up() -> None:
    level, why = wanted_level(at_limit(2.0, reclaimed=True))
    assert level is EscalationStep.SAVE
    assert why == (
        "2.0 of the 64.0 GiB of memory of the daemon's control group are left; the kernel "
        "reclaims memory all the time"
    )
    files = at_limit(20.0, reclaimed=True)  # in memory, which can be taken back
    assert wanted_level(files)[0] is EscalationStep.CALM
    once = [*at_limit(2.0), replace(at_limit(2.0, looks=11)[-1], reclaimed=True)]
    assert wanted_level(once)[0] is EscalationStep.WAIT
    assert wanted_level(at_limit(2.0, looks=3, reclaimed=True))[0] is EscalationStep.WAIT


@pytest.mark.parametrize(
    ("left", "level"), [(0.5, EscalationStep.STOP), (30.0, EscalationStep.WAIT)]
)
def test_a_kernel_that_ends_programs_has_none_left(left: float, level: EscalationStep) -> None:
    killed = [*at_limit(left)[:-1], replace(at_limit(left)[-1], killed=True)]
    found, why = wanted_level(killed)
    assert found is level
    assert why.endswith("are left; the kernel has killed programs because memory ran out")
    later = replace(killed[-1], clock=killed[-1].clock + 11, killed=False)
    assert wanted_level([*killed, later])[0] is (
        EscalationStep.WAIT if left < 1 else EscalationStep.CALM
    )


@pytest.mark.parametrize(
    ("left", "level"),
    [(280.0, EscalationStep.CALM), (30.0, EscalationStep.WAIT), (5.0, EscalationStep.STOP)],
)
def test_a_job_that_loads_is_left_alone_while_that_is_possible(
    left: float, level: EscalationStep
) -> None:
    samples = curve(lambda t: left + 2 * (10 - t), 10)
    loading = [replace(sample, loading=True, total=200 * GIB) for sample in samples]
    assert wanted_level(loading)[0] is level


def test_it_goes_up_at_once_and_down_slowly_and_jobs_are_left_alone_meanwhile() -> None:
    escalation = Escalation().after(curve(lambda t: 30 - 4 * t, 5))
    assert (escalation.level, escalation.wanted) == (EscalationStep.STOP, EscalationStep.STOP)
    calm = [MemorySample(n / 2, TOTAL, 40 * GIB) for n in range(200)]
    seen = []
    for number in range(20, 200):
        escalation = escalation.after(calm[:number])
        assert escalation.wanted is EscalationStep.CALM
        seen.append(escalation.level)
    assert [seen.count(level) / 2 for level in (3, 2, 1)] == [
        pytest.approx(CALM_SECONDS, abs=1) for _ in range(3)
    ]
    assert seen[-1] is EscalationStep.CALM


def test_the_lowest_priority_then_the_least_unsaved_work() -> None:
    low, high = holder(1, priority=-5, unsaved_seconds=900.0), holder(2, priority=0)
    assert act(EscalationStep.SAVE, low, high) == MemoryAction(1, at_once=False)
    assert act(EscalationStep.SAVE, holder(1), holder(2, unsaved_seconds=1.0)) == MemoryAction(
        2, at_once=False
    )
    assert act(EscalationStep.SAVE, holder(1), holder(2)) == MemoryAction(
        2, at_once=False
    )  # the newer


def test_below_the_last_rung_only_those_that_save_and_only_where_it_is_worth_it() -> None:
    bare = holder(1, saves=False)
    assert act(EscalationStep.WAIT, holder(1)) is None
    assert act(EscalationStep.SAVE, bare) is None
    assert act(EscalationStep.STOP, bare) == MemoryAction(1, at_once=True)
    assert act(EscalationStep.STOP, holder(1, held=GIB // 2)) is None
    assert act(EscalationStep.STOP) is None


def test_who_was_asked_has_time_until_there_is_none() -> None:
    asked = holder(1, asked=100.0)
    assert act(EscalationStep.SAVE, asked, holder(2), now=100.0 + PAUSE_SECONDS - 1) is None
    assert act(EscalationStep.SAVE, asked, holder(2), now=100.0 + PAUSE_SECONDS) == MemoryAction(
        2, at_once=False
    )
    assert act(EscalationStep.STOP, asked, holder(2), now=100.5) == MemoryAction(1, at_once=True)
    ended = holder(1, asked=100.0, ended=101.0)
    assert act(EscalationStep.STOP, ended, holder(2), now=101.0 + HURRY_SECONDS - 0.5) is None
    assert act(EscalationStep.STOP, ended, holder(2), now=101.0 + HURRY_SECONDS) == MemoryAction(
        2, at_once=True
    )


@given(
    st.sampled_from(list(EscalationStep)),
    st.lists(
        st.tuples(st.integers(-3, 3), st.integers(0, TOTAL), st.floats(0, 1e6), st.booleans()),
        max_size=6,
    ),
)
def test_nobody_of_higher_priority_goes_first(
    level: EscalationStep, jobs: list[tuple[int, int, float, bool]]
) -> None:
    holders = [
        holder(n, priority=p, held=held, unsaved_seconds=work, saves=saves)
        for n, (p, held, work, saves) in enumerate(jobs)
    ]
    found = act(level, *holders)
    if found is None:
        return
    chosen = holders[found.job_id]
    assert level >= EscalationStep.SAVE
    assert chosen.saves or found.at_once
    able = [
        h for h in holders if h.held >= 0.02 * TOTAL and (h.saves or level is EscalationStep.STOP)
    ]
    assert chosen.priority == min(h.priority for h in able)


def test_the_reserve_of_a_small_machine() -> None:
    assert reserve_of(8 * GIB) == 256 << 20
    assert reserve_of(512 * GIB) == int(0.02 * 512 * GIB)


GPU_TOTAL = 80 * GIB


def look(
    scarce: float = math.inf,
    gone: float = math.inf,
    free: float = 10.0,
    to_come: float = 0.0,
    by_others: float = math.inf,
) -> GpuOutlook:
    return GpuOutlook(scarce, gone, int(free * GIB), GPU_TOTAL, int(to_come * GIB), by_others)


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


def now(outlook: GpuOutlook, *jobs: GpuJob, strangers: bool = False) -> GpuMemoryState:
    return GpuMemoryState(outlook=outlook, jobs=jobs, owners=len(jobs), strangers=strangers)


@pytest.mark.parametrize(
    ("found", "level"),
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
def test_the_rung_on_a_gpu_is_how_soon_it_is_gone(found: GpuOutlook, level: EscalationStep) -> None:
    assert first_level(found) is level


SOON, AT_ONCE = look(scarce=30, gone=60), look(scarce=2, gone=5)


def test_the_job_that_holds_more_than_it_declared_is_asked_whatever_its_value() -> None:
    leaks = job(1, 8, grows=True, priority=9, unsaved_seconds=900.0)
    assert next_on(now(SOON, leaks, job(2)), EscalationStep.STOP, 100.0) == MemoryAction(
        1, at_once=False
    )
    assert next_on(now(AT_ONCE, leaks, job(2)), EscalationStep.STOP, 100.0) == MemoryAction(
        1, at_once=True
    )
    assert next_on(now(AT_ONCE, leaks, job(2)), EscalationStep.SAVE, 100.0) == MemoryAction(
        1, at_once=False
    )
    assert next_on(now(AT_ONCE, leaks, job(2)), EscalationStep.WAIT, 100.0) is None


def test_nobody_has_another_s_job_ended_by_a_leak_of_their_own() -> None:
    leaks = job(1, 8, grows=True, saves=False, priority=9)
    small = job(2, priority=-9, grows=True, to_come=9)
    assert next_on(now(SOON, leaks, small), EscalationStep.STOP, 100.0) is None
    assert next_on(now(AT_ONCE, leaks, small), EscalationStep.STOP, 100.0) == MemoryAction(
        1, at_once=True
    )
    ended = job(1, 8, grows=True, priority=9, asked=99.0, ended=100.0)
    assert next_on(now(AT_ONCE, ended, small), EscalationStep.STOP, 200.0) is None


def test_of_those_that_hold_more_the_one_goes_first_that_takes_more_still() -> None:
    stands, leaks = job(1, 8, priority=-9), job(2, 3, grows=True, priority=9)
    assert next_on(now(SOON, stands, leaks), EscalationStep.STOP, 100.0) == MemoryAction(
        2, at_once=False
    )
    assert next_on(now(SOON, stands, job(2, 3)), EscalationStep.STOP, 100.0) == MemoryAction(
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
    assert next_on(now(last, loads, job(2)), EscalationStep.STOP, 100.0) == MemoryAction(
        1, at_once=True
    )


TAKEN = look(scarce=20, gone=40, by_others=20)


def test_beside_strangers_that_take_more_and_more_who_is_promised_more_makes_room() -> None:
    has_all, short = job(1, priority=-9), job(2, to_come=9)
    found = now(TAKEN, has_all, short, strangers=True)
    assert next_on(found, EscalationStep.STOP, 100.0) == MemoryAction(2, at_once=False)
    alone = now(TAKEN, job(1, to_come=9), strangers=True)
    assert next_on(alone, EscalationStep.STOP, 100.0) == MemoryAction(1, at_once=False)
    assert next_on(now(TAKEN, has_all, strangers=True), EscalationStep.STOP, 100.0) is None


def test_for_strangers_nobody_is_ended() -> None:
    gone = look(scarce=0, gone=3, by_others=0)
    asked = job(2, to_come=9, asked=90.0)
    assert next_on(now(gone, asked, strangers=True), EscalationStep.STOP, 100.0) is None
    assert next_on(
        now(gone, job(2, to_come=9), strangers=True), EscalationStep.STOP, 100.0
    ) == MemoryAction(2, at_once=False)
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
        assert there[found.job_id].over >= 0.02 * GPU_TOTAL


def test_the_sentences_have_the_numbers() -> None:
    found = look(scarce=10, gone=30, free=3.1, to_come=2.0)
    assert why_scarce(found) == (
        "3.1 of its 80.0 GiB free; its jobs still need 2.0 GiB; the free memory is used up "
        "in about 30 s at this rate"
    )
    assert why_scarce(look(free=1)) == "1.0 of its 80.0 GiB free"
    assert why_asked(job(1, 4), "GPU 1", look(gone=30, free=1)) == (
        "stops because the memory of GPU 1 runs out: the job holds 10.0 GiB (4.0 GiB more than it "
        "declared); GPU 1 has 1.0 of its 80.0 GiB free; the free memory is used up in about "
        "30 s at this rate"
    )

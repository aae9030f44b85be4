from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.daemon.dispatch.memory_guard.test_host_forecast import GIB, TOTAL, curve
from zerotoolsd.dispatch.memory_guard.escalation import (
    CALM_SECONDS,
    HURRY_SECONDS,
    PAUSE_SECONDS,
    Act,
    Escalation,
    EscalationStep,
    MemoryHolder,
    next_act,
    reserve_of,
    wanted_rung,
)
from zerotoolsd.dispatch.memory_guard.host_forecast import MemorySample


def holder(job_id: int, **changes: object) -> MemoryHolder:
    values: dict[str, object] = {"priority": 0, "held": 10 * GIB, "unsaved_seconds": 5.0, **changes}
    return MemoryHolder(job_id=job_id, **values)  # type: ignore[arg-type]


def act(rung: EscalationStep, *holders: MemoryHolder, now: float = 100.0) -> Act | None:
    return next_act(rung, holders, TOTAL, now)


@pytest.mark.parametrize(
    ("rate", "left", "rung"),
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
def test_the_rung_is_how_soon_it_is_gone(rate: float, left: float, rung: EscalationStep) -> None:
    samples = curve(lambda t: left + rate * (10 - t), 10)
    assert wanted_rung(samples)[0] is rung


def test_a_machine_that_only_waits_for_memory_is_out_of_it() -> None:
    stalled = [MemorySample(n / 2, TOTAL, 2 * GIB, stalled_percent=35.0) for n in range(10)]
    rung, why = wanted_rung(stalled)
    assert rung is EscalationStep.SAVE
    assert why == (
        "2.0 of the host's 64.0 GiB of memory are left, and all tasks waited for memory for 35 % "
        "of the last 10 s"
    )
    assert (
        wanted_rung([MemorySample(0, TOTAL, 30 * GIB, stalled_percent=35.0)])[0]
        is EscalationStep.CALM
    )


def at_limit(left_gib: float, looks: int = 10, **changes: object) -> list[MemorySample]:
    of_group = [
        MemorySample(n / 2, TOTAL, int(left_gib * GIB), of_limit=True) for n in range(looks)
    ]
    return [replace(each, **changes) for each in of_group]  # type: ignore[arg-type]


def test_taking_memory_back_at_the_limit_all_the_time_says_that_it_is_used_up() -> None:
    rung, why = wanted_rung(at_limit(2.0, reclaimed=True))
    assert rung is EscalationStep.SAVE
    assert why == (
        "2.0 of the 64.0 GiB of memory of the daemon's control group are left, and the kernel "
        "takes memory back at its limit all the time"
    )
    files = at_limit(20.0, reclaimed=True)  # in memory, which can be taken back
    assert wanted_rung(files)[0] is EscalationStep.CALM
    once = [*at_limit(2.0), replace(at_limit(2.0, looks=11)[-1], reclaimed=True)]
    assert wanted_rung(once)[0] is EscalationStep.WAIT
    assert wanted_rung(at_limit(2.0, looks=3, reclaimed=True))[0] is EscalationStep.WAIT


@pytest.mark.parametrize(
    ("left", "rung"), [(0.5, EscalationStep.STOP), (30.0, EscalationStep.WAIT)]
)
def test_a_kernel_that_ends_programs_has_none_left(left: float, rung: EscalationStep) -> None:
    killed = [*at_limit(left)[:-1], replace(at_limit(left)[-1], killed=True)]
    found, why = wanted_rung(killed)
    assert found is rung
    assert why.endswith("are left, and the kernel has killed programs for lack of it")
    later = replace(killed[-1], clock=killed[-1].clock + 11, killed=False)
    assert wanted_rung([*killed, later])[0] is (
        EscalationStep.WAIT if left < 1 else EscalationStep.CALM
    )


@pytest.mark.parametrize(
    ("left", "rung"),
    [(280.0, EscalationStep.CALM), (30.0, EscalationStep.WAIT), (5.0, EscalationStep.STOP)],
)
def test_a_job_that_loads_is_left_alone_while_that_is_possible(
    left: float, rung: EscalationStep
) -> None:
    samples = curve(lambda t: left + 2 * (10 - t), 10)
    loading = [replace(sample, loading=True, total=200 * GIB) for sample in samples]
    assert wanted_rung(loading)[0] is rung


def test_it_goes_up_at_once_and_down_slowly_and_jobs_are_left_alone_meanwhile() -> None:
    ladder = Escalation().after(curve(lambda t: 30 - 4 * t, 5))
    assert (ladder.rung, ladder.wanted) == (EscalationStep.STOP, EscalationStep.STOP)
    calm = [MemorySample(n / 2, TOTAL, 40 * GIB) for n in range(200)]
    seen = []
    for number in range(20, 200):
        ladder = ladder.after(calm[:number])
        assert ladder.wanted is EscalationStep.CALM
        seen.append(ladder.rung)
    assert [seen.count(rung) / 2 for rung in (3, 2, 1)] == [
        pytest.approx(CALM_SECONDS, abs=1) for _ in range(3)
    ]
    assert seen[-1] is EscalationStep.CALM


def test_the_lowest_priority_then_the_least_unsaved_work() -> None:
    low, high = holder(1, priority=-5, unsaved_seconds=900.0), holder(2, priority=0)
    assert act(EscalationStep.SAVE, low, high) == Act(1, at_once=False)
    assert act(EscalationStep.SAVE, holder(1), holder(2, unsaved_seconds=1.0)) == Act(
        2, at_once=False
    )
    assert act(EscalationStep.SAVE, holder(1), holder(2)) == Act(2, at_once=False)  # the newer


def test_below_the_last_rung_only_those_that_save_and_only_where_it_is_worth_it() -> None:
    bare = holder(1, saves=False)
    assert act(EscalationStep.WAIT, holder(1)) is None
    assert act(EscalationStep.SAVE, bare) is None
    assert act(EscalationStep.STOP, bare) == Act(1, at_once=True)
    assert act(EscalationStep.STOP, holder(1, held=GIB // 2)) is None
    assert act(EscalationStep.STOP) is None


def test_who_was_asked_has_time_until_there_is_none() -> None:
    asked = holder(1, asked=100.0)
    assert act(EscalationStep.SAVE, asked, holder(2), now=100.0 + PAUSE_SECONDS - 1) is None
    assert act(EscalationStep.SAVE, asked, holder(2), now=100.0 + PAUSE_SECONDS) == Act(
        2, at_once=False
    )
    assert act(EscalationStep.STOP, asked, holder(2), now=100.5) == Act(1, at_once=True)
    ended = holder(1, asked=100.0, ended=101.0)
    assert act(EscalationStep.STOP, ended, holder(2), now=101.0 + HURRY_SECONDS - 0.5) is None
    assert act(EscalationStep.STOP, ended, holder(2), now=101.0 + HURRY_SECONDS) == Act(
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
    rung: EscalationStep, jobs: list[tuple[int, int, float, bool]]
) -> None:
    holders = [
        holder(n, priority=p, held=held, unsaved_seconds=work, saves=saves)
        for n, (p, held, work, saves) in enumerate(jobs)
    ]
    found = act(rung, *holders)
    if found is None:
        return
    chosen = holders[found.job_id]
    assert rung >= EscalationStep.SAVE
    assert chosen.saves or found.at_once
    able = [
        h for h in holders if h.held >= 0.02 * TOTAL and (h.saves or rung is EscalationStep.STOP)
    ]
    assert chosen.priority == min(h.priority for h in able)


def test_the_reserve_of_a_small_machine() -> None:
    assert reserve_of(8 * GIB) == 256 << 20
    assert reserve_of(512 * GIB) == int(0.02 * 512 * GIB)

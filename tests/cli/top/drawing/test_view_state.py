from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.top.made_looks import PHASE, job_of
from tests.daemon.http.api.made_views import STEP
from zerotools.cli.top.drawing.view_state import ORDERS, ViewState, passing

JOBS = [
    job_of(1, "failed", "old", ended=1.0),
    job_of(2, "queued", "Beta", user="bob"),
    job_of(3, "running", "alpha"),
    job_of(4, "running", "gamma", user="bob", progress={**STEP, "step": 30}),
]


def ids(state: ViewState) -> list[int]:
    return [job["id"] for job in state.listed(JOBS)]


def test_orders() -> None:
    by = {name: ids(ViewState(order=n)) for n, (name, _) in enumerate(ORDERS)}
    assert by == {
        "state": [3, 4, 2, 1],
        "id": [1, 2, 3, 4],
        "owner": [1, 3, 2, 4],
        "name": [3, 2, 4, 1],
        "time left": [4, 3, 1, 2],
    }


def test_jobs_that_wait_are_in_the_order_in_which_they_start() -> None:
    jobs = [job_of(n, "queued", "x", priority=p) for n, p in ((1, -1), (2, 0), (3, 5), (4, 0))]
    assert [job["id"] for job in ViewState().listed(jobs)] == [3, 2, 4, 1]


def test_a_filter_is_of_name_or_owner_whatever_the_case() -> None:
    assert ids(ViewState(only="BETA")) == [2]
    assert ids(ViewState(only="bob")) == [4, 2]
    assert ids(ViewState(only="nobody")) == []


@pytest.mark.parametrize(
    ("only", "shown"),
    [
        ("", [True, True, True]),
        ("lora", [False, True, True]),
        ("lora bob", [False, False, True]),
        ("-lora", [True, False, False]),
        ("LORA -bob", [False, True, False]),
        ("failed|bob", [True, False, True]),
        (r"^\d+ LORA-\d", [False, False, True]),
        ("-", [True, True, True]),
        ("c++", [True, False, False]),
        ("lora(", [False, False, False]),
    ],
)
def test_words_of_a_filter_may_be_expressions_and_negative(only: str, shown: list[bool]) -> None:
    texts = ["3 c++ anna failed", "4 lora anna running", "5 lora-2 bob queued"]
    assert [passing(only)(text) for text in texts] == shown


def test_a_job_stays_chosen_and_one_that_is_gone_gives_its_place() -> None:
    state = ViewState(chosen=4)
    assert state.keep_chosen(JOBS[1:], JOBS).chosen == 4
    assert ViewState(chosen=2).keep_chosen([JOBS[0], JOBS[2]], JOBS[:3]).chosen == 3
    assert ViewState(chosen=3).keep_chosen(JOBS[:1], JOBS[:3]).chosen == 1
    assert state.keep_chosen([], JOBS).chosen is None
    assert ViewState().keep_chosen(JOBS, []).chosen == 1


def test_moves_stop_at_the_ends() -> None:
    assert ViewState(chosen=2).moved(JOBS, 1).chosen == 3
    assert ViewState(chosen=2).moved(JOBS, 99).chosen == 4
    assert ViewState(chosen=2).moved(JOBS, -99).chosen == 1
    assert ViewState().moved([], 1) == ViewState()


@given(st.integers(0, 50), st.integers(1, 60), st.integers(1, 20), st.integers(0, 60))
def test_the_chosen_one_is_always_in_the_table(
    chosen: int, count: int, rows: int, first: int
) -> None:
    jobs = [{**JOBS[0], "id": number} for number in range(count)]
    state = ViewState(chosen=min(chosen, count - 1), first=first).scrolled(jobs, rows)
    assert state.first <= min(chosen, count - 1) < state.first + rows
    assert 0 <= state.first <= max(0, count - rows)


def test_the_one_that_has_no_time_left_comes_last() -> None:
    late = job_of(5, phase={**PHASE, "late": True})
    assert [job["id"] for job in ViewState(order=4).listed([late, JOBS[2]])] == [3, 5]

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.daemon.daemons import make_job
from tests.daemon.made_attempts import an_attempt_row
from zerotools.jobs.jobfile_tables.spec import SizeRange
from zerotoolsd.queue.expected_memory import (
    ESTIMATED,
    MEASURED,
    NOTHING_EXPECTED,
    RELIEVED,
    ExpectedMemory,
    expected_of,
    rounded_need,
)
from zerotoolsd.queue.rows import AttemptRow

GIB = 2**30
SPEC = make_job("exit=0")
TEXT = json.dumps({"gpu": 40 * GIB, "host": 16 * GIB, "less_host": "zero.stage = 3"})


def trained(host: int, gpu: int | None = None, steps: int = 5) -> AttemptRow:
    result = {"steps_done": steps, "peak_host_bytes": host, "peak_gpu_bytes": gpu}
    return an_attempt_row(result=result)


def test_of_an_estimate_so_much_counts_as_is_sure() -> None:
    assert expected_of(SPEC, TEXT, (), GIB) == ExpectedMemory(
        host_bytes=12 * GIB, gpu_bytes=30 * GIB, source=ESTIMATED, less_host="zero.stage = 3"
    )


def test_what_attempts_took_counts_more_and_the_most_of_them() -> None:
    attempts = [trained(5 * GIB, 20 * GIB), trained(6 * GIB, 10 * GIB), trained(50 * GIB, steps=0)]
    assert expected_of(SPEC, TEXT, attempts, GIB) == ExpectedMemory(
        host_bytes=6 * GIB, gpu_bytes=21 * GIB, source=MEASURED, less_host="zero.stage = 3"
    )
    larger = expected_of(SPEC, TEXT, [trained(20 * GIB)], GIB)
    assert (larger.host_bytes, larger.gpu_bytes) == (20 * GIB, 30 * GIB)


def test_an_elastic_job_may_have_had_fewer_ranks() -> None:
    elastic = dataclasses.replace(SPEC, ranks=SizeRange(min=1, max=8))
    assert elastic.size_range is not None
    assert expected_of(elastic, TEXT, [trained(5 * GIB)], 0).host_bytes == 12 * GIB
    assert expected_of(elastic, TEXT, [trained(50 * GIB)], 0).source == MEASURED


def relieved(host: int, checkpoint: object = None) -> AttemptRow:
    result = {"stop_reason": "relieve", "peak_host_bytes": host, "checkpoint": checkpoint}
    return an_attempt_row(result=result)


def test_who_makes_room_again_and_again_and_saves_nothing_is_not_started_for_ever() -> None:
    needs = [
        expected_of(SPEC, None, [relieved(16 * GIB)] * times, 0).host_bytes / GIB
        for times in range(1, 4)
    ]
    assert needs == [20, 25, pytest.approx(31.25, rel=0.07)]
    assert expected_of(SPEC, None, [relieved(16 * GIB)] * 200, 0).source == RELIEVED
    saved = relieved(16 * GIB, {"step": 7})
    assert expected_of(SPEC, TEXT, [relieved(16 * GIB), saved], 0).source == ESTIMATED
    assert expected_of(SPEC, TEXT, [trained(20 * GIB), relieved(GIB)], 0).host_bytes == 20 * GIB


def test_who_made_room_on_a_gpu_and_saved_nothing_does_not_share_the_next_one() -> None:
    def made_room(checkpoint: object = None) -> AttemptRow:
        result = {"stop_reason": "relieve_gpu", "steps_done": 3, "checkpoint": checkpoint}
        return an_attempt_row(result={**result, "peak_host_bytes": 5 * GIB})

    assert expected_of(SPEC, None, [made_room()], 0).alone
    assert expected_of(SPEC, TEXT, [made_room()], 0).alone
    assert not expected_of(SPEC, None, [made_room({"step": 7})], 0).alone
    crashed = an_attempt_row(result={"outcome": "crashed"})
    assert expected_of(SPEC, None, [made_room(), crashed], 0).alone
    assert not expected_of(SPEC, None, [made_room(), trained(GIB), relieved(1, {})], 0).alone
    assert expected_of(SPEC, None, [made_room()], 0).source != RELIEVED


def test_a_little_of_the_host_is_waited_for_by_nobody() -> None:
    small = json.dumps({"host": GIB, "gpu": 0, "less_host": None})
    assert expected_of(SPEC, small, (), GIB).host_bytes == 0
    assert expected_of(SPEC, small, [trained(GIB - 1)], GIB).host_bytes == 0
    assert expected_of(SPEC, small, [trained(GIB)], GIB).host_bytes == GIB


@pytest.mark.parametrize(
    "text",
    [None, "", "[]", "{", "3", '{"host": -1, "gpu": 1e9, "less_host": 5}', '{"host": "x"}'],
)
def test_a_damaged_estimate_is_none(text: Any) -> None:
    assert expected_of(SPEC, text, [an_attempt_row(result=None)], GIB) == NOTHING_EXPECTED


@given(st.integers(0, 2**50))
def test_rounding_is_up_and_by_little(size: int) -> None:
    assert size <= rounded_need(size) <= size * 1.0625
    assert rounded_need(rounded_need(size)) == rounded_need(size)

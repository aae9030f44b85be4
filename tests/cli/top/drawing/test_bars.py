from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.top.made_looks import GIB, text_of
from zerotools.cli.top.drawing.bars import level, memory_bar, meter, strip, warmth
from zerotools.cli.top.drawing.styled_lines import width
from zerotools.cli.top.reading.gpu_holders import GpuShare
from zerotools.sensors.fake import fake_gpu
from zerotools.sensors.snapshot import Gpu


def test_the_bar_of_a_gpu_is_split_by_who_holds_its_memory() -> None:
    shares = (
        GpuShare("job 3", "job", 30 * GIB),
        GpuShare("nobody", "residue", 20 * GIB),
        GpuShare("ada", "stranger", 10 * GIB),
    )
    bar = memory_bar(fake_gpu(0, used_gib=60), shares, 16)
    assert bar == [("▇" * 6, "job"), ("▓" * 2, "stranger"), ("▚" * 4, "residue"), ("╌" * 4, "free")]


@pytest.mark.parametrize("shares", [(), (GpuShare("job 1", "job", 200 * GIB),) * 3])
@pytest.mark.parametrize("columns", [1, 8, 13, 40])
def test_a_bar_is_as_wide_as_it_is_asked(shares: tuple[GpuShare, ...], columns: int) -> None:
    assert width(memory_bar(fake_gpu(0), shares, columns)) == columns
    assert width(memory_bar(Gpu(index=0), shares, columns)) == columns


@given(st.floats(-2, 2) | st.none(), st.integers(1, 30))
def test_a_meter_is_as_wide_as_it_is_asked(share: float | None, columns: int) -> None:
    assert width(meter(share, columns)) == columns


def test_a_little_is_more_than_nothing() -> None:
    assert text_of(meter(0.001, 4)) == "━╌╌╌"
    assert text_of(meter(0.0, 4)) == "╌╌╌╌"
    assert meter(0.5, 0) == []
    assert level(0.99)[0] == "█"
    assert level(None)[0] == " "
    assert strip([None, 0.0, 10.0], 3, 10.0) == [(" ▁█", "strip")]
    assert strip(None, 3) == []


def test_what_should_be_low_is_warned_of() -> None:
    assert [warmth(n, 80, 88) for n in (None, 79, 80, 88)] == ["", "", "warning", "bad"]

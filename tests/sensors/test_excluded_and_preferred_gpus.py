"""How the owner of a machine names GPUs."""

from __future__ import annotations

import pytest

from harness.fake_gpu_probe import fake_gpu
from zerotools.sensors.excluded_and_preferred_gpus import (
    Entry,
    GpuChoice,
    by_preference,
    matches_gpu,
)


@pytest.mark.parametrize(
    ("entry", "is_meant"),
    [
        (3, True),
        (0, False),
        ("GPU-fake-3", True),
        ("gpu-fake", True),
        ("GPU-", False),
        ("GPU-fake-33", False),
        ("Fake H100", True),
        (" fake h100 ", True),
        ("H100", False),
        ("3", False),
        (" ", False),
    ],
)
def test_an_entry_is_an_index_a_uuid_or_a_model(entry: Entry, is_meant: bool) -> None:
    assert matches_gpu(entry, fake_gpu(3)) is is_meant


def test_the_order_of_the_list_is_that_of_the_gpus() -> None:
    gpus = [fake_gpu(index) for index in range(4)]
    choice = GpuChoice(exclude=("GPU-none", 7), prefer=(2, "GPU-fake-0", "Tesla"))
    assert list(choice.unknown(gpus)) == [
        'gpus.exclude: "GPU-none"',
        "gpus.exclude: 7",
        'gpus.prefer: "Tesla"',
    ]
    found = [choice._chosen(gpu) for gpu in gpus]
    assert [gpu.index for gpu in by_preference(found)] == [2, 0, 1, 3]
    assert not any(gpu.excluded for gpu in found)

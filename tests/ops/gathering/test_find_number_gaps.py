from __future__ import annotations

import pytest

from zerotools.ops.gathering.find_number_gaps import missing_in_series, names_alike, varying_numbers


def zero(*ranks: int) -> list[str]:
    return [f"step2/zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in ranks]


@pytest.mark.parametrize(
    ("there", "missing"),
    [
        (zero(0, 1, 3), zero(2)),
        (zero(2, 3), zero(0, 1)),
        (zero(0, 1, 2), []),  # of a last rank no name tells
        (["__0_0.distcp", "__2_0.distcp"], ["__1_0.distcp"]),
        (["rng_state_0.pth", "rng_state_2.pth", "rng_state_3.pth"], ["rng_state_1.pth"]),
        (
            ["model-00001-of-00003.safetensors", "model-00003-of-00003.safetensors"],
            ["model-00002-of-00003.safetensors"],
        ),
        (["a_00_0", "a_00_1", "a_01_0"], ["a_01_1"]),
        (["step1/x", "step5/x"], []),  # numbers of directories are not counted
        (["events.1699999999.0", "events.1700009999.0"], []),
        (["layer_01.pt", "layer_09.pt"], []),  # most are not there: they are no row
        (["x", "y7"], []),
    ],
)
def test_gaps(there: list[str], missing: list[str]) -> None:
    assert list(missing_in_series(there)) == missing


def test_numbers_keep_their_width() -> None:
    assert list(missing_in_series(["r08", "r09", "r11", *(f"r0{n}" for n in range(8))])) == ["r10"]


def test_a_family_without_end_is_not_counted_out() -> None:
    assert list(missing_in_series(["a0_0_0", "a999999999_999999999_999999999"])) == []


def test_those_that_differ_in_a_number() -> None:
    names = [*zero(0, 1, 3), "step2/other_1.pt", "latest"]
    assert names_alike(zero(2)[0], names) == zero(0, 1, 3)
    assert varying_numbers(zero(2)[0], zero(0, 1, 3)) == [0, 1, 3]
    assert varying_numbers("__1_1.distcp", ["__0_0.distcp"]) is None

"""Files of which each rank wrote one."""

from __future__ import annotations

import pytest

from zerotools.ops.inspection.rank_sidecars import lost_rank_sidecars


@pytest.mark.parametrize(
    ("names", "world_size", "lost"),
    [
        (["c/rng_state_0.pth"], 2, ["c/rng_state_1.pth"]),
        (["rng_state_0.pth", "rng_state_2.pth"], None, ["rng_state_1.pth"]),
        (["rng_state.pth"], 2, []),
        (["random_states_0.pkl", "random_states_1.pkl"], 2, []),
        (["random_states_1.pkl", "random_states_0.pkl"], 1, []),
        (
            ["extra_state_world_size_3_rank_1.pt"],
            None,
            ["extra_state_world_size_3_rank_0.pt", "extra_state_world_size_3_rank_2.pt"],
        ),
        (["rng_state_999999.pth"], None, [f"rng_state_{n}.pth" for n in range(8)]),
        ([], 2, []),
    ],
)
def test_what_a_rank_lost(names: list[str], world_size: int | None, lost: list[str]) -> None:
    found = list(lost_rank_sidecars("/c", names, world_size))
    assert [each.file for each in found] == lost
    assert all(f"/c/{each.file} is missing; the run had" in each.message for each in found)

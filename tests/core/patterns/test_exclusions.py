"""Patterns of --exclude: all of what they are for, and nothing else."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest

from zerotools.core.patterns.exclusions import exclusions

NEEDED = [f"model.layers.{n}.{part}.weight" for n in range(3) for part in ("q", "k")]
NEEDED += ["model.norm.weight", "lm_head.weight"]


@pytest.mark.parametrize(
    ("unwanted", "patterns"),
    [
        (["v_head.a.weight", "v_head.a.bias"], ["v_head.a.*"]),
        (["model.layers.0.extra", "model.stat"], ["model.layers.0.extra", "model.stat"]),
        ([f"model.layers.{n}.q_norm.weight" for n in range(3)], ["*.q_norm.weight"]),
        (["v_head.weight", "ema"], ["v_head.weight", "ema"]),
        (["a.x[0]*", "b"], ["a.x[[]0][*]", "b"]),
        (["mtp.0.a", "mtp.0.b", "stat"], ["mtp.0.*", "stat"]),
    ],
)
def test_all_unwanted_names_and_no_needed_one_match(
    unwanted: list[str], patterns: list[str]
) -> None:
    found = exclusions(unwanted, NEEDED)
    assert found == patterns
    held = [*NEEDED, *unwanted]
    assert [n for n in held if not any(fnmatchcase(n, each) for each in found)] == NEEDED

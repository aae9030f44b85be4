"""Patterns of names, in checkpoints and in configs of adapters, that are made to take for ever."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.formats.deepspeed.reading.test_golden import ROOT
from tests.formats.deepspeed.reading.test_versions import rewrite
from tests.hostile.case import READ, WRITE, Case, Make

SOURCE = ROOT / "tensor-parallel-z2-fp32-w2" / "checkpoint"
BAD = "is not a regular expression"


def recording(info: Mapping[str, Any]) -> Make:
    """A checkpoint of two tensor-parallel ranks that says this of how they share the weights."""

    def make(directory: Path) -> Path:
        def change(tree: dict[str, Any]) -> None:
            tree["universal_checkpoint_info"] = dict(info)

        shutil.copytree(SOURCE, directory / "run")
        rewrite(directory / "run" / "global_step2" / "mp_rank_00_model_states.pt", change)
        return directory / "run"

    return make


def replicated(*patterns: Any) -> Make:
    """As `recording`, of the patterns of what is the same on both ranks."""
    return recording({"tp_replicated_parameter_patterns": list(patterns)})


def _affine(pattern: Any) -> Make:
    return recording({"affine_map": {"version": 1, "params": {pattern: {}}}})


CASES = (
    Case(
        "a pattern that takes re years to refuse",
        replicated(r"(.+)+\d{9}$", r"(\w|\w\w|.)*#"),
        "COMPLETE according to its metadata",
        commands=READ,
        status=0,
    ),
    Case(
        "a hundred thousand places in twenty letters",
        replicated("((.{0,99}){0,99}){0,99}#"),
        "patterns of names would take very long to match",
    ),
    Case(
        "patterns that may stand anywhere, in any order",
        replicated(*(f"(a?.?){{500}}{n}" for n in range(50))),
        "patterns of names would take very long to match",
    ),
    Case(
        "a thousand groups in one another",
        replicated("(" * 990 + "a" + ")" * 990),
        r"pattern '\(\(+ is not a regular expression: it nests groups more than 40 levels deep",
    ),
    Case("a pattern of a megabyte", replicated("a" * 2**20), "has 1048576 characters, but zero"),
    Case("a pattern that looks ahead", replicated("(?=a)b"), r"'\(\?=a\)b' has \(\?=", status=4),
    Case("a pattern that looks back", replicated(r"(.*)\1"), r"has \\1, which zerotools", status=4),
    Case("a pattern that is none", replicated("a("), rf"mp_rank_00.*'a\(' {BAD}: it has a \("),
    Case("a pattern that is no text", replicated(5), "patterns' is not a list of texts"),
    Case("an affine map of a number", _affine(7), "patterns that are not text"),
    Case(
        "sizes of sub-parameters of 4,300 digits",
        recording({"parameter_with_sub_params": [{"shape": [10**4300], "partition_dim": 0}]}),
        "an integer of 1786 bytes, which no checkpoint has",
        commands=(*READ, *WRITE),
        status=4,
    ),
)

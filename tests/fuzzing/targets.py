"""What is fuzzed: the name of a target, and the function that is given the bytes.

A target returns where its reader refuses the bytes by an error of zerotools, or reads them and what
it read holds together. Anything else that it raises is a finding. Its peers, slow libraries that
read the same format, are asked only if `ZEROTOOLS_FUZZ_PEERS=1`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"
Check = Callable[[bytes], None]

TARGETS = {
    "pickle": "pickles",
    "zip": "zips",
    "safetensors": "headers",
    "dcp": "metadata",
    "ocdbt": "databases",
    "checkpoint": "checkpoints",
    "job": "jobs",
    "config": "configs",
}
"""The module of each target, which has a function `check`."""

PACKAGES = {"job": ("tomllib",), "config": ("tomllib", "yaml")}
"""Whose branches count, beside those of zerotools and the daemon."""

ELSEWHERE = {"checkpoint": ("zerotools.io",)}
"""Whose branches do not count, as other targets are for them: what is not watched is far faster."""


def check_of(target: str) -> Check:
    """The function of a target."""
    check: Check = import_module(f"tests.fuzzing.{TARGETS[target]}").check
    return check


def seeds(target: str) -> list[Path]:
    """The committed inputs of a target."""
    return sorted((CORPUS / target).iterdir())

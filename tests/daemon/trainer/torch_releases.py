"""Marks of tests for which the installed torch is too old; torch is not imported for them."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

import pytest

from zerotools.io.files.optional_packages import is_older


def is_before(release: str) -> bool:
    """Whether the installed torch is older than `release`; without torch: no."""
    try:
        return is_older(version("torch"), f"torch>={release}")
    except PackageNotFoundError:
        return False


def since_torch(release: str, why: str) -> pytest.MarkDecorator:
    """The mark of a test that is skipped on older releases, because of `why`."""
    return pytest.mark.skipif(is_before(release), reason=f"torch before {release}: {why}")


HAS_TENSOR_RANKS = not is_before("2.12")
"""False: a job with `zero.tensor_ranks` is refused at submit (`test_tensor_parallel_self_test`)."""
needs_tensor_ranks = since_torch("2.12", "zero.tensor_ranks is refused")

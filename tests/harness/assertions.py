"""Each process of a test run rewrites the asserts of its own part of the files, before all collect.

pytest rewrites the asserts of a file when it first imports it, and keeps the result beside it. In a
new tree each process of pytest-xdist would do so with every file, all in the same order.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]


def rewrite_part(config: pytest.Config, number: int, count: int) -> None:
    """Keep the rewritten form of every `count`th file from `number` on that has none yet.

    By names that pytest does not publish: with a release that has them no more, nothing is done,
    and files are rewritten as they are imported.
    """
    if sys.dont_write_bytecode:
        return
    try:
        from _pytest.assertion import rewrite

        state = config.stash[rewrite.assertstate_key]
        for path in _files()[number::count]:
            kept = rewrite.get_cache_dir(path) / f"{path.stem}{rewrite.PYC_TAIL}"
            if not kept.exists() and rewrite.try_makedirs(kept.parent):
                stamp, code = rewrite._rewrite_test(path, config)
                rewrite._write_pyc(state, code, stamp, kept)
    except (AttributeError, ImportError, KeyError, TypeError):
        return


def _files() -> list[Path]:
    names = ("test_*.py", "conftest.py")
    return sorted(path for name in names for path in TESTS.rglob(name))

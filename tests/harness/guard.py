"""The part of pytest's run that lets no process outlive its test, and scales deadlines."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness import forked, leftovers
from harness.patience import patient

RUNNING = pytest.StashKey[list[leftovers.Running]]()
FAILED = pytest.StashKey[bool]()


class Guard:
    """Ends what a test has started, with that test; one that passes has ended it itself."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        mark = item.get_closest_marker("timeout")
        seconds = mark.args[0] if mark else float(item.config.getini("timeout"))
        item.add_marker(pytest.mark.timeout(patient(seconds)), append=False)
        item.stash[RUNNING] = leftovers.running()
        item.stash[FAILED] = False
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Iterator[None]:
        report = yield
        item.stash[FAILED] |= report.failed
        return report

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Iterator[None]:
        try:
            return (yield)
        finally:
            left = leftovers.end_all(besides=item.stash[RUNNING])
            if left and not item.stash[FAILED]:
                pytest.fail(f"these were still running, and were ended: {'; '.join(left)}")

    def pytest_unconfigure(self) -> None:
        forked.close_servers()

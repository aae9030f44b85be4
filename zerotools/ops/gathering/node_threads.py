"""The same for several sources at a time; what fails for one does not stop the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from zerotools.core.counts import counted
from zerotools.core.errors import ZerotoolsError
from zerotools.io.ssh.far_shell import OpenShells

Given = TypeVar("Given")
Made = TypeVar("Made")


def for_each(
    given: Sequence[Given], work: Callable[[Given], Made], shells: OpenShells, at_once: int
) -> list[Made]:
    """Return the results of `work` for each, `at_once` of them at the same time. All are started;
    then the first error is raised, with the number of others."""
    if not given:
        return []
    with ThreadPoolExecutor(at_once) as pool:
        futures = [pool.submit(work, each) for each in given]
        try:
            errors = [error for each in futures if (error := each.exception()) is not None]
        except BaseException:  # Ctrl-C: ended, and raised again
            for each in futures:
                each.cancel()
            shells.end_all()
            raise
    if errors:
        raise _together(errors)
    return [each.result() for each in futures]


def _together(errors: Sequence[BaseException]) -> BaseException:
    first, *others = errors
    defect = next((each for each in errors if not isinstance(each, ZerotoolsError | OSError)), None)
    if defect is not None or not others or not isinstance(first, ZerotoolsError):
        return defect or first
    also = str(others[0]).partition("; ")[0]
    what, semicolon, advice = str(first).rpartition("; ")
    more = f" ({counted(len(others), 'more source')} failed, too: {also:.300})"
    return type(first)(f"{what}{more}{semicolon}{advice}" if semicolon else f"{first}{more}")

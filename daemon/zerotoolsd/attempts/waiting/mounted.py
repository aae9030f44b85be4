"""Whether the file systems of a job are still there when it is started again.

A directory whose file system was unmounted is an empty one of the root's: a job that is started
there finds no checkpoint. What the attempt before it had mounted is therefore waited for.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from zerotools.io.files.mounts import MountPoint
from zerotoolsd.accounts.rights import opened
from zerotoolsd.queue.rows import AttemptRow
from zerotoolsd.supervisor.durable import LARGEST_RECORD, read_json
from zerotoolsd.supervisor.plan import ATTEMPT, Plan

_LONGEST = 500


def what_is_missing(last: AttemptRow | None, table: Iterable[MountPoint]) -> str | None:
    """What the attempt `last` had mounted, and is not now: one sentence. Raises OSError."""
    if last is None:
        return None
    try:
        with opened(Path(last.run_dir)) as base:
            tree = read_json(base / ATTEMPT, LARGEST_RECORD)
        named = () if tree is None else Plan.from_json(tree).mounts
    except FileNotFoundError:
        return None
    except (TypeError, ValueError):  # the ranks can write there, too
        return None
    here = {point.path for point in table}
    gone = [each for each in named if isinstance(each, str) and each not in here] if here else []
    if not gone:
        return None
    words = " and ".join(gone)[:_LONGEST]
    return (
        f"{words} {'is' if len(gone) == 1 else 'are'} not mounted any more, where the job has files"
    )

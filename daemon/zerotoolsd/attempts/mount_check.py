"""The check that a job's file systems are still mounted when it is restarted.

After an unmount, the directory is an empty one on the root's file system, so a job that started
there would find no checkpoint. The job therefore waits for the mounts of the attempt before it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from zerotools.io.files.mounts import MountPoint
from zerotoolsd.queue.rows import AttemptRow
from zerotoolsd.supervisor.durable import LARGEST_RECORD, read_json
from zerotoolsd.supervisor.plan import ATTEMPT, Plan
from zerotoolsd.users.open_as_user import opened

_LONGEST = 500


def what_is_missing(last: AttemptRow | None, table: Iterable[MountPoint]) -> str | None:
    """Return the sentence on mounts of the attempt `last` that are missing now. Raises OSError."""
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
        f"{words} {'is' if len(gone) == 1 else 'are'} not mounted any more, and the job has "
        "files there"
    )

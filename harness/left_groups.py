"""Removes control groups that attempts left because daemon, supervisor and keeper were killed."""

from __future__ import annotations

from pathlib import Path

from zerotoolsd.supervisor import attempt_cgroup
from zerotoolsd.supervisor.attempt_cgroup import AttemptGroup, NotDelegated, group_name
from zerotoolsd.supervisor.durable_files import read_json


def remove_groups(place: Path) -> list[Path]:
    """Remove the empty control groups of all attempts below the directory `place`.

    Returns the removed groups.
    """
    try:
        directory = attempt_cgroup.find_delegation().directory
    except (NotDelegated, OSError):
        return []  # no groups exist
    if not any(directory.glob(f"{attempt_cgroup.PREFIX}*")):
        return []  # and `place` may have a hundred thousand files
    found = (_group_of(plan, directory) for plan in place.rglob("attempt.json"))
    return [group.path for group in found if group is not None and group.remove(seconds=0.0)]


def _group_of(plan: Path, directory: Path) -> AttemptGroup | None:
    """Return the control group of the attempt with this plan; None if the group does not exist."""
    try:
        tree = read_json(plan) or {}
        name = group_name(tree["job_id"], tree["attempt"], tree["token"])
    except (OSError, ValueError, KeyError, TypeError):
        return None  # a test has garbled it
    group = AttemptGroup(directory / name)
    return group if "/" not in name and group.path.is_dir() else None

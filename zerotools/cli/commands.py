"""Every command, in the order of the help page. The help page is drawn from this table alone."""

from __future__ import annotations

from typing import NamedTuple

CHECKPOINTS = "Checkpoints"
JOBS = "Jobs"
MACHINE = "Machine"
SECTIONS = (CHECKPOINTS, JOBS, MACHINE)


class Entry(NamedTuple):
    """A command: the module whose `command` it is, its section of the help page, one line."""

    module: str
    section: str
    help: str


COMMANDS: dict[str, Entry] = {}

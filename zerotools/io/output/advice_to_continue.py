"""Describes the unfinished output in a staging directory, with advice on how to continue it."""

from __future__ import annotations

import json
import re
from itertools import count, islice
from pathlib import Path

from zerotools.core.errors import BadFile
from zerotools.io.files.directory_entries import names_in
from zerotools.io.files.open_source import RemotePath
from zerotools.io.files.regular_files import regular_file
from zerotools.io.output.journal import NAME, SCHEMA
from zerotools.io.output.part_ledger import count_parts, first_line

_MOST_NAMED = 8
_NUMBER = re.compile(r"[1-9]\d{0,8}")


def advice_to_continue(directory: Path) -> str | None:
    """Return a description of the unfinished output in the staging `directory`, with the command
    that completes it.

    Return None if no command of zerotools began an output there. No file except the journal is
    read.
    """
    if isinstance(directory, RemotePath):
        return None
    parts = count_parts(directory)
    if parts is not None and parts > 0:
        return _of_parts(directory, parts)
    command = _command(directory)
    if command is None:
        return None
    if command == "gather":
        return (
            "is an unfinished output of zerotools gather: run the command again to fetch the "
            "missing files and complete it"
        )
    return (
        "is an unfinished output of zerotools: if no run is writing it, run its command again "
        "with --resume to keep the complete files, or without --resume to start over"
    )


def _of_parts(directory: Path, parts: int) -> str:
    begun = [name.removeprefix(f"{NAME}.") for name in names_in(directory)]
    numbers = {int(each) for each in begun if _NUMBER.fullmatch(each) and int(each) <= parts}
    missing = parts - len(numbers)
    named = islice((part for part in count(1) if part not in numbers), min(missing, _MOST_NAMED))
    some = ", ".join(map(str, named))
    more = f" and {missing - _MOST_NAMED} more" if missing > _MOST_NAMED else ""
    said = f"no run has begun part {some}{more}" if missing else "a run has begun each part"
    return (
        f"is an output in {parts} parts, and not all are complete ({said}): run the command with "
        f"--part I/{parts} for each part that is missing or stopped; each continues from its last "
        "position, and the last part completes the output"
    )


def _command(directory: Path) -> str | None:
    """Return the name of the command that began the output. Return "" if the journal does not
    record the name, and None if there is no valid journal.
    """
    try:
        with regular_file(directory / NAME, is_source=False) as descriptor:
            line = first_line(descriptor)
        tree = json.loads(line or b"")
    except (OSError, BadFile, ValueError, RecursionError):
        return None
    if not isinstance(tree, dict) or tree.get("schema") != SCHEMA:
        return None
    identity = tree.get("identity")
    command = identity.get("command") if isinstance(identity, dict) else None
    return command if isinstance(command, str) else ""

"""Make the job file of a job that runs a conversion or a verification on CPUs.

Each rank does one part, with the number that RANK and WORLD_SIZE give. So a new attempt of an
interrupted job continues after the completed parts.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zerotools.core.errors import BadRequest

COMMANDS = ("consolidate", "reshard", "convert", "verify")
_VERIFY = "verify"
_LONGEST_NAME = 200
IN_PARTS = ("--part-from", "torchrun")
GOING_ON = ("--resume",)
_INSTEAD = {
    "--part": "--parts N of submit, before the conversion",
    "--part-from": "--parts N of submit, before the conversion",
    "--dry-run": "--dry-run of submit, before the conversion",
    "--resume": "nothing: an interrupted job continues without it",
}


def check_conversion(words: Sequence[str], parts: int) -> None:
    """Raise an error if `words` are not a conversion, or have options that the job sets itself.

    Raises:
        BadRequest: with the right form.
    """
    if not words or words[0] not in COMMANDS:
        given = repr(words[0]) if words else "nothing"
        raise BadRequest(
            f"--convert is followed by {given}; write one of {', '.join(COMMANDS)} with its "
            "arguments: submit --convert -- consolidate runs/big exported --dtype bf16"
        )
    if words[0] == _VERIFY and parts > 1:
        raise BadRequest(
            "--parts divides the output of a command, and verify writes none; it reads with "
            "all cores (--workers), and on several machines each has its --part: leave "
            "--parts out"
        )
    if {"-h", "--help"} & set(words):
        raise BadRequest(f"--convert: a help page cannot be a job; see zerotools {words[0]} --help")
    for word in words[1:]:
        if instead := _INSTEAD.get(word.partition("=")[0]):
            raise BadRequest(f"--convert: {word} is of the job; give {instead}")


def ways(words: Sequence[str], parts: int) -> list[tuple[str, ...]]:
    """Return the options for the processes of the job, the best first.

    The first runs in parts, which may be started again at any time. For one process, the second
    resumes an interrupted conversion.
    """
    if parts > 1:
        return [IN_PARTS]
    return [()] if words[0] == _VERIFY else [IN_PARTS, GOING_ON]


def command_words(words: Sequence[str], options: Sequence[str]) -> list[str]:
    """Return the command with `options` before all of its arguments, which may follow a `--`."""
    return ["-m", "zerotools", words[0], *options, *words[1:]]


def conversion_tree(
    words: Sequence[str], way: Sequence[str], parts: int, *, python: str, directory: Path
) -> dict[str, Any]:
    """Return the job file that runs `words`, as typed in `directory`, with the interpreter
    `python`. `way` is one of `ways`."""
    name = shlex.join(words)
    tree: dict[str, Any] = {
        "name": name[:_LONGEST_NAME] if name.isprintable() else words[0],
        "engine": "script",
        "python": python,
        "device": "cpu",
        "ranks": parts,
        "script": {
            "command": command_words(words, way),
            "directory": str(directory),
        },
    }
    if words[0] == _VERIFY:  # a faulty file is faulty at the next read too
        tree["max_restarts"] = 0
    return tree

"""Make the job file of a job that converts or verifies a checkpoint on CPUs.

Each rank does one part of the work, according to RANK and WORLD_SIZE. If the job is interrupted, a
new attempt continues after the completed parts.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zerotools.core.errors import BadRequest
from zerotools.io.stores.parse_url import is_url

_VERIFY = "verify"
PATHS = {"consolidate": 2, "reshard": 2, "convert": 2, _VERIFY: 1}
"""The number of paths that each command takes as arguments."""
COMMANDS = tuple(PATHS)
PATH_OPTIONS = (
    *("--layout", "--adapter-config", "--base", "--map", "--config-dir", "--like"),
    *("--ds-config", "--against", "--html"),
)
"""The options of these commands that are followed by a path."""
_LONGEST_NAME = 200
IN_PARTS = ("--part-from", "torchrun")
GOING_ON = ("--resume",)
_INSTEAD = {
    "--part": "give --parts N to submit, before --convert",
    "--part-from": "give --parts N to submit, before --convert",
    "--dry-run": "give --dry-run to submit, before --convert",
    "--resume": "leave it out, because an interrupted job continues by itself",
}


def check_conversion(words: Sequence[str], parts: int) -> None:
    """Raise an error if `words` are not a conversion or verification command, or have options that
    the job sets itself.

    Raises:
        BadRequest: the command is wrong. The message shows the right form.
    """
    if not words or words[0] not in COMMANDS:
        given = repr(words[0]) if words else "nothing"
        raise BadRequest(
            f"--convert is followed by {given}; write one of {', '.join(COMMANDS)} with its "
            "arguments: submit --convert -- consolidate runs/big exported --dtype bf16"
        )
    if words[0] == _VERIFY and parts > 1:
        raise BadRequest(
            "--parts divides the output of a command, but verify writes no output, and reads "
            "with all cores (--workers); leave --parts out, or run verify with --part on "
            "several machines"
        )
    if {"-h", "--help"} & set(words):
        raise BadRequest(f"--convert: a help page cannot be a job; see zerotools {words[0]} --help")
    for word in words[1:]:
        if instead := _INSTEAD.get(word.partition("=")[0]):
            raise BadRequest(f"--convert: {word} cannot be used in a job; {instead}")


def refuse_relative_paths(words: Sequence[str]) -> None:
    """Raise BadRequest if a path in the conversion `words` is relative, for a caller that has no
    current directory.

    A word after an option may be the value of the option, or an argument if the option has no
    value. So a relative word after an option is accepted if the command has enough absolute paths
    and URLs for all its arguments.
    """
    before, may_be_arguments = "", list[str]()
    only_arguments = False
    for word in words[1:]:
        name, is_joined, value = word.partition("=")
        if only_arguments or not word.startswith("-"):
            is_value = before.startswith("-") and not only_arguments
            if not _is_absolute(word) and (before in PATH_OPTIONS or not is_value):
                raise _relative(word)
            if before not in PATH_OPTIONS:
                may_be_arguments.append(word)
            before = ""
        elif word == "--":
            only_arguments = True
        elif is_joined and name in PATH_OPTIONS and not _is_absolute(value):
            raise _relative(value)
        else:
            before = "" if is_joined else word
    absolute = [word for word in may_be_arguments if _is_absolute(word)]
    if len(absolute) < (wanted := PATHS[words[0]]):
        raise BadRequest(
            f"convert: {words[0]} takes {wanted} absolute path{'s' * (wanted > 1)}, but "
            f"{len(absolute)} {'is' if len(absolute) == 1 else 'are'} given; write each path from /"
        )


def _is_absolute(path: str) -> bool:
    return path.startswith("/") or is_url(path)


def _relative(path: str) -> BadRequest:
    return BadRequest(
        f"convert: {path!r:.200} is a relative path, and the job has no current directory; write "
        "the absolute path"
    )


def option_sets(words: Sequence[str], parts: int) -> list[tuple[str, ...]]:
    """Return the sets of options with which the processes of the job can run, the best one first.

    The first set makes each process write its part, so that the job can be started again at any
    time. For a conversion by one process, the second set resumes an interrupted conversion.
    """
    if parts > 1:
        return [IN_PARTS]
    return [()] if words[0] == _VERIFY else [IN_PARTS, GOING_ON]


def command_words(words: Sequence[str], options: Sequence[str]) -> list[str]:
    """Return the interpreter's arguments for the command, with `options` after the command's name.

    Options are not possible at the end, because the arguments may follow a `--`.
    """
    return ["-m", "zerotools", words[0], *options, *words[1:]]


def conversion_tree(
    words: Sequence[str], options: Sequence[str], parts: int, *, python: str, directory: Path
) -> dict[str, Any]:
    """Return the job file of a job that runs the command `words` with the interpreter `python`.

    The command was typed in `directory`. `options` is one of the sets of options that `option_sets`
    returns.
    """
    name = shlex.join(words)
    tree: dict[str, Any] = {
        "name": name[:_LONGEST_NAME] if name.isprintable() else words[0],
        "engine": "script",
        "python": python,
        "device": "cpu",
        "ranks": parts,
        "script": {
            "command": command_words(words, options),
            "directory": str(directory),
        },
    }
    if words[0] == _VERIFY:  # a faulty file is faulty at the next read too
        tree["max_restarts"] = 0
    return tree

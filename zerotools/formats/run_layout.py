"""How a program lays the directory of a run out: names alone."""

from __future__ import annotations

import re
from dataclasses import dataclass

HERE = ""
"""The directory itself, among the names of directories in it."""


@dataclass(frozen=True, slots=True)
class Tracker:
    """A file with the name of the checkpoint that a program continues from; `name` is the
    checkpoint's name, with `{}` for the contents of the file."""

    file: str
    name: str = "{}"


@dataclass(frozen=True, slots=True)
class RunLayout:
    """The meaning of the names in a run's directory of `program`.

    `numbered` are the names of its checkpoints, directories unless they are `files`; the groups
    `step` and `last` show which is newer. They lie in the first of `places` that has any; the parts
    of these are patterns. A checkpoint may hold several `models`, and the first is taken; a model
    lies in the first of `inside` that is a checkpoint.

    A directory is of the program if one of its newest checkpoints has a name that `holds` matches,
    and the directory itself has one that `beside` matches. A finished checkpoint has the file
    `written_last`, and no file next to it with its name and `unfinished_suffix`. `wraps_models`
    means that programs' names begin with that of an attribute that holds the model.
    """

    program: str
    numbered: re.Pattern[str]
    files: bool = False
    places: tuple[str, ...] = (HERE,)
    models: tuple[str, ...] = (HERE,)
    inside: tuple[str, ...] = (HERE,)
    holds: re.Pattern[str] | None = None
    beside: re.Pattern[str] | None = None
    tracker: Tracker | None = None
    written_last: str | None = None
    unfinished_suffix: str | None = None
    wraps_models: bool = False

"""How a program lays the directory of a run out: names alone."""

from __future__ import annotations

import re
from dataclasses import dataclass

HERE = ""
"""The directory itself, among the names of directories in it."""


@dataclass(frozen=True, slots=True)
class Tracker:
    """A file in which a program names the checkpoint that it goes on from; `name` is of that
    checkpoint, `{}` being what the file has."""

    file: str
    name: str = "{}"


@dataclass(frozen=True, slots=True)
class RunLayout:
    """What the names in a run's directory are to `program`.

    `numbered` are the names of its checkpoints, directories unless they are `files`; the groups
    `step` and `last` say which is newer. They lie in the first of `places` that has any; the parts
    of a place are patterns. A checkpoint may be of several `models`, of which the first is meant;
    a model lies in the first of `inside` that is a checkpoint.

    A directory is of the program if one of its newest checkpoints has a name that `holds` matches,
    and it has itself one that `beside` matches. A finished checkpoint has the file `written_last`,
    and none beside it with its name and `unfinished_suffix`. `wraps_models` says that programs'
    names begin with that of an attribute that has the model.
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

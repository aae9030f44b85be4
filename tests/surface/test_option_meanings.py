"""A flag has one meaning and one type on the whole command line, and an option has one name.

Where the help of a flag differs between commands, `MEANINGS` says what it means in all of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import click

from zerotools.cli.main import build

MEANINGS = {
    "--after": "jobs that must end first",
    "--begin": "the earliest start",
    "--dtype": "the type of the floating-point weights",
    "--dry-run": "say what would be done, and change nothing",
    "--follow": "stay until the job has ended",
    "--from": "the weights of a run to take",
    "--include": "take these names alone",
    "--json": "print JSON",
    "--keep-last": "how many of the newest stay",
    "--max-memory": "memory for all buffers together",
    "--max-shard-size": "the largest file of weights to write",
    "--name": "the name of what the command makes or serves",
    "--nodes": "how many nodes of Slurm",
    "--older-than": "take those that are older alone",
    "--output": "the file to write",
    "--rename": "names to change, by a regular expression",
    "--stage": "the ZeRO stage",
    "--strip-prefix": "prefixes to remove from names",
    "--wait": "return when what was asked for has happened",
    "--world-size": "the ranks that will load the output",
    "--yes": "ask nothing, and do it",
}
"""What each flag means in all commands that have it."""

TYPES = {
    "--dtype": "convert has keep, its default, where the commands that export have auto",
    "--interval": "top draws a whole screen, at most twice a second",
    "--stage": "estimate also shows stage 0 and all stages; no checkpoint is written for those",
}
"""Flags that take other values in some commands, with the reason."""

TWO_MEANINGS = {
    "--fast": "gather still compares digests of copies; verify reads no tensor data",
    "--force": "each command that rewrites checkpoints names the one refusal that it lifts",
    "--workers": "gather counts nodes that are read at once; the others count threads",
}
"""Flags that mean something else in some commands, with the reason."""


def _flags() -> Mapping[str, Mapping[str, click.Option]]:
    """Return the commands of each flag, with the option that it is there."""
    group = build()
    context = click.Context(group, info_name="zerotools")
    found: dict[str, dict[str, click.Option]] = defaultdict(dict)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                for flag in (*parameter.opts, *parameter.secondary_opts):
                    found[flag][name] = parameter
    return found


FLAGS = _flags()
SHARED = {
    flag: options for flag, options in FLAGS.items() if flag.startswith("--") and len(options) > 1
}


def _values(option: click.Option) -> tuple[object, ...]:
    """Say what the option takes."""
    kind = option.type
    bounds = tuple(getattr(kind, name, None) for name in ("choices", "min", "max"))
    return type(kind), *map(str, bounds), option.is_flag, option.multiple, option.nargs


VALUES = {f: {c: _values(option) for c, option in of.items()} for f, of in SHARED.items()}
HELPS = {f: {c: option.help for c, option in of.items()} for f, of in SHARED.items()}


def _differing(said: Mapping[str, Mapping[str, object]]) -> set[str]:
    return {flag for flag, by_command in said.items() if len({*by_command.values()}) > 1}


def test_a_flag_takes_the_same_values_in_every_command() -> None:
    unknown = _differing(VALUES) - {*TYPES, *TWO_MEANINGS}
    assert not unknown, {flag: VALUES[flag] for flag in unknown}


def test_a_flag_means_the_same_in_every_command() -> None:
    unknown = _differing(HELPS) - {*MEANINGS, *TWO_MEANINGS}
    assert not unknown, {flag: HELPS[flag] for flag in unknown}


def test_a_short_flag_is_the_same_long_one_everywhere() -> None:
    for flag, options in FLAGS.items():
        if not flag.startswith("--"):
            longs = {tuple(each for each in o.opts if each != flag) for o in options.values()}
            assert len(longs) == 1, f"{flag} is {sorted(longs)}"


def test_a_long_flag_has_the_same_short_one_everywhere() -> None:
    for flag, options in FLAGS.items():
        if flag.startswith("--"):
            shorts = {tuple(each for each in o.opts if each != flag) for o in options.values()}
            assert len(shorts) == 1, f"{flag} is {sorted(shorts)}"


def test_an_option_has_one_long_name() -> None:
    for options in FLAGS.values():
        for command, option in options.items():
            longs = [each for each in option.opts if each.startswith("--")]
            assert len(longs) == 1, f"{command}: {longs} are one option"


def test_every_line_of_the_tables_is_needed() -> None:
    assert {*TYPES} <= _differing(VALUES)
    assert {*MEANINGS, *TWO_MEANINGS} <= _differing(HELPS)
    assert not {*MEANINGS} & {*TWO_MEANINGS}

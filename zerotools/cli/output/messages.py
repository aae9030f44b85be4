"""Messages on standard error: `error:`, `hint:`, `warning:` and `note:`, each with its label.

A message of `zerotools.core.errors` is one sentence that ends with the action to take. If the
action is a separate clause, after the last semicolon, it is shown as a hint:

    train.stepps: unknown key; did you mean train.steps?

    error: train.stepps: unknown key
    hint: did you mean train.steps?

On a terminal, lines are wrapped at words to its width, and lines after a label's first one are
indented. Elsewhere every message is one line, so that programs can search for it.
"""

from __future__ import annotations

import os
import re
import sys
from typing import TextIO

from zerotools.cli.output import render
from zerotools.cli.output.colours import paint

HINT_IN_CHINESE = "提示"
_LABELS = {
    "error": "error",
    "hint": "busy",
    HINT_IN_CHINESE: "busy",
    "warning": "warning",
    "note": "quiet",
    "dropped": "warning",
}
_VERBS = """
    add allow apply ask cancel change check chmod choose chown close compare convert copy correct
    create delete describe download exchange export fetch flatten free give hold install keep leave
    let list load lower make map merge move name pass paste pick pipe point print put raise read
    redistribute release remove rename repair repeat report reshard resume retry run save say see
    select send serve set shorten split start state stop submit switch take thin train try turn type
    unpack update upgrade use verify wait write zerotools
"""
_PHRASES = (
    *("did you mean", "end it", "go on", "is it", "is zerotoolsd", "its log", "its tags"),
    *("known keys", "look at", "pip install", "supported:", "the daemon is"),
    "the same command with",
    *(
        "those that are",
        r"to [^;,:]+, (?:set|submit|type|use)",
        "if [^;,:]+, leave",
        "to run (?:it|them) again",
    ),
)
_ADVICE = "|".join([*_VERBS.split(), *_PHRASES])
"""A regular expression for the first words of a clause with advice."""
_HINT = rf"^(.*); ((?:{_ADVICE})(?!\.?\w|-)[^;]*(?:; or [^;]*)?)$"
"""The regular expression for a message with advice. `split` compiles it when it is first needed,
because that takes 1 ms.
"""
_EXCERPT = re.compile(r" +\d* \| ")
"""The beginning of a line that a message quotes from a file, and of the line with marks below."""
_NARROWEST = 40
HOST = "host"
"""The name of the parameter for the option --host."""


def split(message: str) -> tuple[str, str]:
    """Split a message into the error and the advice. The advice is "" if no clause of the message
    gives advice.
    """
    head, newline, excerpt = message.partition("\n")
    if not all(_EXCERPT.match(line) for line in excerpt.splitlines()):
        return message, ""
    found = re.match(_HINT, head, re.DOTALL)
    return (found[1] + newline + excerpt, found[2]) if found else (message, "")


def print_error(message: str, stream: TextIO | None = None) -> None:
    """Print the message of an error. Its advice is printed on a separate line after `hint:`."""
    # Most commands print no message.
    from zerotools.cli.output.language import CHINESE, can_show, chinese_hint, language

    what, hint = split(message)
    print_message("error", what, stream)
    translated = chinese_hint(message) if language() == CHINESE else None
    if translated is not None and can_show(translated, stream or sys.stderr):
        print_message(HINT_IN_CHINESE, translated, stream)
    elif hint:
        print_message("hint", hint, stream)


def print_message(label: str, text: str, stream: TextIO | None = None) -> None:
    """Print one message after `label`, a key of `_LABELS`. Control characters in the text are
    escaped.
    """
    stream = stream or sys.stderr
    columns = render.terminal_columns(stream)
    shown = paint(f"{label}:", _LABELS[label], stream)
    lines = [render.clean(line) for line in text.split("\n")]
    if columns is not None:
        lines = wrapped(f"{label}:", lines, columns)
    try:
        stream.write(f"{shown} " + "\n".join(lines) + "\n")
        stream.flush()
    except OSError:  # full, or closed: the exit status and the JSON still say it
        if stream is not sys.stderr:
            raise
        sys.stderr = null_stream()  # the interpreter flushes it once more, and would fail then


def null_stream() -> TextIO:
    """Return a stream that discards its input."""
    return os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")


def command_name() -> str:
    """Return the name of this program for hints that contain a command: `zerotools`, with the
    --host that the user gave.
    """
    import click  # the daemon prints errors too, without click

    context = click.get_current_context(silent=True)
    host = None if context is None else context.find_root().params.get(HOST)
    if host is None:
        return "zerotools"
    import shlex

    return f"zerotools --host {shlex.quote(host)}"


def wrapped(label: str, lines: list[str], columns: int) -> list[str]:
    """Return `lines` wrapped at words to the width `columns`. The first line follows `label`, so it
    is shorter.
    """
    import textwrap  # 1 ms at each start

    from zerotools.cli.output.language import columns_of, has_wide, wrap_wide

    width = max(_NARROWEST, columns - 1)
    cut: list[str] = []
    for line in lines:
        indent = " " * (len(line) - len(line.lstrip()))
        first = " " * (columns_of(label) + 1) if not cut else indent
        if has_wide(line):
            later = f"{indent}  "
            cut += wrap_wide(line.strip(), width, first=first, later=later)
            continue
        cut += textwrap.wrap(
            line.strip(),
            width,
            initial_indent=first,
            subsequent_indent=indent + "  ",
            break_long_words=False,  # a path stays whole, so that it can be copied
            break_on_hyphens=False,
        ) or [""]
    if cut:
        cut[0] = cut[0][columns_of(label) + 1 :]
    return cut

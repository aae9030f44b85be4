"""Shows long output in the user's pager."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from zerotools.cli.output import render

AUTO, NEVER = "auto", "never"
LESS = "FRX"
"""The options of less if the variable LESS is unset, as git sets them: leave at once if the text
fits, show colours, and leave the text on the screen.
"""


def print_paged(
    lines: Sequence[str], pager: str = AUTO, environment: Mapping[str, str] = os.environ
) -> None:
    """Write `lines` to stdout, in the pager if they do not fit on the screen.

    The pager is `$PAGER`, or else less. It is used only if `pager` is `auto`, standard input and
    output are a terminal, `NO_PAGER` is unset or empty, and `PAGER` is neither empty nor `cat`.
    """
    wanted = pager == AUTO and not environment.get("NO_PAGER")
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if not wanted or not is_terminal or environment.get("PAGER", "less") in ("", "cat"):
        render.print_lines(lines)
        return
    import shutil  # 2 ms at each start

    size = shutil.get_terminal_size()
    rows = sum(max(1, -(-render.width(line) // size.columns)) for line in lines)
    if rows < size.lines:
        render.print_lines(lines)
        return
    import click  # the daemon prints errors too, without click

    os.environ.setdefault("LESS", LESS)
    click.echo_via_pager("".join(f"{line}\n" for line in lines), color=True)

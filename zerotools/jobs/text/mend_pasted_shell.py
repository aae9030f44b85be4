"""Correct errors in a shell script that was copied from a web page: spaces, quotes, dashes,
comments, line ends.

No line is added or removed, so that line numbers in messages stay correct.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from zerotools.jobs.text.mend_pasted_text import (
    BLANKS,
    DOUBLE,
    INVISIBLE,
    SINGLE,
    Mends,
    without_numbers,
)

_BLANKS = str.maketrans(dict.fromkeys(BLANKS, " "))
_SPACES = _BLANKS | str.maketrans(dict.fromkeys(INVISIBLE))
_QUOTES = str.maketrans(
    dict.fromkeys(DOUBLE.replace('"', ""), '"')
    | dict.fromkeys(SINGLE.replace("'", "").replace("`", ""), "'")
)
_WIDE = str.maketrans(
    {"\uff03": "#", "\uff3c": "\\", "\uff0d": "-", "\uff1d": "=", "\uff04": "$", "\uff1b": ";"}
)
_FENCE = re.compile(r"[ \t]*(?:```|~~~).*")
_PROMPT = re.compile(
    r"(?:[ \t]*(?:\d{1,3}[.)](?=[ \t]+[A-Za-z./$])"
    r"|\$|>>>|%|\([\w.-]+\) ?\$|[\w.-]+@[\w.-]+:[^ ]*[$#])[ \t]+(?=\S))+"
)
"""Pattern for the prompt of a shell, or the number of a step, at the beginning of a line."""
_SECOND = re.compile(r"[ \t]*>[ \t]+(?=-)")
"""Pattern for the prompt `>` before an option.

Before any other word, `>` sends the output to a file.
"""
_PLACEHOLDER = re.compile("(?<![<\\w])[<\u2039]([A-Za-z](?:[\\w ./-]*\\w)?)[>\u203a]")
_LONG_DASH = re.compile("(?<![^\\s\"'])[\u2012-\u2015\u2212]{1,2}(?=[A-Za-z])")
_MINUS = re.compile("[\u2010-\u2015\u2212](?=[\\d.\\w])")
_CUT_END = re.compile(r"\\[ \t]+(?:#.*)?$")
"""Pattern for a backslash with a blank or a comment after it at the end of a line.

The shell would end the command there.
"""
_PART = re.compile(r"--[A-Za-z]|(?<=[ \t])(?:-[A-Za-z](?=[ \t])|[\w./-]+\.py\b)")
"""Pattern for text that shows that a comment contains a part of the command: an option, or a
program.
"""
_OPTION = re.compile(r"[ \t]*--[A-Za-z]")

LINE_END = "the end of the line behind a \\"
COMMENT = "a comment in the middle of a command"


def mend_shell(text: str) -> Mends:
    """Correct the shell script `text`.

    Return the corrected script, and the line of each correction.
    """
    mends = Mends()
    lines = without_numbers(text.replace("\r\n", "\n"), mends).split("\n")
    for i, line in enumerate(lines):
        lines[i] = _characters(line, i + 1, mends)
    _without_second_prompts(lines, mends)
    for i, line in enumerate(lines):
        lines[i] = _without_comment(line, i + 1, mends)
    _join(lines, mends)
    mends.text = "\n".join(lines)
    return mends


def as_typed(word: str) -> str:
    """Return `word` with typographic spaces and quotes replaced by plain ones.

    The result is used only to compare words.
    """
    return word.translate(_BLANKS).translate(_QUOTES)


def _characters(line: str, number: int, mends: Mends) -> str:
    """Return `line` with typographic characters replaced by ASCII characters.

    Each correction is added to `mends`.
    """
    steps: tuple[tuple[str, Callable[[str], str]], ...] = (
        ("a non-breaking or other odd space", lambda s: s.translate(_SPACES)),
        ("a full-width character", lambda s: s.translate(_WIDE)),
        ("the fence around a block of code", lambda s: "" if _FENCE.fullmatch(s) else s),
        ("a prompt", lambda s: _PROMPT.sub("", s, count=1)),
        ("typographic quotes", lambda s: s.translate(_QUOTES)),
        ("a placeholder, written like a variable", lambda s: _PLACEHOLDER.sub(_as_variable, s)),
        ("a long dash for --", lambda s: _LONG_DASH.sub("--", s)),
        ("a long dash for -", lambda s: _MINUS.sub("-", s)),
    )
    for what, mend in steps:
        mended = mend(line)
        if mended != line:
            mends.record(number, what)
        line = mended
    return line


def _as_variable(found: re.Match[str]) -> str:
    return "$" + re.sub(r"\W+", "_", found[1].strip())


def _without_second_prompts(lines: list[str], mends: Mends) -> None:
    """Remove the prompt `>`, which a shell shows at the beginning of continued lines."""
    for i in range(1, len(lines)):
        if lines[i - 1].rstrip().endswith("\\") and (found := _SECOND.match(lines[i])):
            lines[i] = lines[i][found.end() :]
            mends.record(i + 1, "a prompt")


def _without_comment(line: str, number: int, mends: Mends) -> str:
    """Return `line` without a comment that would end its command.

    Options in the comment are kept as a part of the command.
    """
    mended = _CUT_END.sub(r"\\", line)
    if mended != line:
        mends.record(number, LINE_END)
        line = mended
    if line.lstrip().startswith("#"):
        return line
    begin = _comment_at(line) if line.endswith("\\") else None
    if begin is None:
        return line
    mends.record(number, COMMENT)
    kept = f"{line[:begin]}{_options_in(line[begin + 1 : -1])}"
    return f"{kept.rstrip()} \\"


def _comment_at(line: str) -> int | None:
    """Return the position of a comment that follows a blank and is outside of quotes; None if
    the line has no comment.
    """
    quote = ""
    for at, character in enumerate(line):
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character == "#" and line[:at].endswith((" ", "\t")):
            return at
    return None


def _options_in(comment: str) -> str:
    """Return the part of a comment that begins with its first option or program name."""
    found = _PART.search(comment)
    return "" if found is None else comment[found.start() :].rstrip()


def _join(lines: list[str], mends: Mends) -> None:
    """Add a backslash at the end of each line if the next line begins with an option. No command
    begins with an option, so the two lines belong together.
    """
    before: int | None = None
    for i, line in enumerate(lines):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if before is not None and _OPTION.match(line) and not lines[before].endswith("\\"):
            lines[before] = f"{lines[before][: _comment_at(lines[before])].rstrip()} \\"
            mends.record(before + 1, "no \\ at the end of a line that continues")
        if before is not None and _OPTION.match(line):
            for between in range(before + 1, i):
                lines[between] = "\\"
                mends.record(between + 1, "an empty line or a comment within a command")
        before = i

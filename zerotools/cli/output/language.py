"""Hints and reports in the language of the user: English, or Chinese for the most frequent
messages.

`zh.po` next to this module has the translations. It is read only to show a message to a user of
Chinese. An error itself stays English, because people search for its text, and so does all JSON.
Entries with the context `report` are headlines and sentences of the reports of `import` and
`estimate`. A Chinese character is two columns wide, and a line may end after any of them.
"""

from __future__ import annotations

import ast
import os
import re
import sys
import unicodedata
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TextIO

ENGLISH, CHINESE = "en", "zh"
VARIABLE = "ZEROTOOLS_LANG"
CATALOGUE = Path(__file__).with_name("zh.po")
_LOCALE = ("LC_ALL", "LC_MESSAGES", "LANG")
_PLACE = re.compile(r"\{(\w+)\}")
_NUMBERS = frozenset(("begin", "count", "end", "gib", "length", "line", "stage"))
_NUMBER = r"\d[\d.,]*"
"""The placeholders `_NUMBERS` match only this regular expression."""
REPORT = "report"
"""The msgctxt of the catalogue entries for reports. Entries for hints have none."""


def language(environment: Mapping[str, str] = os.environ) -> str:
    """Return `zh` or `en`, from ZEROTOOLS_LANG or from the locale."""
    chosen = environment.get(VARIABLE, "")
    names = [chosen] if chosen else [environment.get(name, "") for name in _LOCALE]
    name = next(filter(None, names), "")
    return CHINESE if re.match(r"zh(?![a-z])", name.lower()) else ENGLISH


def chinese_hint(message: str) -> str | None:
    """Return the Chinese hint for an error message; None if the catalogue does not have it."""
    return _translation(message, "")


def translated(text: str, stream: TextIO | None = None) -> str:
    """Return a sentence of a report in the language of the user.

    It stays English if the catalogue lacks it, or if `stream` (default: stdout) cannot show it.
    """
    if language() != CHINESE:
        return text
    found = _translation(text, REPORT)
    return text if found is None or not can_show(found, stream or sys.stdout) else found


def can_show(text: str, stream: TextIO) -> bool:
    """Return whether the encoding of the stream can encode every character of the text."""
    try:
        text.encode(stream.encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _translation(text: str, context: str) -> str | None:
    for pattern, msgstr in _patterns(context):
        if found := pattern.fullmatch(text):
            return msgstr.format(**found.groupdict())
    return None


@cache
def _patterns(context: str) -> list[tuple[re.Pattern[str], str]]:
    entries = read_catalogue(CATALOGUE.read_text("utf-8"), context)
    return [(re.compile(_pattern(msgid), re.DOTALL), msgstr) for msgid, msgstr in entries]


def read_catalogue(text: str, context: str = "") -> Iterator[tuple[str, str]]:
    """Yield the msgid and the msgstr of each entry of a PO file with the msgctxt `context`. The
    header of the file is left out.
    """
    entry: dict[str, str] = {}
    key = ""
    for line in [*text.splitlines(), "msgctxt"]:
        word, _, rest = line.partition(" ")
        if word in ("msgctxt", "msgid") and "msgstr" in entry:
            if entry.get("msgid") and entry.get("msgctxt", "") == context:
                yield entry["msgid"], entry["msgstr"]
            entry = {}
        if word in ("msgctxt", "msgid", "msgstr"):
            key, entry[word] = word, ""
            line = rest
        if line.startswith('"'):
            entry[key] += ast.literal_eval(line)


def _pattern(msgid: str) -> str:
    """Return a regular expression that matches the messages of a msgid with placeholders such as
    {count}.
    """
    parts = _PLACE.split(msgid)
    return "".join(
        f"(?P<{part}>{_NUMBER if part in _NUMBERS else '.*?'})" if index % 2 else re.escape(part)
        for index, part in enumerate(parts)
    )


_WIDE = "\u2e80-\u9fff\uf900-\ufaff\uff00-\uff60\uffe0-\uffe6"
_NOT_FIRST = "，。；：？！、）》」』”’"
_PIECES = re.compile(rf"\s+|（*(?:[{_WIDE}]|[^\s{_WIDE}]+)[{_NOT_FIRST}]*")
"""The regular expression for the pieces of a text. Lines break only between pieces. A piece is a
wide character or a word, with the punctuation after it.
"""


def has_wide(text: str) -> bool:
    """Return whether the text has characters that are two columns wide on a terminal."""
    return re.search(f"[{_WIDE}]", text) is not None


def columns_of(text: str) -> int:
    """Return the width of the text on a terminal, in columns."""
    return sum(2 if unicodedata.east_asian_width(each) in "WF" else 1 for each in text)


def wrap_wide(text: str, columns: int, *, first: str, later: str) -> list[str]:
    """Cut the text into lines of at most `columns` columns. A longer word, such as a path, is not
    cut.

    The first line begins with the text `first`, and each later line with `later`.
    """
    lines, line = list[str](), first
    for piece in _PIECES.findall(text):
        is_begun = line.strip() or (not lines and line != first)
        if is_begun and columns_of(line + piece.rstrip()) > columns:
            lines.append(line.rstrip())
            line = later
        if not (line == later and lines and piece.isspace()):
            line += piece
    return [*lines, line.rstrip()]

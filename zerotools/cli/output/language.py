"""Hints in the language of the user: English, or Chinese for the most frequent messages.

`zh.po` next to this module has the translations. It is read only to show a message to a user with
the Chinese language, so nothing else pays for it. The message itself stays English, because people
search for it, and so does all JSON.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

ENGLISH, CHINESE = "en", "zh"
VARIABLE = "ZEROTOOLS_LANG"
CATALOGUE = Path(__file__).with_name("zh.po")
_LOCALE = ("LC_ALL", "LC_MESSAGES", "LANG")
_PLACE = re.compile(r"\{(\w+)\}")


def language(environment: Mapping[str, str] = os.environ) -> str:
    """Return `zh` or `en`: of ZEROTOOLS_LANG, otherwise of the locale."""
    chosen = environment.get(VARIABLE, "")
    names = [chosen] if chosen else [environment.get(name, "") for name in _LOCALE]
    name = next(filter(None, names), "")
    return CHINESE if re.match(r"zh(?![a-z])", name.lower()) else ENGLISH


def chinese_hint(message: str) -> str | None:
    """Return the hint in Chinese for a whole message, or None if the catalogue has none."""
    for msgid, msgstr in read_catalogue(CATALOGUE.read_text("utf-8")):
        if found := re.fullmatch(_pattern(msgid), message, re.DOTALL):
            return msgstr.format(**found.groupdict())
    return None


def read_catalogue(text: str) -> Iterator[tuple[str, str]]:
    """Yield each msgid with its msgstr of a PO file; its header is left out."""
    entry: dict[str, str] = {}
    key = ""
    for line in [*text.splitlines(), "msgid"]:
        word, _, rest = line.partition(" ")
        if word == "msgid" and entry.get("msgid"):
            yield entry["msgid"], entry["msgstr"]
        if word in ("msgid", "msgstr"):
            key, entry[word] = word, ""
            line = rest
        if line.startswith('"'):
            entry[key] += ast.literal_eval(line)


def _pattern(msgid: str) -> str:
    """Return the regular expression for a msgid with {places}."""
    parts = _PLACE.split(msgid)
    return "".join(
        f"(?P<{part}>.*?)" if index % 2 else re.escape(part) for index, part in enumerate(parts)
    )

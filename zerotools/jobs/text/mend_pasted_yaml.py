"""Correct YAML that was copied from a web page: spaces, quotes, colons, indentation, and text
around the YAML.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from zerotools.jobs.text.mend_pasted_text import (
    BLANKS,
    DOUBLE,
    INVISIBLE,
    SINGLE,
    Mends,
    is_placeholder,
    without_numbers,
)
from zerotools.jobs.text.parse_errors import placeholder_error

_LINE = re.compile(r"[ ]*([A-Za-z_]\w*)[ ]*:(?:[ ]|$)")
_TIGHT = re.compile(r"([ ]*[A-Za-z_]\w*):(?=[^\s:/\\])")
_WIDE_COLON = re.compile(r"([ ]*[A-Za-z_]\w*)[ ]*\uff1a[ ]*")
_REMARK = re.compile(r"[ ]+//.*$")
_FENCE = re.compile(r"[ ]*(?:```|~~~).*")
_SPACES = str.maketrans(dict.fromkeys(BLANKS, " ") | dict.fromkeys(INVISIBLE, None))
_QUOTES = str.maketrans(
    dict.fromkeys(DOUBLE.replace('"', ""), '"') | dict.fromkeys(SINGLE.replace("'", ""), "'")
)
_ALL_GPUS = re.compile(r"^(\s*gpu_ids\s*:\s*all)[a-z]+\s*$")


@dataclass(frozen=True)
class YamlKeys:
    """The keys of one kind of YAML file. They are used to restore lost indentation.

    `known` has the dotted names of the keys, and `sections` the keys that contain other keys.
    `prefixes` maps a section to the prefix of its keys. Without keys, indentation is not corrected,
    and text around the YAML is not removed.
    """

    known: Collection[str] = ()
    sections: Collection[str] = ()
    prefixes: Mapping[str, str] = field(default_factory=dict)

    def belongs(self, name: str, section: str) -> bool:
        """Return whether the key `name` belongs to `section`."""
        prefix = self.prefixes.get(section)
        in_section = f"{section}.{name}" in self.known
        return in_section or (prefix is not None and name.startswith(prefix))


def mend_yaml(text: str, keys: YamlKeys) -> Mends:
    """Correct the YAML `text`. Return the corrected text, and the line of each correction.

    Raises:
        Broken: the text has an error with several possible corrections.
    """
    mends = Mends()
    lines, offset = without_numbers(text, mends).split("\n"), 0
    for i, line in enumerate(lines):
        if "\u2026" in line and is_placeholder(line):
            raise placeholder_error(offset)
        offset += len(line) + 1
        lines[i] = _characters(line, i + 1, mends)
    _drop_text_around(lines, keys, mends)
    _indent(lines, keys, mends)
    mends.text = "\n".join(lines)
    return mends


def _characters(line: str, number: int, mends: Mends) -> str:
    """Return `line` with typographic characters replaced by ASCII characters.

    Each correction is added to `mends`.
    """
    steps = (
        ("a non-breaking or other odd space", lambda s: s.translate(_SPACES)),
        ("letters after `all` in gpu_ids", lambda s: _ALL_GPUS.sub(r"\1", s)),
        ("a tab in the indentation", _without_tabs),
        ("\uff1a for :", lambda s: _WIDE_COLON.sub(r"\g<1>: ", s, count=1)),
        ("typographic quotes", lambda s: s.translate(_QUOTES) if ":" in s else s),
        ("a comment of another language", lambda s: _REMARK.sub("", s) if ":" in s else s),
        ("no space after the colon", lambda s: _TIGHT.sub(r"\g<1>: ", s, count=1)),
    )
    for what, mend in steps:
        mended = mend(line)
        if mended != line:
            mends.record(number, what)
        line = mended
    return line


def _without_tabs(line: str) -> str:
    body = line.lstrip(" \t")
    return line[: len(line) - len(body)].replace("\t", "  ") + body


def _key(line: str) -> str | None:
    found = _LINE.match(line)
    return found[1] if found else None


def _drop_text_around(lines: list[str], keys: YamlKeys, mends: Mends) -> None:
    """Make lines empty that are not YAML, before the first known key and after the last one. Lines
    with code fences become empty everywhere."""
    known = {name.split(".")[-1] for name in keys.known}
    config = [i for i, line in enumerate(lines) if _key(line) in known]
    for i, line in enumerate(lines):
        fence = _FENCE.fullmatch(line) is not None
        outside = bool(config) and not config[0] <= i <= config[-1]
        strange = _key(line) is None and line.strip() not in ("", "---") and line.strip()[0] != "#"
        if fence or (outside and strange and not line.lstrip().startswith("- ")):
            mends.record(i + 1, "text around the config")
            lines[i] = ""


def _indent(lines: list[str], keys: YamlKeys, mends: Mends) -> None:
    """Indent the keys that belong to the section above them."""
    section = None
    for i, line in enumerate(lines):
        name = _key(line)
        if name is None or line.startswith(" "):
            continue
        if name in keys.sections and line.split(":", 1)[1].split("#")[0].strip() == "":
            section = name
        elif section is not None and name not in keys.known and keys.belongs(name, section):
            mends.record(i + 1, f"lost indentation: {name} belongs to {section}")
            lines[i] = f"  {line}"

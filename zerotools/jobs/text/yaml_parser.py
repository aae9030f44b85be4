"""Parse YAML as accelerate writes it: mappings of scalars and lists, each key with its line.

PyYAML is an extra (`zerotools[yaml]`). Its parser events are read here without recursion. Tags and
anchors, which accelerate never writes, are refused; with anchors, a small document could expand to
a large one. `mend_yaml` corrects YAML that was copied from a web page: spaces, quotes, colons,
indentation.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from types import ModuleType
from typing import Any

from zerotools.core.errors import BadRequest
from zerotools.io.files.optional_packages import package_not_installed
from zerotools.jobs.binding.bind import format_value
from zerotools.jobs.text.config_document import DEEPEST, Document, Trail
from zerotools.jobs.text.json_parser import MAX_DIGITS, mended_too
from zerotools.jobs.text.mend_pasted_text import (
    BLANKS,
    DOUBLE,
    INVISIBLE,
    ODD,
    SINGLE,
    Broken,
    LineIndex,
    Mends,
    character_name,
    correction_message,
    is_placeholder,
    placeholder_error,
    without_numbers,
)

_OUTSIDE = re.compile(
    r"""(?:'[^'\n]*'|"[^"\n]*"|(?<=\s)\#[^\n]*|^\#[^\n]*)|[^'"\n#]+|['"#]""", re.MULTILINE
)
"""Pattern for quoted text, for a comment, and for text outside of both."""
_PLAIN = "tag:yaml.org,2002:"
_CONVERTED = (f"{_PLAIN}null", f"{_PLAIN}bool", f"{_PLAIN}int", f"{_PLAIN}float")


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


def parse_yaml(
    text: str, *, source: str, lenient: bool = False, keys: YamlKeys | None = None
) -> Document:
    """Parse the YAML mapping in `text`.

    If `lenient` is true, first correct typical errors of copy and paste, and list each correction.
    `keys` are the keys that such a file has; they help to correct the indentation.

    Raises:
        BadRequest: the text is not YAML, repeats a key, has an anchor or a tag, or is not a
            mapping.
        Unsupported: PyYAML is not installed.
    """
    yaml = _library(source)
    if lenient:
        return _mended(yaml, text, source, keys)
    try:
        return _read(yaml, text, source)
    except Broken as broken:
        further = mended_too(lambda: _mended(yaml, text, source, keys))
        raise BadRequest(
            correction_message(source, LineIndex(text), broken, "YAML", further)
        ) from None


def _mended(yaml: ModuleType, text: str, source: str, keys: YamlKeys | None) -> Document:
    """Correct the YAML `text`, parse it, and return the tree with the list of corrections.

    Raises BadRequest.
    """
    mends = Mends(text)
    try:
        mends = mend_yaml(text, keys or YamlKeys())
        document = _read(yaml, mends.text, source)
    except Broken as broken:
        raise BadRequest(
            correction_message(source, LineIndex(mends.text), broken, "YAML")
        ) from None
    if mends.text == text:
        return document
    notes = mends.lines_of(source)
    return replace(document, accepted=notes, mended=mends.text)


def _read(yaml: ModuleType, text: str, source: str) -> Document:
    """Parse the YAML `text` into a tree with line numbers. Raises Broken."""
    _refuse_odd_spaces(text)
    builder = _Builder(yaml)
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            builder.take(event)
    except yaml.YAMLError as error:
        raise _broken(error) from None
    if not isinstance(builder.root, dict):
        raise Broken(0, "a config is a mapping, `key: value` on each line", "write one")
    return Document(source, builder.root, builder.lines)


def _refuse_odd_spaces(text: str) -> None:
    """Raise an error if the text has unusual spaces.

    YAML treats these spaces as letters, so a key that is indented with them would be in another
    section.
    """
    for found in _OUTSIDE.finditer(text):
        if found[0][0] in "'\"#" and len(found[0]) > 1:
            continue
        at = next((i for i, c in enumerate(found[0]) if c in ODD), None)
        if at is not None:
            offset = found.start() + at
            raise Broken(
                offset, f"{character_name(text[offset])} stands here", "write a plain space"
            )


def _library(source: str) -> ModuleType:
    try:
        return import_module("yaml")
    except ImportError:
        raise package_not_installed(
            f"{source}: reading YAML", "yaml", "save the config as JSON"
        ) from None


def _broken(error: Any) -> Broken:
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        at = getattr(error, "position", 0)
        return Broken(at if isinstance(at, int) else 0, "a character is not printable", "remove it")
    what = str(getattr(error, "problem", None) or "this cannot be read")
    if "'\\t'" in what:
        return Broken(mark.index, "YAML is not indented with tabs", "write spaces")
    return Broken(mark.index, what, "write `key: value`, each key of a section as far indented")


class _Builder:
    """Builds a tree of plain values from the parser events of PyYAML."""

    def __init__(self, yaml: ModuleType) -> None:
        self._yaml = yaml
        self._loader = yaml.SafeLoader("")
        self.root: Any = None
        self.lines: dict[Trail, int] = {}
        self._open: list[Any] = []
        self._trails: list[Trail] = []
        self._keys: list[str | None] = []
        self._documents = 0

    def take(self, event: Any) -> None:
        """Process the next parser event. Raises Broken."""
        name = type(event).__name__
        at = event.start_mark.index
        if name == "DocumentStartEvent":
            self._documents += 1
            if self._documents > 1:
                raise Broken(at, "a second document begins", "remove it")
        if getattr(event, "anchor", None) is not None:
            raise Broken(at, "an anchor or alias is here", "write the value itself")
        if getattr(event, "tag", None) is not None:
            raise Broken(at, "a tag stands here", "remove it")
        if name in ("MappingStartEvent", "SequenceStartEvent"):
            self._enter({} if name.startswith("M") else [], event)
        elif name in ("MappingEndEvent", "SequenceEndEvent"):
            self._leave()
        elif name == "ScalarEvent":
            self._scalar(event)

    def _enter(self, container: Any, event: Any) -> None:
        if len(self._open) == DEEPEST:
            what = f"this is nested deeper than {DEEPEST} levels"
            raise Broken(event.start_mark.index, what, "flatten it")
        trail = self._add(container, event)
        self._open.append(container)
        self._trails.append(trail)
        self._keys.append(None)

    def _leave(self) -> None:
        self._open.pop()
        self._trails.pop()
        self._keys.pop()

    def _scalar(self, event: Any) -> None:
        if self._open and isinstance(self._open[-1], dict) and self._keys[-1] is None:
            self._key(event)
        else:
            self._add(self._value(event), event)

    def _key(self, event: Any) -> None:
        name, line = str(event.value), event.start_mark.line + 1
        trail = (*self._trails[-1], name)
        if name in self._open[-1]:
            what = f"the key {format_value(name)} is also on line {self.lines[trail]}"
            raise Broken(event.start_mark.index, what, "keep one of the two")
        self.lines[trail] = line
        self._keys[-1] = name

    def _add(self, value: Any, event: Any) -> Trail:
        if not self._open:
            self.root = value
            return ()
        parent, key = self._open[-1], self._keys[-1]
        if isinstance(parent, list):
            parent.append(value)
            return (*self._trails[-1], str(len(parent) - 1))
        if key is None:
            raise Broken(event.start_mark.index, "a key must be plain text", "write `key: value`")
        parent[key] = value
        self._keys[-1] = None
        return (*self._trails[-1], key)

    def _value(self, event: Any) -> Any:
        tag = self._loader.resolve(self._yaml.ScalarNode, event.value, event.implicit)
        if tag not in _CONVERTED:
            return event.value
        if len(event.value) > MAX_DIGITS:
            at = event.start_mark.index
            raise Broken(at, f"this number has {len(event.value)} characters", "shorten it")
        value = self._loader.construct_object(self._yaml.ScalarNode(tag, event.value))
        if isinstance(value, float) and not math.isfinite(value):
            raise Broken(event.start_mark.index, f"{event.value} is not finite", "write a number")
        return value


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
            mends.note(number, what)
        line = mended
    return line


def _without_tabs(line: str) -> str:
    body = line.lstrip(" \t")
    return line[: len(line) - len(body)].replace("\t", "  ") + body


def _key(line: str) -> str | None:
    found = _LINE.match(line)
    return found[1] if found else None


def _drop_text_around(lines: list[str], keys: YamlKeys, mends: Mends) -> None:
    """Make each line empty that is not YAML and stands before the first known key or after the last
    known key. Lines with code fences become empty everywhere.
    """
    known = {name.split(".")[-1] for name in keys.known}
    config = [i for i, line in enumerate(lines) if _key(line) in known]
    for i, line in enumerate(lines):
        fence = _FENCE.fullmatch(line) is not None
        outside = bool(config) and not config[0] <= i <= config[-1]
        strange = _key(line) is None and line.strip() not in ("", "---") and line.strip()[0] != "#"
        if fence or (outside and strange and not line.lstrip().startswith("- ")):
            mends.note(i + 1, "text around the config")
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
            mends.note(i + 1, f"lost indentation: {name} belongs to {section}")
            lines[i] = f"  {line}"

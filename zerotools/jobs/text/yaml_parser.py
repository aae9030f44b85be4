"""Parse YAML as accelerate writes it: mappings of scalars and lists, each key with its line.

PyYAML is an extra (`zerotools[yaml]`). Its parser events are read here without recursion. Tags and
anchors, which accelerate never writes, are refused; with anchors, a small document could expand to
a large one.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from importlib import import_module
from types import ModuleType
from typing import Any

from zerotools.core.errors import BadRequest
from zerotools.io.files.optional_packages import package_not_installed
from zerotools.jobs.binding.bind import format_value
from zerotools.jobs.text.config_document import DEEPEST, Document, Trail
from zerotools.jobs.text.json_parser import MAX_DIGITS, mended_too
from zerotools.jobs.text.mend_pasted_text import ODD, Mends, character_name
from zerotools.jobs.text.mend_pasted_yaml import YamlKeys, mend_yaml
from zerotools.jobs.text.parse_errors import Broken, LineIndex, correction_message

_OUTSIDE = re.compile(
    r"""(?:'[^'\n]*'|"[^"\n]*"|(?<=\s)\#[^\n]*|^\#[^\n]*)|[^'"\n#]+|['"#]""", re.MULTILINE
)
"""Pattern for quoted text, for a comment, and for text outside of both."""
_PLAIN = "tag:yaml.org,2002:"
_CONVERTED = (f"{_PLAIN}null", f"{_PLAIN}bool", f"{_PLAIN}int", f"{_PLAIN}float")


def parse_yaml(
    text: str, *, source: str, lenient: bool = False, keys: YamlKeys | None = None
) -> Document:
    """Parse the YAML mapping in `text`.

    If `lenient` is true, correct typical copying errors first. `accepted` of the result lists them.
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
    """Correct the YAML `text`, parse it, and return it with the corrections.

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
            builder.process(event)
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

    def process(self, event: Any) -> None:
        """Process the next parser event. Raises Broken."""
        name = type(event).__name__
        at = event.start_mark.index
        if name == "DocumentStartEvent":
            self._documents += 1
            if self._documents > 1:
                raise Broken(at, "a second document begins here", "remove the second document")
        if getattr(event, "anchor", None) is not None:
            raise Broken(at, "an anchor or alias is here", "write the value itself")
        if getattr(event, "tag", None) is not None:
            raise Broken(at, "a tag stands here", "remove the tag")
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

"""Parse JSON strictly, and report line and column of an error together with the likely correction.

People often copy JSON from web pages, so such errors are common. `Scanner` yields the tokens of
JSON (RFC 8259).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from zerotools.core.counts_and_sizes import count_text
from zerotools.core.errors import BadRequest
from zerotools.jobs.binding.bind import format_value
from zerotools.jobs.text.config_document import DEEPEST, Document, Trail
from zerotools.jobs.text.mend_pasted_json import mend_json
from zerotools.jobs.text.mend_pasted_text import ODD, character_name, is_placeholder
from zerotools.jobs.text.parse_errors import (
    Broken,
    LineIndex,
    bad_string,
    bad_word,
    correction_message,
    placeholder_error,
)

_CLOSES = {"{": "}", "[": "]"}


MAX_DIGITS = 400
_SPACE = re.compile(r"[ \t\r\n]*")
_COMMENT = re.compile(r"#[^\n]*|//[^\n]*|/\*.*?\*/", re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]++|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+"')
_WORD = re.compile(r"[^\s{}\[\]:,\"#/]+")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_LITERALS = {"true": True, "false": False, "null": None}
_COMMENTS = ("#", "//", "/*")


def parse_json(text: str, *, source: str, lenient: bool = False) -> Document:
    """Parse the JSON object in `text`.

    If `lenient` is true, correct typical copying errors first. `accepted` of the result lists them.

    Raises:
        BadRequest: the text is not JSON, or an object repeats a key; the message shows the line,
            and the likely correction.
    """
    parser = _Parser(text)
    try:
        return Document(source, parser.whole(), parser.lines, text=text)
    except Broken as broken:
        if lenient:
            return _mended(text, source)
        further = mended_too(lambda: _mended(text, source))
        raise BadRequest(
            correction_message(source, parser.places, broken, further=further)
        ) from None


def _mended(text: str, source: str) -> Document:
    """Correct the JSON `text`, parse it, and return it with the corrections.

    Raises BadRequest.
    """
    try:
        mends = mend_json(text)
    except Broken as broken:
        raise BadRequest(correction_message(source, LineIndex(text), broken)) from None
    parser = _Parser(mends.text)
    try:
        tree = parser.whole()
    except Broken as broken:
        raise BadRequest(correction_message(source, parser.places, broken)) from None
    notes = mends.lines_of(source)
    return Document(source, tree, parser.lines, notes, text=text, mended=mends.text)


def mended_too(mended: Callable[[], Document]) -> str:
    """Return a sentence that says how many errors `--lenient` would correct.

    Return the empty string if `--lenient` could not correct the text.
    """
    try:
        count = len(mended().accepted)
    except BadRequest:
        return ""
    others = f" and {count_text(count - 1, 'more error')}" if count > 1 else ""
    return f" (--lenient repairs this{others}, and shows the result)"


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self.places = LineIndex(text)
        self.scanner = Scanner(text)
        self.lines: dict[Trail, int] = {}
        self._open: list[Token] = []
        self._suspect: tuple[int, str] | None = None

    def whole(self) -> dict[str, Any]:
        first = self._first()
        if first.kind == "end":
            raise Broken(first.start, "the file is empty", "write { } at least")
        if first.kind != "{":
            raise Broken(first.start, "a config begins with {", "put { before it, and } at its end")
        tree = self._object(first, ())
        rest = self.scanner.next()
        if rest.kind == "}":
            raise Broken(rest.start, "this } has no matching {", "remove it, or a } before it")
        if rest.kind != "end":
            raise Broken(rest.start, "the object has ended before this text", "remove the text")
        return tree

    def _first(self) -> Token:
        try:
            return self.scanner.next()
        except Broken as broken:
            if self._text.find("{") > broken.offset and "without quotes" in broken.what:
                what = "there is text before the first {"
                raise Broken(broken.offset, what, "remove the text") from None
            raise

    def _value(self, token: Token, trail: Trail) -> Any:
        if token.kind == "{":
            return self._object(token, trail)
        if token.kind == "[":
            return self._list(token, trail)
        if token.kind in ("string", "scalar"):
            return token.value
        if token.kind == "end":
            raise self._unclosed(token)
        raise Broken(token.start, "a value is missing here", "write one, such as true or 1")

    def _object(self, opener: Token, trail: Trail) -> dict[str, Any]:
        self._enter(opener)
        tree: dict[str, Any] = {}
        token = self.scanner.next()
        while token.kind != "}":
            name = self._key(token, trail, tree)
            tree[name] = self._value(self.scanner.next(), (*trail, name))
            if is_placeholder(name) and is_placeholder(str(tree[name])):
                raise placeholder_error(token.start)
            token = self._separator(opener)
        self._open.pop()
        return tree

    def _list(self, opener: Token, trail: Trail) -> list[Any]:
        self._enter(opener)
        entries: list[Any] = []
        token = self.scanner.next()
        while token.kind != "]":
            entries.append(self._value(token, (*trail, str(len(entries)))))
            token = self._separator(opener)
        self._open.pop()
        return entries

    def _enter(self, opener: Token) -> None:
        self._open.append(opener)
        if len(self._open) > DEEPEST:
            raise Broken(opener.start, f"this is nested deeper than {DEEPEST} levels", "flatten it")

    def _key(self, token: Token, trail: Trail, tree: dict[str, Any]) -> str:
        if token.kind == "end":
            raise self._unclosed(token)
        if token.kind != "string":
            what = "a key must be a string" if token.kind == "scalar" else "a key is missing here"
            raise Broken(token.start, what, 'write "key": value')
        name = str(token.value)
        line = self.places.number(token.start)
        if name in tree:
            raise Broken(
                token.start,
                f"the key {format_value(name)} is also on line {self.lines[(*trail, name)]}",
                "keep one of the two",
            )
        self.lines[(*trail, name)] = line
        self._watch_indentation(token, name)
        colon = self.scanner.next()
        if colon.kind != ":" and is_placeholder(name):
            raise placeholder_error(token.start)
        if colon.kind != ":":
            raise Broken(
                token.end, f"a colon is missing after {format_value(name)}", "write : there"
            )
        return name

    def _separator(self, opener: Token) -> Token:
        """Read the token after a member of an object or list.

        Return the first token of the next member, or the closing token of `opener`.
        """
        before = self.scanner.at
        token = self.scanner.next()
        closer = _CLOSES[opener.kind]
        if token.kind == ",":
            after = self.scanner.next()
            if after.kind == closer:
                raise Broken(token.start, f"a comma stands before {closer}", "remove the comma")
            if after.kind == ",":
                raise Broken(after.start, "two commas follow each other", "remove one")
            if after.kind == "end":
                raise self._unclosed(after)
            return after
        if token.kind == closer:
            return token
        if token.kind == "end":
            raise self._unclosed(token)
        if token.kind in ("]", "}"):
            line = self.places.number(opener.start)
            what = f"{token.kind} closes the {opener.kind} of line {line}"
            raise Broken(token.start, what, f"write {closer} here, or add a {closer} before it")
        raise Broken(before, "a comma is missing here", "write , after the value")

    def _watch_indentation(self, token: Token, name: str) -> None:
        """Record the first key that is not indented more than the line that opens its object.

        Such a key shows that a } is missing before it.
        """
        opened = self.places.number(self._open[-1].start)
        line = self.places.number(token.start)
        if self._suspect is None and len(self._open) > 1 and line != opened:
            indent = self.places.indent(line)
            starts_line = self.places.column(token.start) == indent + 1
            if starts_line and indent <= self.places.indent(opened):
                self._suspect = (opened, name)

    def _unclosed(self, end: Token) -> Broken:
        opener = self._open[-1]
        line = self.places.number(opener.start)
        closer = _CLOSES[opener.kind]
        if self._suspect is not None:
            opened, name = self._suspect
            what = f"the file ends before a {closer}: the {{ of line {opened} seems to lack its }}"
            return Broken(end.start, what, f"add the }} before {format_value(name)}")
        what = f"the file ends, and the {opener.kind} of line {line} is not closed"
        return Broken(end.start, what, f"add {closer}")


@dataclass(frozen=True, slots=True)
class Token:
    """A token of JSON.

    `kind` is the character itself for `{}[]:,`, else "string", "scalar" or "end".
    """

    kind: str
    value: Any
    start: int
    end: int


class Scanner:
    """Splits the JSON `text` into tokens, one after another."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    @property
    def at(self) -> int:
        """The position in the text after the last token."""
        return self._at

    def next(self) -> Token:
        """Return the next token. Raises Broken if the text is not a token."""
        self._skip()
        text, at = self._text, self._at
        if at == len(text):
            return Token("end", None, at, at)
        if text[at] in "{}[]:,":
            return self._make_token(text[at], None, at + 1)
        if text[at] == '"':
            found = _STRING.match(text, at)
            if found is None:
                raise bad_string(text, at)
            return self._make_token("string", json.loads(found[0]), found.end())
        if text[at] in ODD:
            raise Broken(at, f"{character_name(text[at])} stands here", "write a plain space")
        word = _WORD.match(text, at)
        if word is None:  # a lone slash
            raise Broken(at, f"{text[at]!r} has no meaning here", "remove it")
        if is_placeholder(word[0]):
            raise placeholder_error(at)
        return self._make_token("scalar", self._scalar(word[0]), word.end())

    def _make_token(self, kind: str, value: Any, end: int) -> Token:
        start, self._at = self._at, end
        return Token(kind, value, start, end)

    def _skip(self) -> None:
        space = _SPACE.match(self._text, self._at)
        assert space is not None
        self._at = space.end()
        if self._text.startswith(_COMMENTS, self._at):
            if _COMMENT.match(self._text, self._at) is None:
                raise Broken(self._at, "a comment begins with /* and never ends", "add */")
            raise Broken(self._at, "JSON has no comments", "remove the comment")

    def _scalar(self, word: str) -> Any:
        if word in _LITERALS:
            return _LITERALS[word]
        number = _NUMBER.fullmatch(word)
        if number is None:
            raise bad_word(self._at, word)
        if len(word) > MAX_DIGITS:
            raise Broken(self._at, f"this number has {len(word)} characters", "shorten it")
        if number[1] is None and number[2] is None:
            return int(word)
        value = float(word)
        if not math.isfinite(value):
            raise Broken(self._at, f"{word} is larger than any number", "write a smaller one")
        return value

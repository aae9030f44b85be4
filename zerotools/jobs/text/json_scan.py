"""The tokens of JSON text (RFC 8259), and text in the position of a token."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any

from zerotools.jobs.text.characters import ODD, character_name, is_placeholder, placeholder
from zerotools.jobs.text.mends import Broken, bad_string, bad_word

MAX_DIGITS = 400

_SPACE = re.compile(r"[ \t\r\n]*")
_COMMENT = re.compile(r"#[^\n]*|//[^\n]*|/\*.*?\*/", re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]++|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+"')
_WORD = re.compile(r"[^\s{}\[\]:,\"#/]+")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_LITERALS = {"true": True, "false": False, "null": None}
_COMMENTS = ("#", "//", "/*")


@dataclass(frozen=True, slots=True)
class Token:
    """`kind` is the character itself for `{}[]:,`, else "string", "scalar" or "end"."""

    kind: str
    value: Any
    start: int
    end: int


class Scanner:
    """Tokens of `text`, one after another."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    @property
    def at(self) -> int:
        """Offset of the end of the last token."""
        return self._at

    def next(self) -> Token:
        """Return the next token. Raises Broken."""
        self._skip()
        text, at = self._text, self._at
        if at == len(text):
            return Token("end", None, at, at)
        if text[at] in "{}[]:,":
            return self._take(text[at], None, at + 1)
        if text[at] == '"':
            found = _STRING.match(text, at)
            if found is None:
                raise bad_string(text, at)
            return self._take("string", json.loads(found[0]), found.end())
        if text[at] in ODD:
            raise Broken(at, f"{character_name(text[at])} stands here", "write a plain space")
        word = _WORD.match(text, at)
        if word is None:  # a lone slash
            raise Broken(at, f"{text[at]!r} has no meaning here", "remove it")
        if is_placeholder(word[0]):
            raise placeholder(at)
        return self._take("scalar", self._scalar(word[0]), word.end())

    def _take(self, kind: str, value: Any, end: int) -> Token:
        start, self._at = self._at, end
        return Token(kind, value, start, end)

    def _skip(self) -> None:
        space = _SPACE.match(self._text, self._at)
        assert space is not None
        self._at = space.end()
        if self._text.startswith(_COMMENTS, self._at):
            if _COMMENT.match(self._text, self._at) is None:
                raise Broken(self._at, "a comment begins with /* and never ends", "add */")
            raise Broken(self._at, "JSON has no comments", "remove it")

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

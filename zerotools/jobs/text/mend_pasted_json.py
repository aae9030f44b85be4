"""Correct errors in JSON that was copied from a web page: quotes, punctuation, commas, comments,
and text around the JSON.

One pass over the text writes the corrected text. The strict parser then reads the result, so this
module never accepts text that is not JSON.
"""

from __future__ import annotations

import json
import re
import unicodedata

from zerotools.jobs.text.mend_pasted_text import (
    BLANKS,
    DOUBLE,
    INVISIBLE,
    ODD,
    SINGLE,
    WIDE,
    Mends,
    is_placeholder,
    without_numbers,
)
from zerotools.jobs.text.parse_errors import Broken, LineIndex, bad_word, placeholder_error

_COMMENT = re.compile(r"#[^\n]*|//[^\n]*|/\*.*?\*/", re.DOTALL)
_NO_WORD = re.escape(DOUBLE + SINGLE + INVISIBLE + "".join(WIDE))
_WORD = re.compile(rf"(?:(?!//|/\*)[^\s{{}}\[\]():,;=#{_NO_WORD}])+")
_QUOTE = re.escape(DOUBLE + SINGLE)
_SETTING = re.compile(rf"[{_QUOTE}]\w+[{_QUOTE}][ \t{ODD}]*[:\uff1a]")
_COLON = re.compile(rf"[ \t{ODD}]*[:=\uff1a\uff1d]")
_NEXT_SETTING = re.compile(rf"[ \t{ODD}]+{_SETTING.pattern}")
"""Pattern for text after a quote.

If it matches, the quote ends a value, and the comma before the next setting on the same line is
missing.
"""
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_LITERALS = {"true": "true", "false": "false", "none": "null", "null": "null"}
_NAME = re.compile(r"[A-Za-z_][\w./@-]*")
_BRACKETS = {"(": "[", ")": "]"}
_AFTER = r"[:,;=}\])\uff1a\uff0c\uff1b\uff1d\uff5d\uff3d]"
_ENDS_STRING = re.compile(rf"[ \t\u00a0\u3000]*(?:{_AFTER}|#|//|/\*|\r?\n|$)")


def mend_json(text: str) -> Mends:
    """Correct the JSON `text`. Return the corrected text, and the line of each correction.

    Raises:
        Broken: an error that could only be corrected by a guess.
    """
    mends = Mends()
    pen = _Pen(without_numbers(text, mends), mends)
    pen.write()
    mends.text = "".join(pen.out)
    return mends


_ALONE = re.compile(r"""\s*(?:\}|:\s*["']?(?:\.{2,}|\u2026)+)""")
"""Pattern for text after quoted dots.

If it matches (the end, or dots again), the dots stand for omitted settings. Otherwise they are a
key.
"""


class _Pen:
    def __init__(self, text: str, mends: Mends) -> None:
        self.text = text
        self.mends = mends
        self.places = LineIndex(text)
        self.at = 0
        self.out: list[str] = []
        self._last = "open"
        """The kind of the last token that was written: open, key, colon, value or comma."""
        self._end = 0
        """The index in the list `out` after the last value, or after the last comma."""
        self._comma_line = 0
        self._depth = 0

    def write(self) -> None:
        wrapped = self._begin()
        while self.at < len(self.text):
            if self._space() or self._comment():
                continue
            if self._depth == 0 and self._last == "value":
                self._rest()
                return
            self._token()
        if wrapped:
            self._close("}")

    def _record(self, what: str, at: int | None = None) -> None:
        self.mends.record(self.places.number(self.at if at is None else at), what)

    def _begin(self) -> bool:
        """Skip the text before the first brace.

        If the text has no outer braces, add the opening brace and return True.
        """
        while self.at < len(self.text) and (self._space() or self._comment()):
            pass
        start = min((i for i in map(self.text.find, ("{", "\uff5b")) if i >= 0), default=-1)
        first = self.text[self.at : self.at + 1]
        if first and first in DOUBLE + SINGLE:
            self._record("the outer braces are missing")
            self.out.append("{")
            self._depth, self._last = 1, "open"
            return True
        if start < 0:
            raise Broken(self.at, "a config begins with {", "put { before it, and } at its end")
        if start > self.at:
            self._refuse_settings(self.at, start)
            self._record("text before the first {")
            self.out.append("\n" * self.text.count("\n", self.at, start))
            self.at = start
        return False

    def _rest(self) -> None:
        """Raise an error if a second object follows the first."""
        rest = self.text[self.at :]
        again = min((i for i in map(rest.find, ("{", "\uff5b")) if i >= 0), default=-1)
        if again >= 0:
            raise Broken(self.at + again, "a second object begins here", "keep only the config")
        if rest.lstrip(ODD + " \t\r\n").startswith(("}", "]", "\uff5d", ",", "\uff0c")):
            what = "this character closes or continues an object, but the object has already ended"
            raise Broken(self.at, what, "remove it, or a } before it")
        self._refuse_settings(self.at, len(self.text))
        self._record("text after the last }")
        self.at = len(self.text)

    def _refuse_settings(self, start: int, end: int) -> None:
        """Raise an error if the text from `start` to `end`, which is outside of the object,
        contains settings.
        """
        found = _SETTING.search(self.text, start, end)
        if found is not None:
            what = "this setting stands outside of the object"
            raise Broken(found.start(), what, "put it between the outer braces, or remove it")

    def _space(self) -> bool:
        character = self.text[self.at]
        if character in " \t\r\n":
            self.out.append(character)
        elif character in BLANKS:
            self._record("a non-breaking or other odd space")
            self.out.append(" ")
        elif character in INVISIBLE:
            self._record("an invisible character")
        else:
            return False
        self.at += 1
        return True

    def _comment(self) -> bool:
        if not self.text.startswith(("#", "//", "/*"), self.at):
            return False
        found = _COMMENT.match(self.text, self.at)
        if found is None:
            raise Broken(self.at, "a comment begins with /* and never ends", "add */")
        self._record("a comment")
        self.out.append("\n" * found[0].count("\n"))
        self.at = found.end()
        return True

    def _token(self) -> None:
        character = self.text[self.at]
        plain = WIDE.get(character, character)
        if plain != character:
            self._record(f"{character} for {plain}")
        if plain in _BRACKETS:
            self._record(f"{plain} for {_BRACKETS[plain]}")
            plain = _BRACKETS[plain]
        if plain in "{[":
            self._member()
            self._append(plain, "open")
            self._depth += 1
            self.at += 1
        elif plain in "}]":
            self._close(plain)
            self.at += 1
        elif plain in ":=":
            self._colon(plain)
        elif plain in ",;":
            self._comma(plain)
        elif character in DOUBLE + SINGLE:
            self._string()
        else:
            self._word()

    def _append(self, piece: str, kind: str) -> None:
        self.out.append(piece)
        self._last, self._end = kind, len(self.out)

    def _member(self) -> None:
        """If the next key or value directly follows another value, insert the missing comma before
        it.
        """
        if self._last == "value":
            line = self.places.number(self.at)
            before = "".join(self.out[self._end :]).count("\n")
            self.mends.record(line - before, "a missing comma")
            self.out.insert(self._end, ",")

    def _close(self, closer: str) -> None:
        if self._last == "comma":
            self.mends.record(self._comma_line, "a trailing comma")
            self.out[self._end - 1] = ""
        self._append(closer, "value")
        self._depth -= 1

    def _colon(self, plain: str) -> None:
        if plain == "=":
            self._record("= for :")
            self.at += self.text.startswith("=>", self.at)
        self.at += 1
        self._append(":", "colon")

    def _comma(self, plain: str) -> None:
        if plain == ";":
            self._record("; for ,")
        if self._last in ("comma", "open"):
            self._record("an extra comma")
        else:
            self._append(",", "comma")
            self._comma_line = self.places.number(self.at)
        self.at += 1

    def _string(self) -> None:
        opener = self.text[self.at]
        kind = DOUBLE if opener in DOUBLE else SINGLE
        end = self._closer(kind, opener)
        inner = self.text[self.at + 1 : end]
        if is_placeholder(inner) and _ALONE.match(self.text, end + 1):
            raise placeholder_error(self.at)
        self._member()
        if opener == '"' and self.text[end] == '"':
            piece = self.text[self.at : end + 1]
        else:
            self._record("single quotes" if kind is SINGLE else "typographic quotes")
            piece = json.dumps(inner, ensure_ascii=False)
        if any(c in ODD for c in (inner[:1], inner[-1:]) if c):
            self._record("a non-breaking or other odd space")
            piece = f'"{piece[1:-1].strip(ODD)}"'
        self._append(piece, "value")
        self.at = end + 1
        self._key()

    def _closer(self, kind: str, opener: str) -> int:
        """Return the position of the quote that ends the string at the current position.

        This is the first quote of the same kind that is followed by a JSON token.
        """
        at = self.at + 1
        while at < len(self.text) and self.text[at] != "\n":
            if self.text[at] == "\\" and opener == '"':
                at += 2
                continue
            if self.text[at] in kind and (
                _ENDS_STRING.match(self.text, at + 1) or _NEXT_SETTING.match(self.text, at + 1)
            ):
                return at
            at += 1
        later = self.text.find(opener, self.at + 1)
        newline = self.text.find("\n", self.at)
        if 0 <= later < (newline if newline >= 0 else len(self.text)):
            return later
        raise Broken(self.at, "this string is not closed on its line", 'add "')

    def _key(self) -> None:
        """If a colon follows the last token, record that the token is a key, so that no comma is
        inserted between the key and its value.
        """
        if _COLON.match(self.text, self.at):
            self._last = "key"

    def _word(self) -> None:
        found = _WORD.match(self.text, self.at)
        if found is None:
            what = f"{self.text[self.at]!r} has no meaning here"
            raise Broken(self.at, what, "remove it")
        word = found[0]
        if is_placeholder(word):
            raise placeholder_error(self.at)
        self._member()
        self._append(self._meant(word), "value")
        self.at = found.end()
        self._key()

    def _meant(self, word: str) -> str:
        if word in _LITERALS.values() or _NUMBER.fullmatch(word):
            return word
        if word.lower() in _LITERALS and word[:1].isalpha():
            meant = _LITERALS[word.lower()]
            self._record(f"{word} for {meant}")
            return meant
        number = _number(word)
        if number is not None:
            self._record(f"{word} for {number}")
            return number
        wrong = bad_word(self.at, word)
        if not _NAME.fullmatch(word) or "without quotes" not in wrong.what:
            raise wrong
        self._record(f"{word} without quotes")
        return json.dumps(word)


def _number(word: str) -> str | None:
    """Convert a number such as `.5`, `5.`, `+1`, `1_000`, or one with full-width digits, to the
    form of JSON. Return None if `word` is not such a number.
    """
    plain = unicodedata.normalize("NFKC", word).replace("_", "").removeprefix("+")
    plain = re.sub(r"^(-?)\.", r"\g<1>0.", plain)
    plain = re.sub(r"\.(?=$|[eE])", ".0", plain)
    return plain if _NUMBER.fullmatch(plain) else None

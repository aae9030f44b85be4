r"""Split a shell script into commands and words, as bash would pass them to programs.

No command is run. The parser resolves quotes, a backslash at the end of a line, comments,
redirections and variables that the script itself sets. If only a shell could compute the value of a
word (`$(...)`, an external variable), the reason is recorded as the `problem` of the word. The
caller refuses the command only if it needs that word.

    LR=1e-4                          -> sets LR
    deepspeed main.py \              -> deepspeed, main.py, --lr, 1e-4   (line 2)
      --lr $LR > log.txt &
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from zerotools.core.errors import BadRequest
from zerotools.jobs.imports.programs.shell_arithmetic import worked_out
from zerotools.jobs.imports.programs.shell_branches import Branches

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SET = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=")
_DEFAULTED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*|[1-9]):?([-=])([^{}$`]*)")
_ARRAY = re.compile(r"(\"?)\$\{([A-Za-z_][A-Za-z0-9_]*)\[[@*]\]\}\1(?=[ \t\n;|&]|$)")
_BLANK_OR_WHOLE = re.compile(r"[ \t\n]+|\$\((?:[^()]|\([^()]*\))*\)|`[^`]*`|\$\{[^}]*\}")
_EXPR = re.compile(r"\(\s*expr\s+([^()`]*)\)")
_PWD = re.compile(r"\(\s*pwd\s*\)")
_ARMS = frozenset(("then", "else", "elif", "do", "{"))
_MOST_LETTERS = 1 << 16
"""The largest number of characters of one word.

Without this limit, variables that contain each other could grow without end.
"""
_HERE = re.compile(r"<<-?\s*(['\"]?)([A-Za-z_][A-Za-z0-9_]*)\1")
_REDIRECTS = re.compile(r"(?:\d*|&)(?:>>|>\||>&|<&|>|<)")
_END_OF_WORD = " \t\n;|&()<>"
UNSET = "is not set in the text; write its value"
ARGUMENT = "is an argument of the script; write its value"
LOOP = "is the variable of a loop; write its value"
REST = "stands for the arguments of the script; write them out"


@dataclass(frozen=True)
class Word:
    """One word of a command.

    If the text of the word is not known, `problem` is the reason. `written` is the word as it is in
    the script, with its unknown parts such as `$LR`.
    """

    text: str
    line: int
    problem: str = ""
    written: str = ""

    @property
    def source(self) -> str:
        """The text of the word; if the text is not known, the word as it is in the script."""
        return self.written if self.problem else self.text


@dataclass
class Command:
    """The words of a simple command, and the variables that are set in front of it.

    Attributes:
        by: the words of another command that runs this command in a new shell, such as `srun bash
            -c`; empty if the script itself runs this command.
        documents: path of a file -> the here-document that `cat` or `tee` writes to this file.
    """

    words: list[Word] = field(default_factory=list)
    settings: dict[str, Word] = field(default_factory=dict)
    documents: dict[str, str] = field(default_factory=dict)
    by: list[Word] = field(default_factory=list)
    skipped: bool = False
    """True if the command is in a branch that certainly does not run."""


def commands_of(text: str, source: str) -> Iterator[Command]:
    """Yield the commands of the shell script `text`, in order.

    `source` names the script in messages.

    Raises:
        BadRequest: a quote is not closed.
    """
    scanner = _Scanner(text, source)
    while not scanner.at_end:
        command = scanner.command()
        if (command.words or command.settings) and not command.skipped:
            yield command


@dataclass
class _Text:
    """The text of a word while the scanner reads it."""

    line: int
    text: str = ""
    problem: str = ""
    written: str = ""
    stands: bool = False
    """True if the word exists even if its text is empty, because it has quotes or an unknown
    part.
    """
    before: list[Word] = field(default_factory=list)

    def begin_next(self) -> None:
        self.before = self.words()
        self.text, self.written, self.problem, self.stands = "", "", "", False

    def add(self, text: str, written: str | None = None) -> None:
        """Append `text` to the word.

        If the script has other characters in place of `text`, `written` is the text in the script.
        """
        self.text += text
        self.written += text if written is None else written

    def words(self) -> list[Word]:
        """Return the words that were read. An empty word without quotes is left out."""
        if not self.text and not self.stands:
            return self.before
        return [*self.before, Word(self.text, self.line, self.problem, self.written)]


def _problem(parts: list[Word]) -> str:
    return next((part.problem for part in parts if part.problem), "")


class _Scanner:
    def __init__(self, text: str, source: str) -> None:
        self._text = text.replace("\r\n", "\n")
        self._source = source
        self._at = 0
        self._line = 1
        self._variables: dict[str, Word] = {}
        self._arrays: dict[str, list[Word]] = {}
        self._set_in: dict[str, tuple[tuple[int, int], ...]] = {}
        self._branches = Branches()
        self._cut = False
        self._here: list[tuple[str, bool]] = []
        self._texts: list[str] = []
        self._target: str | None = None
        self._moved = False

    @property
    def at_end(self) -> bool:
        return self._at >= len(self._text)

    def command(self) -> Command:
        """Return the next command, which may be empty."""
        command = Command()
        self._cut = False
        loops = False
        while (begins := self._begins()) != "\n":
            if begins == ">":
                self._redirect()
                continue
            parts = self._word()
            if self._cut:
                continue  # bash passes on a blank, which has no effect
            word = Word(
                " ".join(part.text for part in parts),
                self._line,
                _problem(parts),
                " ".join(part.source for part in parts),
            )
            setting = _SET.match(word.text)
            if setting and all(each.text in _ARMS for each in command.words):
                command.settings[setting[1]] = self._assigned(setting, word)
                if self._peek() == "(" and not word.text[setting.end() :]:
                    self._read_array(setting[1])
            else:
                if not command.words and not word.problem:
                    self._branches.enter_and_leave(word.text)
                    loops = word.text in ("for", "select")
                elif loops and len(command.words) == 1 and word.text:
                    loops = False
                    self._set(word.text, Word("", word.line, LOOP))
                command.words += parts
        command.skipped = self._branches.is_skipped
        if not command.skipped:
            self._remember(command)
            self._write_documents(command)
        self._texts, self._target = [], None
        return command

    def _write_documents(self, command: Command) -> None:
        names = [word.text for word in command.words if not word.text.startswith("-")]
        target = self._target
        if names[:1] == ["tee"]:
            target = names[1] if len(names) > 1 else target
        if self._texts and target is not None and names[:1] in (["cat"], ["tee"]):
            command.documents[target] = self._texts[-1]
        if self._texts and names[:1] == ["read"] and _NAME.fullmatch(names[-1]):
            self._set(names[-1], self._document(self._texts[-1]))

    def _document(self, text: str) -> Word:
        """Return the text of a here-document, in which variables are replaced by their values."""
        inner = _Scanner(text.replace('"', '\\"') + '"', self._source)
        inner._line = self._line - text.count("\n")
        inner._variables, inner._arrays = self._variables, self._arrays
        inner._set_in, inner._branches = self._set_in, self._branches
        word = _Text(inner._line)
        inner._double(word)
        return Word(word.text, word.line, word.problem, word.written)

    def _remember(self, command: Command) -> None:
        words = command.words
        while words and words[0].text in _ARMS:
            words = words[1:]
        if [word.text for word in command.words[:1]] == ["if"]:
            # The script is read as if it was run without arguments.
            self._branches.choose(is_first=_is_empty(command.words[1:]))
        if not words:
            for name, value in command.settings.items():
                self._set(name, value)
        elif words[0].text in ("cd", "pushd"):
            self._moved = True
        elif words[0].text in ("export", "declare", "local", "readonly"):
            for word in words[1:]:
                if setting := _SET.match(word.text):
                    value = self._assigned(setting, word)
                    self._set(setting[1], value)
                    command.settings[setting[1]] = value

    def _assigned(self, setting: re.Match[str], word: Word) -> Word:
        """Return the new value of a variable after `NAME=value` or `NAME+=value`."""
        value = Word(
            word.text[setting.end() :], word.line, word.problem, word.written[setting.end() :]
        )
        before = self._variables.get(setting[1])
        if not setting[2] or before is None:
            return value
        return Word(
            before.text + value.text,
            word.line,
            before.problem or value.problem,
            before.source + value.source,
        )

    def _set(self, name: str, value: Word) -> None:
        if self._branches.is_open and value.problem.endswith(ARGUMENT) and name in self._variables:
            return  # a loop over the script's arguments, of which there are none
        self._variables[name] = value
        self._set_in[name] = self._branches.within

    def _read_array(self, name: str) -> None:
        self._consume()
        words: list[Word] = []
        while not self.at_end and self._peek() != ")":
            if self._peek() in " \t\n":
                self._consume()
            elif self._peek() == "#":
                self._consume(self._until("\n"))
            elif self._peek() in _END_OF_WORD:
                self._consume()
            else:
                words += self._word()
        self._consume()
        self._arrays[name] = words

    def _peek(self, count: int = 1) -> str:
        return self._text[self._at : self._at + count]

    def _consume(self, count: int = 1) -> str:
        taken = self._text[self._at : self._at + count]
        self._line += taken.count("\n")
        self._at += count
        return taken

    def _begins(self) -> str:
        """Skip blanks and comments, and return the kind of the next token.

        Return `w` before a word, and `>` before a redirection. At the end of a command, move past
        the end and return a line break.
        """
        while not self.at_end:
            if self._peek(2) == "\\\n":
                self._consume(2)
            elif self._peek() in " \t":
                self._consume()
            elif self._peek() == "#":
                self._consume(self._until("\n"))
            elif self._peek(2) == "<<" or _REDIRECTS.match(self._text, self._at):
                return ">"
            elif self._peek() in "\n;|&()":
                if self._peek(2) == ";;":
                    self._consume()
                    self._branches.next_arm()
                if self._consume() == "\n":
                    self._skip_documents()
                return "\n"
            else:
                return "w"
        return "\n"

    def _until(self, end: str) -> int:
        found = self._text.find(end, self._at)
        return (len(self._text) if found < 0 else found) - self._at

    def _redirect(self) -> None:
        here = _HERE.match(self._text, self._at)
        if here is not None:
            self._here.append((here[2], bool(here[1])))
            self._consume(len(here[0]))
            return
        found = _REDIRECTS.match(self._text, self._at)
        self._consume(len(found[0]) if found else 2)
        while self._peek() in (" ", "\t"):
            self._consume()
        if not self.at_end and self._peek() not in _END_OF_WORD:
            words = self._word()
            if found is not None and found[0] in (">", ">>", ">|") and len(words) == 1:
                self._target = None if words[0].problem else words[0].text

    def _skip_documents(self) -> None:
        for end, _ in self._here:
            text = ""
            while not self.at_end:
                line = self._consume(self._until("\n") + 1)
                if line.strip() == end:
                    break
                text += line
            self._texts.append(text)
        self._here = []

    def _word(self) -> list[Word]:
        """Return the words at this position.

        One word in the script may become several words or no word, if it has variables outside of
        quotes.
        """
        array = _ARRAY.match(self._text, self._at)
        if array is not None and array[2] in self._arrays:
            self._consume(len(array[0]))
            return [replace(each, line=self._line) for each in self._arrays[array[2]]]
        word = _Text(self._line)
        while not self.at_end and self._peek() not in _END_OF_WORD:
            character = self._consume()
            if character == "'":
                word.add(self._quoted("'"))
                word.stands = True
            elif character == '"':
                self._double(word)
                word.stands = True
            elif character == "\\":
                self._escape(word)
            elif character in "$`":
                self._split(word, character)
            else:
                word.add(character)
        return word.words()

    def _quoted(self, quote: str) -> str:
        line = self._line
        count = self._until(quote)
        if self._at + count >= len(self._text):
            raise self._unclosed(quote, line)
        return self._consume(count + 1)[:-1]

    def _unclosed(self, quote: str, line: int) -> BadRequest:
        return BadRequest(
            f"{self._source}:{line}: the quote {quote} is not closed; write it at the end of the "
            "value"
        )

    def _double(self, word: _Text) -> None:
        line = self._line
        while not self.at_end:
            character = self._consume()
            if character == '"':
                return
            if character == "\\" and self._peek() in ("$", "`", '"', "\\", "\n"):
                escaped = self._consume()
                word.add("" if escaped == "\n" else escaped)
            elif character in "$`":
                self._expand(word, character)
            else:
                word.add(character)
        raise self._unclosed('"', line)

    def _escape(self, word: _Text) -> None:
        if self._peek() == "\n":
            self._consume()
            return
        if self._peek() in (" ", "\t", "\r", ""):
            rest = self._text[self._at : self._at + self._until("\n")].strip()
            if word.text:
                word.add(self._consume())
            elif not rest or rest.startswith("#"):
                self._cut = True  # bash ends the command here
                self._consume(self._until("\n"))
            else:
                word.stands = True
                word.problem = (
                    "a `\\` stands before a blank, not at the end of the line; remove the `\\`, or "
                    "end the line after it"
                )
            return
        word.add(self._consume())

    def _split(self, word: _Text, sign: str) -> None:
        """Append the value of a variable outside of quotes, split at blanks as in bash."""
        value = _Text(word.line)
        self._expand(value, sign)
        head, *rest = _split_at_blanks(value.written)
        self._add_part(word, head, value.problem)
        for part in rest:
            word.begin_next()
            self._add_part(word, part, value.problem)

    def _add_part(self, word: _Text, part: str, problem: str) -> None:
        """Append `part`, a part of a variable's value, to `word`.

        `problem` is the reason why the text of the part is not known; empty if it is known.
        """
        unknown = re.search(r"[$`]", part) if problem else None
        if unknown is None:
            word.add(part)
            return
        word.add(part[: unknown.start()], part)
        alone = re.fullmatch(r"\$\{?([A-Za-z_]\w*)\}?", part)
        is_unset = alone is not None and alone[1] not in self._variables
        word.problem = word.problem or (f"${alone[1]} {UNSET}" if alone and is_unset else problem)
        word.stands = True

    def _expand(self, word: _Text, sign: str) -> None:
        """Append the value of the expansion that begins after `sign`, which is `$` or a
        backquote.
        """
        begin, before = self._at - 1, (len(word.written), word.problem)
        word.problem = ""
        self._resolve(word, sign)
        if word.problem and len(word.written) == before[0]:
            word.written += self._text[begin : self._at]
        word.problem = before[1] or word.problem

    def _resolve(self, word: _Text, sign: str) -> None:
        if sign == "`":
            self._substitute(word, f"({self._quoted('`')})", "`...`")
        elif self._peek(2) == "((" and self._sum(word):
            return
        elif self._peek() == "(":
            begin = self._at
            self._nested()
            self._substitute(word, self._text[begin : self._at], "$(...)")
        elif self._peek() == "{":
            self._consume()
            self._braced(word, self._quoted("}"))
        elif name := _NAME.match(self._text, self._at):
            self._consume(len(name[0]))
            self._value(word, name[0])
        elif self._peek() and self._peek() in "@*#?0123456789$!":
            argument = self._consume()
            word.problem = f"${argument} {REST if argument in '@*' else ARGUMENT}"
        else:
            word.add(sign)

    def _substitute(self, word: _Text, command: str, title: str) -> None:
        """Append the output of a command substitution to `word`, if the output is known.

        The output is known for sums with `expr`, and for the working directory of the script.
        """
        if found := _EXPR.fullmatch(command):
            total = self._total(found[1])
            if total is not None:
                word.add(str(total))
                return
        if _PWD.fullmatch(command) and not self._moved:
            word.add(".")
            return
        word.problem = f"{title} has a value only when a shell runs it; write its value"

    def _nested(self) -> None:
        line, depth = self._line, 0
        while not self.at_end:
            depth += {"(": 1, ")": -1}.get(self._consume(), 0)
            if depth == 0:
                return
        raise self._unclosed("(", line)

    def _braced(self, word: _Text, inside: str) -> None:
        defaulted = _DEFAULTED.fullmatch(inside)
        if _NAME.fullmatch(inside):
            self._value(word, inside)
        elif defaulted is not None:
            known = self._variables.get(defaulted[1])
            if known is not None and known.text:
                self._value(word, defaulted[1])
                return
            word.add(defaulted[3])
            if defaulted[2] == "=":
                self._set(defaulted[1], Word(defaulted[3], self._line))
        else:
            word.problem = f"${{{inside}}} is too complex to compute here; write its value"

    def _value(self, word: _Text, name: str) -> None:
        known = self._variables.get(name)
        here = self._set_in.get(name, ())
        if known is None and name == "PWD" and not self._moved:
            word.add(".")
        elif known is None:
            word.problem = f"${name} {UNSET}"
        elif self._branches.within[: len(here)] != here:
            word.problem = f"${name} is set in a branch, in line {known.line}; write its value"
        elif len(word.text) + len(known.source) > _MOST_LETTERS:
            word.problem = f"${name} has more than {_MOST_LETTERS} letters; write its value"
        else:
            word.add(known.text, known.source)
            word.problem = word.problem or known.problem

    def _sum(self, word: _Text) -> bool:
        """Append the value of `$((...))` to `word`.

        Return False if it is not arithmetic with whole numbers.
        """
        end = self._text.find("))", self._at)
        total = None if end < 0 else self._total(self._text[self._at + 2 : end])
        if total is None:
            return False
        self._consume(end + 2 - self._at)
        word.add(str(total))
        return True

    def _total(self, formula: str) -> int | None:
        """Return the value of an expression with whole numbers and variables; None if it
        contains anything else.
        """
        inside = _Text(self._line)
        for part in re.split(r"(\$?\{?[A-Za-z_]\w*\}?)", formula):
            name = part.strip("${}")
            if _NAME.fullmatch(name):
                self._value(inside, name)
            else:
                inside.add(part)
        return None if inside.problem else worked_out(inside.text)


def _split_at_blanks(text: str) -> list[str]:
    """Split `text` at blanks that are not inside a command substitution or an expansion."""
    parts, last = [], 0
    for found in _BLANK_OR_WHOLE.finditer(text):
        if found[0].isspace():
            parts.append(text[last : found.start()])
            last = found.end()
    return [*parts, text[last:]]


def _is_empty(words: list[Word]) -> bool | None:
    """Return the result of the test `[ -z X ]`, `[ -n X ]` or `[ X = "" ]`, if X is a variable
    without a value. Return None for another test, or if the result is unknown.
    """
    texts = [word.text for word in words]
    if texts[:1] not in (["["], ["[["]) or texts[-1] not in ("]", "]]"):
        return None
    asked = words[1:-1]
    match [word.text if not word.problem else None for word in asked]:
        case ["-z" | "-n" as sign, None]:
            subject, negated = asked[1], sign == "-n"
        case [None, "=" | "==" | "!=" as sign, ""]:
            subject, negated = asked[0], sign == "!="
        case _:
            return None
    if subject.text or not subject.problem.endswith((ARGUMENT, UNSET)):
        return None
    return not negated

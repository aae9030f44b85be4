"""The words of the commands in a shell script, as bash would pass them on.

Nothing is run. Quotes, a backslash at the end of a line, comments, redirections and variables that
the text itself sets are resolved. What only a shell could know (`$(...)`, a variable of elsewhere)
is a problem of the word that has it, and so of the command only if somebody needs that word.

    LR=1e-4                          -> sets LR
    deepspeed main.py \\              -> deepspeed, main.py, --lr, 1e-4   (line 2)
      --lr $LR > log.txt &
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from zerotools.core.errors import BadRequest

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SET = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=")
_DEFAULTED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*):?([-=])([^{}$`]*)")
_ARRAY = re.compile(r"(\"?)\$\{([A-Za-z_][A-Za-z0-9_]*)\[[@*]\]\}\1(?=[ \t\n;|&]|$)")
_SUM = re.compile(r"[0-9 \t+*/%()-]+")
_BEGIN = frozenset(("if", "case", "for", "while", "until", "select"))
_ARMS = frozenset(("then", "else", "elif", "do"))
_END = frozenset(("fi", "esac", "done"))
_MOST_LETTERS = 1 << 16
"""Of one word: variables that hold each other can grow without bound."""
_HERE = re.compile(r"<<-?\s*(['\"]?)([A-Za-z_][A-Za-z0-9_]*)\1")
_REDIRECTS = re.compile(r"(?:\d*|&)(?:>>|>\||>&|<&|>|<)")
_END_OF_WORD = " \t\n;|&()<>"
ARGUMENT = "is an argument of the script; write its value"
LOOP = "is the variable of a loop; write its value"
REST = "is what the script is called with; write it out"


@dataclass(frozen=True)
class Word:
    """One word; `problem` says why its text is not known."""

    text: str
    line: int
    problem: str = ""


@dataclass
class Command:
    """The words of a simple command, and the variables that are set before it.

    `documents` are here-documents, by the paths of the files to which `cat` and `tee` write them.
    `cut` is the line of a `\\` that did not continue the command before this one, as a blank or a
    comment follows it.
    """

    words: list[Word] = field(default_factory=list)
    settings: dict[str, Word] = field(default_factory=dict)
    cut: int | None = None
    documents: dict[str, str] = field(default_factory=dict)


def commands_of(text: str, source: str) -> Iterator[Command]:
    """The commands of a script, in order.

    Raises:
        BadRequest: a quote that is not closed.
    """
    scanner = _Scanner(text, source)
    while not scanner.at_end:
        command = scanner.command()
        if command.words or command.settings:
            yield command


@dataclass
class _Text:
    """A word that grows."""

    line: int
    text: str = ""
    problem: str = ""
    stands: bool = False
    """It is a word even where it is empty: it has quotes, or something that is not known."""
    before: list[Word] = field(default_factory=list)

    def begin_next(self) -> None:
        """What follows is a word of its own."""
        self.before = self.words()
        self.text, self.problem, self.stands = "", "", False

    def words(self) -> list[Word]:
        """All of them; one that is empty and has no quotes is none."""
        if not self.text and not self.stands:
            return self.before
        return [*self.before, Word(self.text, self.line, self.problem)]


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
        self._branches: list[tuple[int, int]] = []
        self._begun = 0
        self._cut: int | None = None
        self._here: list[str] = []
        self._texts: list[str] = []
        self._target: str | None = None

    @property
    def at_end(self) -> bool:
        return self._at >= len(self._text)

    def command(self) -> Command:
        """The next one, perhaps empty."""
        command = Command(cut=self._cut)
        self._cut = None
        loops = False
        while (begins := self._begins()) != "\n":
            if begins == ">":
                self._redirect()
                continue
            parts = self._word()
            if self._cut is not None:
                continue  # bash passes the blank on; nobody wants it
            word = Word(" ".join(part.text for part in parts), self._line, _problem(parts))
            setting = _SET.match(word.text)
            if setting and all(each.text in _ARMS for each in command.words):
                command.settings[setting[1]] = self._assigned(setting, word)
                if self._peek() == "(" and not word.text[setting.end() :]:
                    self._read_array(setting[1])
            else:
                if not command.words and not word.problem:
                    self._enter_and_leave(word.text)
                    loops = word.text in ("for", "select")
                elif loops and len(command.words) == 1 and word.text:
                    loops = False
                    self._set(word.text, Word("", word.line, LOOP))
                command.words += parts
        self._remember(command)
        self._write_documents(command)
        return command

    def _write_documents(self, command: Command) -> None:
        names = [word.text for word in command.words if not word.text.startswith("-")]
        target = self._target
        if names[:1] == ["tee"]:
            target = names[1] if len(names) > 1 else target
        if self._texts and target is not None and names[:1] in (["cat"], ["tee"]):
            command.documents[target] = self._texts[-1]
        self._texts, self._target = [], None

    def _remember(self, command: Command) -> None:
        words = command.words
        while words and words[0].text in _ARMS:
            words = words[1:]
        if not words:
            for name, value in command.settings.items():
                self._set(name, value)
        elif words[0].text in ("export", "declare", "local", "readonly"):
            for word in words[1:]:
                if setting := _SET.match(word.text):
                    value = self._assigned(setting, word)
                    self._set(setting[1], value)
                    command.settings[setting[1]] = value

    def _enter_and_leave(self, word: str) -> None:
        """Keep count of the branches in which a command stands."""
        if word in _BEGIN:
            self._begun += 1
            self._branches.append((self._begun, 0))
        elif word in _END and self._branches:
            self._branches.pop()
        elif word in ("else", "elif"):
            self._next_arm()

    def _next_arm(self) -> None:
        if self._branches:
            number, arm = self._branches.pop()
            self._branches.append((number, arm + 1))

    def _assigned(self, setting: re.Match[str], word: Word) -> Word:
        """The value after `NAME=value` or `NAME+=value`."""
        text, problem = word.text[setting.end() :], word.problem
        before = self._variables.get(setting[1])
        if setting[2] and before is not None:
            text, problem = before.text + text, before.problem or problem
        return Word(text, word.line, problem)

    def _set(self, name: str, value: Word) -> None:
        if self._branches and value.problem.endswith(ARGUMENT) and name in self._variables:
            return  # of a loop over the script's arguments, which it is called without
        self._variables[name] = value
        self._set_in[name] = tuple(self._branches)

    def _read_array(self, name: str) -> None:
        self._take()
        words: list[Word] = []
        while not self.at_end and self._peek() != ")":
            if self._peek() in " \t\n":
                self._take()
            elif self._peek() == "#":
                self._take(self._until("\n"))
            elif self._peek() in _END_OF_WORD:
                self._take()
            else:
                words += self._word()
        self._take()
        self._arrays[name] = words

    def _peek(self, count: int = 1) -> str:
        return self._text[self._at : self._at + count]

    def _take(self, count: int = 1) -> str:
        taken = self._text[self._at : self._at + count]
        self._line += taken.count("\n")
        self._at += count
        return taken

    def _begins(self) -> str:
        """What stands next, blanks and comments left out: `w` a word, `>` a redirection, or the end
        of the command, which is taken."""
        while not self.at_end:
            if self._peek(2) == "\\\n":
                self._take(2)
            elif self._peek() in " \t":
                self._take()
            elif self._peek() == "#":
                self._take(self._until("\n"))
            elif self._peek(2) == "<<" or _REDIRECTS.match(self._text, self._at):
                return ">"
            elif self._peek() in "\n;|&()":
                if self._peek(2) == ";;":
                    self._take()
                    self._next_arm()
                if self._take() == "\n":
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
            self._here.append(here[2])
            self._take(len(here[0]))
            return
        found = _REDIRECTS.match(self._text, self._at)
        self._take(len(found[0]) if found else 2)
        while self._peek() in (" ", "\t"):
            self._take()
        if not self.at_end and self._peek() not in _END_OF_WORD:
            words = self._word()
            if found is not None and found[0] in (">", ">>", ">|") and len(words) == 1:
                self._target = None if words[0].problem else words[0].text

    def _skip_documents(self) -> None:
        for end in self._here:
            text = ""
            while not self.at_end:
                line = self._take(self._until("\n") + 1)
                if line.strip() == end:
                    break
                text += line
            self._texts.append(text)
        self._here = []

    def _word(self) -> list[Word]:
        """The word that stands here; several or none where it has variables outside of quotes."""
        array = _ARRAY.match(self._text, self._at)
        if array is not None and array[2] in self._arrays:
            self._take(len(array[0]))
            return [replace(each, line=self._line) for each in self._arrays[array[2]]]
        word = _Text(self._line)
        while not self.at_end and self._peek() not in _END_OF_WORD:
            character = self._take()
            if character == "'":
                word.text += self._quoted("'")
                word.stands = True
            elif character == '"':
                self._double(word)
                word.stands = True
            elif character == "\\":
                self._escape(word)
            elif character in "$`":
                self._split(word, character)
            else:
                word.text += character
        return word.words()

    def _quoted(self, quote: str) -> str:
        line = self._line
        count = self._until(quote)
        if self._at + count >= len(self._text):
            raise self._unclosed(quote, line)
        return self._take(count + 1)[:-1]

    def _unclosed(self, quote: str, line: int) -> BadRequest:
        return BadRequest(
            f"{self._source}:{line}: the quote {quote} is not closed; write it at the end of the "
            "value"
        )

    def _double(self, word: _Text) -> None:
        line = self._line
        while not self.at_end:
            character = self._take()
            if character == '"':
                return
            if character == "\\" and self._peek() in ("$", "`", '"', "\\", "\n"):
                escaped = self._take()
                word.text += "" if escaped == "\n" else escaped
            elif character in "$`":
                self._expand(word, character)
            else:
                word.text += character
        raise self._unclosed('"', line)

    def _escape(self, word: _Text) -> None:
        if self._peek() == "\n":
            self._take()
            return
        if self._peek() in (" ", "\t", "\r", ""):
            rest = self._text[self._at : self._at + self._until("\n")].strip()
            if word.text:
                word.text += self._take()
            elif not rest or rest.startswith("#"):
                self._cut = self._line  # bash ends the command here
                self._take(self._until("\n"))
            else:
                word.stands = True
                word.problem = (
                    "a `\\` stands before a blank, where no line ends; remove it, or end the line"
                )
            return
        word.text += self._take()

    def _split(self, word: _Text, sign: str) -> None:
        """A variable outside of quotes: bash makes words of what it holds."""
        value = _Text(word.line)
        self._expand(value, sign)
        if value.problem:
            word.problem, word.stands = value.problem, True
        head, *rest = re.split(r"[ \t\n]+", value.text)
        word.text += head
        for part in rest:
            word.begin_next()
            word.text += part

    def _expand(self, word: _Text, sign: str) -> None:
        if sign == "`":
            self._quoted("`")
            word.problem = "`...` is known only when a shell runs it; write its value"
        elif self._peek(2) == "((" and self._sum(word):
            return
        elif self._peek() == "(":
            self._nested()
            word.problem = "$(...) is known only when a shell runs it; write its value"
        elif self._peek() == "{":
            self._take()
            self._braced(word, self._quoted("}"))
        elif name := _NAME.match(self._text, self._at):
            self._take(len(name[0]))
            self._value(word, name[0])
        elif self._peek() and self._peek() in "@*#?0123456789$!":
            argument = self._take()
            word.problem = f"${argument} {REST if argument in '@*' else ARGUMENT}"
        else:
            word.text += sign

    def _nested(self) -> None:
        line, depth = self._line, 0
        while not self.at_end:
            depth += {"(": 1, ")": -1}.get(self._take(), 0)
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
            word.text += defaulted[3]
            if defaulted[2] == "=":
                self._set(defaulted[1], Word(defaulted[3], self._line))
        else:
            word.problem = f"${{{inside}}} is not worked out here; write its value"

    def _value(self, word: _Text, name: str) -> None:
        known = self._variables.get(name)
        here = self._set_in.get(name, ())
        if known is None:
            word.problem = f"${name} is not set in the text; write its value"
        elif tuple(self._branches[: len(here)]) != here:
            word.problem = f"${name} is set in a branch, in line {known.line}; write its value"
        elif len(word.text) + len(known.text) > _MOST_LETTERS:
            word.problem = f"${name} has more than {_MOST_LETTERS} letters; write its value"
        else:
            word.text += known.text
            word.problem = word.problem or known.problem

    def _sum(self, word: _Text) -> bool:
        """Work out `$((...))` of whole numbers; False: it has something else."""
        end = self._text.find("))", self._at)
        if end < 0:
            return False
        inside = _Text(self._line)
        for part in re.split(r"(\$?\{?[A-Za-z_]\w*\}?)", self._text[self._at + 2 : end]):
            name = part.strip("${}")
            if _NAME.fullmatch(name):
                self._value(inside, name)
            else:
                inside.text += part
        if inside.problem or not _SUM.fullmatch(inside.text):
            return False
        try:
            found = _worked_out(ast.parse(inside.text.strip(), mode="eval").body)
        except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
            return False
        self._take(end + 2 - self._at)
        word.text += str(found)
        return True


def _worked_out(node: ast.expr) -> int:
    """The value of a sum of whole numbers, as the shell works it out. Raises ValueError."""
    match node:
        case ast.Constant(value=int() as number):
            return number
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_worked_out(inner)
        case ast.BinOp(left=left, op=op, right=right):
            one, other = _worked_out(left), _worked_out(right)
            match op:
                case ast.Add():
                    return one + other
                case ast.Sub():
                    return one - other
                case ast.Mult():
                    return one * other
                case ast.Div() | ast.FloorDiv():
                    return int(one / other)
                case ast.Mod():
                    return one % other
    raise ValueError("no sum of whole numbers")

"""New names for tensors, by rules of the user."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from zerotools.core.errors import BadRequest


@dataclass(frozen=True, slots=True)
class RenameRule:
    """Every match of `pattern` in a name becomes `replacement` (`\\1` is the first group)."""

    pattern: re.Pattern[str]
    replacement: str


def parse_rule(text: str) -> RenameRule:
    """Return the rule that `REGEX=REPL` spells; the last `=` separates, so that `(?=...)` may be
    used.

    Raises:
        BadRequest: it has no `=`, or its regular expression or group is invalid.
    """
    pattern, equals, replacement = text.rpartition("=")
    if not equals or not pattern:
        raise BadRequest(f"--rename {text!r} is not REGEX=REPL")
    try:
        compiled = re.compile(pattern)
        compiled.sub(replacement, "")  # reads the replacement, match or not
    except (re.error, IndexError) as error:
        raise BadRequest(f"--rename {text!r}: {error}") from None
    return RenameRule(compiled, replacement)


def namer(prefixes: Sequence[str], rules: Sequence[RenameRule]) -> Callable[[str], str]:
    """Make a new name from an old one: each prefix is removed once if the name begins with
    it, in the order given, then each rule is applied.

    The function raises BadRequest if a name becomes empty.
    """

    def renamed(name: str) -> str:
        new = name
        for prefix in prefixes:
            new = new.removeprefix(prefix)
        for rule in rules:
            new = rule.pattern.sub(rule.replacement, new)
        if not new:
            raise BadRequest(f"nothing would be left of the name {name}")
        return new

    return renamed

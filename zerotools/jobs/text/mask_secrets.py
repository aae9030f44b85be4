"""Find possible secrets in texts by their names or their format, and replace them.

Names are tried first: `WANDB_API_KEY=...`, `--hub-token ...`, `db.password=...`. Keys in a
service's own format (`hf_...`, `ghp_...`) and passwords in URLs are recognised without a name. A
secret that has neither such a name nor such a format is not found.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

HIDDEN = "***"
Result = TypeVar("Result")
Steps = Generator[None, None, Result]
LEAST_CHARACTERS = 4
"""The smallest length of a known secret that texts are searched for.

Shorter secrets would hide parts of many words.
"""

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_ALWAYS = frozenset(
    {
        *("secret", "secrets", "password", "passwd", "passphrase", "passwort", "pwd", "apikey"),
        *("credential", "credentials", "authorization", "cookie", "dsn", "bearer", "jwt"),
    }
)
_ENDS = ("password", "passwd", "secret")
_KEYS = frozenset(
    {
        *("api", "access", "private", "secret", "auth", "encryption", "signing", "account", "ssh"),
        *("storage", "service", "deploy", "license", "app", "master", "shared"),
    }
)
"""Words that make a name a secret if they stand before `key`, such as `api_key`.

A sort key is not a secret.
"""
_NOT_TOKENS = frozenset(
    {
        *("pad", "eos", "bos", "unk", "sep", "cls", "mask", "per", "special", "image", "start"),
        *("end", "max", "min", "new", "stop", "num", "audio", "video", "extra", "additional"),
        *("prompt", "response", "separator", "first", "last", "next", "each"),
    }
)
"""Words that make a name harmless if they stand before `token`, such as `pad_token`, which is a
token of a tokenizer.
"""

_MAY_NAME = re.compile(
    "secret|pass|pwd|key|token|auth|credential|cookie|dsn|bearer|jwt", re.IGNORECASE
)
"""Pattern for parts of names.

Every name of a secret has such a part. It quickly excludes most other names.
"""
_KNOWN_AT_ONCE, _CHARACTERS_AT_ONCE, _WORD_COST, _NAMES_AT_ONCE = 16, 16_384, 8, 1000
_FORMS = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{20,}|gh[pousr]_[A-Za-z0-9]{20,}"
    r"|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{20,}|xox[abprs]-[A-Za-z0-9-]{10,}"
    r"|(?:AKIA|ASIA)[0-9A-Z]{16}|AIza[A-Za-z0-9_-]{35}|eyJ[\w-]{8,2000}\.eyJ[\w-]{8,4000}\.[\w-]{8,})"
)
_IN_URL = re.compile(r"(?<=://)[^/\s@'\"]+(?=@)")
_BEARER = re.compile(r"(?i)\b((?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{8,}")
_MAY_HOLD = re.compile(
    r"[=:\s]|hf_|sk-|gh[pousr]_|github_pat_|glpat-|xox[abprs]-|AKIA|ASIA|AIza|eyJ"
)
"""Pattern for parts of texts.

Every text that contains a secret has such a part. Most words of a command do not.
"""
_NAMED = re.compile(r"""(?<![\w.-])(?P<name>[\w.-]++)(?P<between>["']?\s*+[=:]\s*+|\s++)""")
"""Pattern for a name and the text up to its value.

No position is tried twice, so the time is proportional to the length of the text.
"""
_VALUE = re.compile(r"""(?!-)(?:"[^"]*"|'[^']*'|[^\s'",;&|]+)""")


def is_secret_name(name: str) -> bool:
    """Return whether the value of a variable, option or key with this name is probably a secret."""
    if _MAY_NAME.search(name) is None:
        return False
    words = [word.lower() for word in _WORD.findall(name)]
    if not words:
        return False
    last, before = words[-1], words[-2] if len(words) > 1 else ""
    hidden = any(word in _ALWAYS or word.endswith(_ENDS) for word in words)
    if hidden and last not in ("file", "path", "dir", "name"):
        return True
    if last == "token":
        return before not in _NOT_TOKENS
    if last == "key":
        return before in _KEYS or (name.isupper() and "_" in name)
    return last in ("pass", "auth") and (name.isupper() or before == "basic" or last == "pass")


class LongestFirst(tuple[str, ...]):
    """A list of known secrets, sorted by length, the longest first.

    Texts are searched for the secrets in this order.
    """


def longest_first(known: Iterable[str]) -> LongestFirst:
    """Sort the secrets in `known` by length, the longest first, and leave out secrets that are too
    short to be searched for.

    If many texts are masked, call this only once.
    """
    if isinstance(known, LongestFirst):
        return known
    long = {value for value in known if len(value) >= LEAST_CHARACTERS}
    return LongestFirst(sorted(sorted(long), key=len, reverse=True))


def mask_text(text: str, known: Iterable[str] = ()) -> str:
    """Return `text` with all possible secrets, and all secrets in `known`, replaced."""
    return result_of(_masked_text(text, longest_first(known)))


def _masked_text(text: str, known: LongestFirst) -> Steps[str]:
    for value in known:
        text = text.replace(value, HIDDEN)
    if _MAY_HOLD.search(text) is None:
        return text
    for pattern, instead in ((_BEARER, rf"\1{HIDDEN}"), (_FORMS, HIDDEN), (_IN_URL, HIDDEN)):
        text = pattern.sub(instead, text)
        if len(text) > _CHARACTERS_AT_ONCE:
            yield
    done, at, count = 0, 0, 0
    parts: list[str] = []
    # After a harmless name, the text may begin with the name of a secret.
    while (found := _NAMED.search(text, at)) is not None:
        at, count = found.end(), count + 1
        if _is_given(found) and (value_at := _VALUE.match(text, at)) is not None:
            parts.append(text[done:at] + HIDDEN)
            done = at = value_at.end()
        if count % _NAMES_AT_ONCE == 0:
            yield
    return "".join([*parts, text[done:]])


def _is_given(found: re.Match[str]) -> bool:
    """Return True if the text after a name is the value of a secret, and False if it is the next
    word of a sentence.
    """
    name, between = found.group("name", "between")
    # "the token is wrong" is a sentence; "--token xyz" is an option.
    return (name.startswith("-") or not between.isspace()) and is_secret_name(name)


def named_secret_steps(values: Mapping[str, str]) -> Steps[list[str]]:
    """A generator that returns the values of the variables with a secret's name. It yields after
    some milliseconds of work, so that the caller can do other work."""
    found = list[str]()
    for count, (name, value) in enumerate(values.items(), 1):
        found += [value] if is_secret_name(name) else []
        if count % _NAMES_AT_ONCE == 0:
            yield
    return found


def secret_argument_steps(arguments: Sequence[str]) -> Steps[list[str]]:
    """A generator that returns the secret values in the words of a command: the values that
    `mask_tree` replaces, except values of several words. It yields after some milliseconds of work,
    so that the caller can do other work."""
    found = list[str]()
    for count, (before, word) in enumerate(zip(("", *arguments), arguments, strict=False), 1):
        if count % _NAMES_AT_ONCE == 0:
            yield
        name, equals, value = word.partition("=")
        if equals and is_secret_name(name):
            found.append(value)
        elif before.startswith("-") and "=" not in before and is_secret_name(before):
            found += [] if word.startswith("-") else [word]
    return found


def mask_tree(tree: Any, known: Iterable[str] = ()) -> Any:
    """Return a copy of `tree` with secrets replaced: values that have a secret's name, and secrets
    within texts."""
    return result_of(mask_steps(tree, known))


def mask_steps(tree: Any, known: Iterable[str] = ()) -> Steps[Any]:
    """A generator that returns the copy of `mask_tree`. It yields after some milliseconds of work,
    so that the caller can do other work."""
    found = longest_first(known)
    if found:
        together = "\0".join(_texts_in(tree))
        there = []
        for count, value in enumerate(found):
            there += [value] if value in together else []
            if count % _KNOWN_AT_ONCE == 0:
                yield
        found = LongestFirst(there)
    return (yield from _masked(tree, found))


def _texts_in(tree: Any) -> Iterator[str]:
    if isinstance(tree, str):
        yield tree
    elif isinstance(tree, (list, tuple, Mapping)):
        for each in tree.values() if isinstance(tree, Mapping) else tree:
            yield from _texts_in(each)


def result_of(steps: Steps[Result]) -> Result:
    """Run the generator `steps` to its end, and return its result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: Result = end.value
            return result


def _masked(tree: Any, known: LongestFirst) -> Steps[Any]:
    if isinstance(tree, Mapping):
        shown = {}
        for count, (name, value) in enumerate(tree.items(), 1):
            if count % _NAMES_AT_ONCE == 0:
                yield
            if isinstance(value, str) and is_secret_name(str(name)):
                shown[name] = HIDDEN
            else:
                shown[name] = yield from _masked(value, known)
        return shown
    if isinstance(tree, (list, tuple)):
        if all(isinstance(each, str) for each in tree):
            return (yield from _masked_arguments(tree, known))
        listed = []
        for each in tree:
            listed.append((yield from _masked(each, known)))
        return listed
    return (yield from _masked_text(tree, known)) if isinstance(tree, str) else tree


def _masked_arguments(arguments: Sequence[str], known: LongestFirst) -> Steps[list[str]]:
    shown: list[str] = []
    follows, done = False, 0
    for word in arguments:
        done += len(word) + _WORD_COST * (1 + len(known))
        if done > _CHARACTERS_AT_ONCE:
            done = 0
            yield
        if follows and not word.startswith("-"):
            shown.append(HIDDEN)
            follows = False
            continue
        shown.append((yield from _masked_text(word, known)))
        follows = word.startswith("-") and "=" not in word and is_secret_name(word)
    return shown

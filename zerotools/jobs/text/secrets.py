"""What looks like a secret, by the name that it has or by its own form, and texts without them.

Names come first: `WANDB_API_KEY=...`, `--hub-token ...`, `db.password=...`. Forms that a service
gives its keys (`hf_...`, `ghp_...`) and passwords in URLs are found without a name. It is a net,
not a proof: a secret under an innocent name, of no known form, is shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

HIDDEN = "***"
LEAST_CHARACTERS = 4
"""Shorter values are not looked for in other texts: half of every word would be hidden."""

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_ALWAYS = frozenset(
    {
        *("secret", "secrets", "password", "passwd", "passphrase", "passwort", "pwd", "apikey"),
        *("credential", "credentials", "authorization", "cookie", "dsn", "bearer"),
    }
)
_ENDS = ("password", "passwd", "secret")
_KEYS = frozenset(
    {
        *("api", "access", "private", "secret", "auth", "encryption", "signing", "account", "ssh"),
        *("storage", "service", "deploy", "license", "app", "master", "shared"),
    }
)
"""A `key` of these is a secret; of others, such as a sort key, it is not."""
_NOT_TOKENS = frozenset(
    {
        *("pad", "eos", "bos", "unk", "sep", "cls", "mask", "per", "special", "image", "start"),
        *("end", "max", "min", "new", "stop", "num", "audio", "video", "extra", "additional"),
        *("prompt", "response", "separator", "first", "last", "next", "each"),
    }
)
"""A `token` of these is one of a tokenizer."""

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
"""What a text without a secret may lack: most words of a command are of this kind."""
_NAMED = re.compile(r"""(?<![\w.-])(?P<name>[\w.-]++)(?P<between>["']?\s*+[=:]\s*+|\s++)""")
"""A name and what follows it up to its value. Nothing is tried twice: a long text takes no longer
than its characters do."""
_VALUE = re.compile(r"""(?!-)(?:"[^"]*"|'[^']*'|[^\s'",;&|]+)""")


def is_secret_name(name: str) -> bool:
    """Whether what has this name (a variable, an option, a key) is likely to be a secret."""
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


class _LongestFirst(tuple[str, ...]):
    """Secrets in the order in which they are looked for."""


def _longest_first(known: Iterable[str]) -> _LongestFirst:
    if isinstance(known, _LongestFirst):
        return known
    long = {value for value in known if len(value) >= LEAST_CHARACTERS}
    return _LongestFirst(sorted(long, key=lambda value: (-len(value), value)))


def mask_text(text: str, known: Iterable[str] = ()) -> str:
    """`text` without what looks like a secret in it, and without the secrets `known`."""
    for value in _longest_first(known):
        text = text.replace(value, HIDDEN)
    if _MAY_HOLD.search(text) is None:
        return text
    text = _IN_URL.sub(HIDDEN, _FORMS.sub(HIDDEN, _BEARER.sub(rf"\1{HIDDEN}", text)))
    return "".join(_without_named(text))


def _without_named(text: str) -> Iterator[str]:
    done = at = 0
    while (found := _NAMED.search(text, at)) is not None:
        at = found.end()  # what follows a name that is none of a secret may be a name itself
        if _is_given(found) and (value := _VALUE.match(text, at)) is not None:
            yield text[done:at] + HIDDEN
            done = at = value.end()
    yield text[done:]


def _is_given(found: re.Match[str]) -> bool:
    """Whether what follows is the value of a secret."""
    name, between = found.group("name", "between")
    # "the token is wrong" is a sentence; "--token xyz" is an option.
    return (name.startswith("-") or not between.isspace()) and is_secret_name(name)


def mask_arguments(arguments: Sequence[str], known: Iterable[str] = ()) -> list[str]:
    """The words of a command without the secrets among them."""
    known, shown = _longest_first(known), []
    follows = False
    for word in arguments:
        if follows and not word.startswith("-"):
            shown.append(HIDDEN)
            follows = False
            continue
        shown.append(mask_text(word, known))
        follows = word.startswith("-") and "=" not in word and is_secret_name(word)
    return shown


def secret_arguments(arguments: Sequence[str]) -> list[str]:
    """The values that `mask_arguments` hides where the whole value is one word of the command."""
    found = []
    for before, word in zip(("", *arguments), arguments, strict=False):
        name, equals, value = word.partition("=")
        if equals and is_secret_name(name):
            found.append(value)
        elif before.startswith("-") and "=" not in before and is_secret_name(before):
            found += [] if word.startswith("-") else [word]
    return found


def mask_tree(tree: Any, known: Iterable[str] = ()) -> Any:
    """Plain values without secrets: those under secret names, and those in texts."""
    if found := _longest_first(known):
        together = "\0".join(_texts_in(tree))
        found = _LongestFirst(value for value in found if value in together)
    return _masked(tree, found)


def _texts_in(tree: Any) -> Iterator[str]:
    if isinstance(tree, str):
        yield tree
    elif isinstance(tree, (list, tuple, Mapping)):
        for each in tree.values() if isinstance(tree, Mapping) else tree:
            yield from _texts_in(each)


def _masked(tree: Any, known: _LongestFirst) -> Any:
    if isinstance(tree, Mapping):
        return {
            name: HIDDEN
            if isinstance(value, str) and is_secret_name(str(name))
            else _masked(value, known)
            for name, value in tree.items()
        }
    if isinstance(tree, (list, tuple)):
        if all(isinstance(each, str) for each in tree):
            return mask_arguments(tree, known)
        return [_masked(each, known) for each in tree]
    return mask_text(tree, known) if isinstance(tree, str) else tree

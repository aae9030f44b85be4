"""Linux limits on the arguments and the environment variables of a new process (execve(2)).

Each argument, and each variable as `NAME=VALUE`, may have 131,071 bytes plus a NUL
(`MAX_ARG_STRLEN`, 32 pages of 4 KiB). All arguments and variables together, with a pointer to each,
may need at most a quarter of the stack limit (fs/exec.c). The quarter is usually 2 MiB of 8 MiB,
but at least 128 KiB and at most 6 MiB.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

LONGEST_STRING = 131_071
"""The largest size in bytes of one argument, or of one variable as NAME=VALUE."""
_LEAST_ROOM = 128 << 10
_MOST_ROOM = 6 << 20
_POINTER_AND_NUL = 9


def string_bytes(text: str) -> int:
    """Return the number of bytes of `text` as an argument or variable of a process.

    The number is correct even for file names that are not UTF-8.
    """
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogateescape"))


def too_long(text: str, name: str | None = None) -> str | None:
    """Return the reason why `text` is too long for one argument, or for the value of the
    variable `name`. Return None if it is short enough.
    """
    if 4 * (len(text) + len(name or "") + 1) <= LONGEST_STRING:
        return None  # short enough, even with 4 bytes per character
    length = string_bytes(text if name is None else f"{name}={text}")
    if length <= LONGEST_STRING:
        return None
    what = "it has" if name is None else "the name, the = and the value have"
    return (
        f"{what} {length:,} bytes, and the kernel takes at most {LONGEST_STRING:,}; write it to a "
        "file and pass the file's path"
    )


def stack_bytes_needed(arguments: Iterable[str], environment: Mapping[str, str]) -> int:
    """Return the number of bytes that these arguments and variables need on the stack of a new
    process.
    """
    strings = [*arguments, *(f"{name}={value}" for name, value in environment.items())]
    return sum(string_bytes(text) + _POINTER_AND_NUL for text in strings)


def stack_bytes_allowed(stack_bytes: int) -> int:
    """Return the number of bytes that all arguments and variables together may need if the stack
    limit is `stack_bytes`. A negative limit means no limit.
    """
    quarter = _MOST_ROOM if stack_bytes < 0 else stack_bytes // 4
    return max(_LEAST_ROOM, min(quarter, _MOST_ROOM))

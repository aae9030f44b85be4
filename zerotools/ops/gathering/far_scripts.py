"""The scripts for a node's shell. It is a POSIX shell with `find`, `head`, `dd` and optionally
`sha256sum`: of GNU or of busybox, where `find` has no -printf.

Names are quoted for the shell, and begin with `./`. Output with names in it is separated by NUL.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from zerotools.io.ssh.far_shell import BLOCK

HERE, ABSENT, CLOSED, FILE = "here", "absent", "closed", "file"
"""The possible states of the directory: it exists, it does not, it is not accessible, it is a
file."""
NO_DIGEST = "failed"


def listing(directory: str, mark: str) -> str:
    """Return a script that prints the state, and 1 if digests can be made. Then for each entry that
    is not a directory it prints the kind (f, l, others), size, time and name, and in the end the
    status."""
    return f"""{_entering(directory)}
n=0; command -v sha256sum >/dev/null 2>&1 && n=1
printf '%s\\0%s\\0' {HERE} $n
if find . -maxdepth 0 -printf '' >/dev/null 2>&1; then
    find . -mindepth 1 ! -type d -printf '%y %s %T@ %P\\0'
else
    find . -mindepth 1 ! -type d -exec sh -c 'for f; do
        k=o; test -f "$f" && k=f; test -L "$f" && k=l
        printf "%s %s %s\\0" "$k" "$(stat -c "%s %Y" "$f")" "${{f#./}}"
    done' sh {{}} +
fi
printf 'end %s %s' $? {mark}"""


def digests(directory: str, names: Iterable[str]) -> str:
    """Return a script that prints the SHA-256 of each file on a line, or that it failed."""
    calls = "\n".join(f"h {_word(name)}" for name in names)
    return f"""{_entering(directory)}
h() {{
    x=$(sha256sum <"$1") || x={NO_DIGEST}
    printf '%s\\n' "${{x%% *}}"
}}
{calls}"""


def contents(directory: str, files: Iterable[tuple[str, int, int]], mark: str) -> str:
    """Return a script that prints the bytes of each file, and a line with the mark after each.

    A file is its name, the blocks to skip, and the number of bytes that follow.
    """
    calls = "\n".join(f"g {_word(name)} {skip} {count}" for name, skip, count in files)
    return f"""{_entering(directory)}
g() {{
    if test "$2" = 0; then
        head -c "$3" <"$1"
    else
        dd bs={BLOCK} skip="$2" 2>/dev/null <"$1" | head -c "$3"
    fi
    printf '%s\\n' {mark}
}}
{calls}"""


def _entering(directory: str) -> str:
    word = shlex.quote(directory if directory.startswith("/") else f"./{directory}")
    return f"""LC_ALL=C; export LC_ALL; unset CDPATH
d={word}
if ! cd -P "$d" 2>/dev/null; then
    w={ABSENT}
    test -e "$d" && w={FILE}
    test -d "$d" && w={CLOSED}
    printf '%s\\0' $w
    exit 0
fi"""


def _word(name: str) -> str:
    return shlex.quote(f"./{name}")

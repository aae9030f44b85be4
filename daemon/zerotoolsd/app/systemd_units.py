"""Finds the files for systemd in a wheel or a checkout.

A wheel has the folder `systemd` of the repository as `zerotoolsd/units` (`hatch_build.py`).
"""

from __future__ import annotations

import sys
from pathlib import Path

UNITS = {
    "system": "zerotoolsd.service",
    "system-socket": "zerotoolsd.socket",
    "user": "user/zerotoolsd.service",
    "user-socket": "user/zerotoolsd.socket",
    "tmpfiles": "tmpfiles.d/zerotools.conf",
    "sysusers": "sysusers.d/zerotools.conf",
    "jobs-as-children": "drop-ins/jobs-as-children.conf",
    "shared-socket": "drop-ins/shared-socket.conf",
    "account": "drop-ins/account.conf",
    "account-socket": "drop-ins/account-socket.conf",
}
"""Files by the names for `--print-unit`."""
_PACKAGE = Path(__file__).resolve().parents[1]
PLACES = (_PACKAGE / "units", _PACKAGE.parents[1] / "systemd")
"""Directories of the files in a wheel and in a checkout."""
_ANY_PROGRAM = "/usr/bin/env zerotoolsd"
_UNQUOTED = frozenset("/._-+@=,:%$")
_REFUSED = frozenset("'\"\\")


def unit_text(name: str, program: str | None = None) -> str:
    """Return the text of the file `name`. It starts `program`, or if that is None, the first
    zerotoolsd on the PATH of systemd.

    Raises:
        FileNotFoundError: this module is neither in a wheel nor in a checkout.
    """
    place = next((each for each in PLACES if each.is_dir()), PLACES[0])
    text = (place / UNITS[name]).read_text(encoding="utf-8")
    if program is None:
        return text
    return text.replace(f"ExecStart={_ANY_PROGRAM}", f"ExecStart={_quoted(program)}")


def this_program() -> str | None:
    """Return the absolute path of the running command, or None if it is not called zerotoolsd, as
    under `python -m`."""
    program = Path(sys.argv[0])
    return str(program.absolute()) if program.name == "zerotoolsd" and program.is_file() else None


def _quoted(program: str) -> str:
    """Return a path as systemd reads it at the start of a command line (systemd.service(5)).

    There `$` means itself, and quotes and backslashes are refused, so that `env` takes such a path.
    """
    escaped = program.replace("%", "%%")
    if all(each.isalnum() or each in _UNQUOTED for each in program):
        return escaped
    if not _REFUSED.intersection(program):
        return f'"{escaped}"'
    for each, written in (("\\", "\\\\"), ('"', '\\"'), ("$", "$$")):
        escaped = escaped.replace(each, written)
    return f'/usr/bin/env "{escaped}"'

"""Binds a rank to processors and memory nodes (NUMA).

The child sets the binding before it executes its program; the program, its threads and its children
inherit it. Memory nodes are preferred and not required: otherwise a full node would end the rank
although another node has free memory. A cpuset may leave a rank fewer processors than planned,
because systemd gives an attempt's unit a separate cpuset. The binding respects it. A binding that
fails does not fail the attempt. The child reports the failure on its pipe (`spawn_child`), by a
letter and a number:

    c22;    the processors could not be set: error 22
    m1;     the memory nodes could not be preferred: error 1
    f3;     only 3 of the processors may be used, too few for the binding
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
"""Number of the system call set_mempolicy, from syscall_64.tbl and asm-generic/unistd.h of
Linux.
"""
_PREFERRED, _PREFERRED_MANY = 1, 5
"""Modes of set_mempolicy(2) that prefer one node, or several nodes (from Linux 5.15 on)."""
_MOST_NODES = 1 << 16
_WORD = 8 * ctypes.sizeof(ctypes.c_ulong)
_LEAST = 0.5
"""Smallest fraction of the planned processors with which a rank is still bound."""
_NOTE = rb"([cmf])(\d+);"
_libc = ctypes.CDLL(None, use_errno=True)


class RankBinding(NamedTuple):
    """The processors and memory nodes to which one rank is bound.

    `cpus` is a list of processors in the format of the kernel (`0-15,32`; empty: any processor).
    `nodes` are the preferred memory nodes (empty: the kernel chooses). `why` is the reason why the
    rank is not bound, if users should see the reason.
    """

    cpus: str = ""
    nodes: tuple[int, ...] = ()
    why: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the binding as a JSON object."""
        return {"cpus": self.cpus, "nodes": list(self.nodes), "why": self.why}

    @classmethod
    def from_json(cls, tree: object) -> RankBinding:
        """Return the binding that `to_json` wrote. Raises ValueError if `tree` is not such a
        binding.

        A job can write into its run directory, so the value is not trusted.
        """
        if isinstance(tree, Mapping):
            cpus, nodes, why = (tree.get(name) for name in ("cpus", "nodes", "why"))
            is_list = isinstance(nodes, list) and all(type(node) is int for node in nodes)
            if isinstance(cpus, str) and is_list and isinstance(why, str | None):
                return cls(cpus, tuple(nodes or ()), why)
        raise ValueError(
            f"{str(tree)[:100]} does not describe the processors and memory nodes of a rank"
        )


def keep_to(binding: RankBinding) -> bytes:
    """Bind the calling thread to the processors and memory nodes in `binding`.

    Return bytes that name the parts that failed, in the format that `kept_of` reads; empty bytes if
    all parts succeeded.
    """
    if not binding.cpus:
        return b""
    wanted, own = _numbers(binding.cpus), os.sched_getaffinity(0)
    if len(wanted & own) < _LEAST * len(wanted):
        return b"f%d;" % len(wanted & own)
    try:
        os.sched_setaffinity(0, wanted & own)
    except OSError as error:
        return b"c%d;" % (error.errno or errno.EINVAL)
    code = _prefer(binding.nodes) if binding.nodes else 0
    return b"m%d;" % code if code else b""


def _numbers(cpus: str) -> set[int]:
    found: set[int] = set()
    for part in cpus.split(","):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def _prefer(nodes: Sequence[int]) -> int:
    """Make the calling thread prefer the memory of `nodes`. Return the error number; 0: success."""
    number = _SET_MEMPOLICY.get(os.uname().machine) if sys.maxsize > 2**32 else None
    if number is None:
        return errno.ENOSYS
    if not 0 <= min(nodes) <= max(nodes) < _MOST_NODES:
        return errno.EINVAL
    words = max(nodes) // _WORD + 1
    mask = (ctypes.c_ulong * words)()
    for node in nodes:
        mask[node // _WORD] |= 1 << node % _WORD
    mode = _PREFERRED if len(nodes) == 1 else _PREFERRED_MANY
    # One more than there are bits: the kernel takes one away (get_mempolicy(2), "BUGS").
    size = ctypes.c_ulong(words * _WORD + 1)
    return ctypes.get_errno() if _libc.syscall(ctypes.c_long(number), mode, mask, size) else 0


def kept_of(binding: RankBinding, said: bytes) -> RankBinding:
    """Return the part of `binding` that the child process could set. If a part is missing, `why` of
    the result is the reason.

    `said` are the bytes that `keep_to` returned in the child process.
    """
    notes = [(kind, int(number)) for kind, number in re.findall(_NOTE, said)]
    if not notes:
        return binding
    why = "; ".join(_sentence(kind, number) for kind, number in notes)
    has_cpus = all(kind == b"m" for kind, _ in notes)
    return RankBinding(binding.cpus if has_cpus else "", (), why)


def _sentence(kind: bytes, number: int) -> str:
    if kind == b"f":
        return f"only {number} of its processors may be used by its control group"
    what = "its processors cannot be set" if kind == b"c" else "its memory node cannot be preferred"
    return f"{what}: {os.strerror(number)}"

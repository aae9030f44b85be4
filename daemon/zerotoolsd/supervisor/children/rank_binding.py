"""Where a rank runs and has its memory: processors and memory nodes that it keeps to.

It is set in the child before its program is executed, and the program, its threads and what it
starts inherit it. Memory is preferred from the nodes, never demanded: a node that is full would end
the rank where another has room. A cpuset that leaves a rank less than was planned with is heeded:
systemd gives an attempt's unit one of its own. Nothing here fails an attempt; what could not be
done is said in bytes on the child's pipe (`spawning`), each a letter and a number:

    c22;    the processors could not be set: error 22
    m1;     their memory could not be preferred: error 1
    f3;     only 3 of the processors may be used, too few to keep to them
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
"""arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h of Linux."""
_PREFERRED, _PREFERRED_MANY = 1, 5
"""set_mempolicy(2). Several nodes can be preferred from Linux 5.15 on."""
_MOST_NODES = 1 << 16
_WORD = 8 * ctypes.sizeof(ctypes.c_ulong)
_LEAST = 0.5
"""Of the processors that were planned with."""
_NOTE = re.compile(rb"([cmf])(\d+);")
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class RankBinding:
    """`cpus` are processors, as the kernel lists them (`0-15,32`; empty: any), `nodes` the memory
    nodes that are preferred (none: the kernel's choice); `why` there are none, where it matters."""

    cpus: str = ""
    nodes: tuple[int, ...] = ()
    why: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"cpus": self.cpus, "nodes": list(self.nodes), "why": self.why}

    @classmethod
    def from_json(cls, tree: object) -> RankBinding:
        """What `to_json` made. ValueError where it is not that: a job can write into its run
        directory, too."""
        if isinstance(tree, Mapping):
            cpus, nodes, why = (tree.get(name) for name in ("cpus", "nodes", "why"))
            is_list = isinstance(nodes, list) and all(type(node) is int for node in nodes)
            if isinstance(cpus, str) and is_list and isinstance(why, str | None):
                return cls(cpus, tuple(nodes or ()), why)
        raise ValueError(f"{str(tree)[:100]} is no binding of a rank")


def keep_to(binding: RankBinding) -> bytes:
    """Have the calling thread keep to it; what could not be done, for `kept_of`."""
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
    """The number of the error; 0: none."""
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
    """What of `binding` a child keeps to that said this, and why no more."""
    notes = [(kind, int(number)) for kind, number in _NOTE.findall(said)]
    if not notes:
        return binding
    why = "; ".join(_sentence(kind, number) for kind, number in notes)
    has_cpus = all(kind == b"m" for kind, _ in notes)
    return RankBinding(binding.cpus if has_cpus else "", (), why)


def _sentence(kind: bytes, number: int) -> str:
    if kind == b"f":
        return f"only {number} of its processors may be used by its control group"
    what = "its processors cannot be set" if kind == b"c" else "its memory is not preferred"
    return f"{what}: {os.strerror(number)}"

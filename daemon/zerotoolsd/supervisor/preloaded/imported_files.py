"""The files that a process has imported: whether they are unchanged, and whether it may be
forked."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_INSTALLED = ("site-packages", "dist-packages")
_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri")

Stamp = tuple[int, int, int, int]


@dataclass(frozen=True)
class LoadedFiles:
    """Files and directories as they were when modules were imported from them."""

    stamps: dict[str, Stamp]

    @classmethod
    def now(cls) -> LoadedFiles:
        """Read the files of this process: interpreter, modules, libraries, and the directories of
        packages."""
        paths = (sys.executable, *_modules(), *_mapped(), *_packages())
        found = {path: _stamp(path) for path in paths}
        return cls({path: stamp for path, stamp in found.items() if stamp is not None})

    def newer(self, time_ns: int) -> str | None:
        """Return the first file that was written after `time_ns`; the imported version may be
        older."""
        return next((p for p, stamp in self.stamps.items() if stamp[0] > time_ns), None)

    def changed(self) -> str | None:
        """Return the first file that has changed or is gone."""
        return next((p for p, stamp in self.stamps.items() if _stamp(p) != stamp), None)


def _modules() -> Iterator[str]:
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if isinstance(path, str) and path.startswith("/"):
            yield path


def _mapped() -> Iterator[str]:
    for line in Path("/proc/self/maps").read_text("utf-8", "surrogateescape").splitlines():
        path = line.split(None, 5)[5:]
        if path and path[0].startswith("/") and not path[0].endswith(" (deleted)"):
            yield path[0]


def _packages() -> Iterator[str]:
    # Not every directory of PYTHONPATH, because a program may often write into its own.
    return (path for path in sys.path if path.rstrip("/").endswith(_INSTALLED))


def _stamp(path: str) -> Stamp | None:
    try:
        found = os.stat(path)  # noqa: PTH116  # of thousands
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev


def why_not_forked() -> str | None:
    """Return the reason why this process cannot be forked after its imports; None if it can."""
    threads = len(os.listdir("/proc/self/task"))  # noqa: PTH208
    if threads != 1:
        return f"importing started threads ({threads} run), which a fork would lack"
    device = next((path for path in _open_paths() if path.startswith(_DEVICES)), None)
    if device is not None:
        return f"importing opened {device}, and a GPU cannot be used after a fork then"
    return None


def _open_paths() -> Iterator[str]:
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        try:
            yield os.readlink(f"/proc/self/fd/{name}")  # noqa: PTH115
        except OSError:  # that of the listing itself
            continue


def resident_bytes() -> int:
    """Return the memory of this process, including pages that it shares with its forks."""
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def import_all(names: Iterable[str]) -> None:
    """Import the modules; for `MODULE:FUNCTION`, also call the function. Raises their errors."""
    from importlib import import_module

    for name in names:
        module, _, function = name.partition(":")
        found = import_module(module)
        if function:
            getattr(found, function)()

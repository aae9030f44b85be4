"""The program of a rank: `python -P entry.py --run-dir DIR`, under any interpreter that has torch.

The interpreter need not have zerotools installed. `PackageFinder` makes only the packages
`zerotools` and `zerotoolsd` importable, from the location of this file. `sys.path` and PYTHONPATH
do not change.
"""

from __future__ import annotations

import argparse
import importlib.machinery
import importlib.util
import sys
import time
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import ModuleType
from typing import NoReturn

STARTED = time.monotonic()
DAEMON = Path(__file__).resolve().parents[1]


class PackageFinder(MetaPathFinder):
    """An import finder for the packages in `folders`, a mapping from package name to folder.

    Python finds the submodules of these packages as usual.
    """

    def __init__(self, folders: dict[str, Path]) -> None:
        self.folders = folders

    def find_spec(
        self, fullname: str, path: object = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the import spec of the package `fullname` in `folders`; None for every other
        name.
        """
        folder = self.folders.get(fullname)
        if folder is None:
            return None
        return importlib.util.spec_from_file_location(
            fullname, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )


def zerotools_folder(daemon: Path) -> Path:
    """Return the folder of the package `zerotools`.

    `daemon` is the folder of the package `zerotoolsd`. If the packages are installed, `zerotools`
    is next to it. In a source tree, `zerotools` is one level higher.

    Raises:
        FileNotFoundError: the package is in neither folder.
    """
    for parent in (daemon.parent, daemon.parent.parent):
        folder = parent / "zerotools"
        if (folder / "__init__.py").is_file():
            return folder
    raise FileNotFoundError(f"the package zerotools is missing next to {daemon}")


def make_importable() -> None:
    """Make zerotools and zerotoolsd importable in this interpreter, from the location of this
    file.
    """
    folders = {"zerotools": zerotools_folder(DAEMON), "zerotoolsd": DAEMON}
    sys.meta_path.insert(0, PackageFinder(folders))


def main() -> NoReturn:
    """Run a rank with the options of the command line, and end the process."""
    parser = argparse.ArgumentParser(description="One rank of a zerotools training job.")
    parser.add_argument("--run-dir", type=Path, required=True, help="the attempt's directory")
    run_dir: Path = parser.parse_args().run_dir
    make_importable()
    from zerotoolsd.trainer.run_rank import main as run_rank

    run_rank(run_dir, STARTED)


if __name__ == "__main__":
    main()

"""Two libraries that read and write object stores, against the same servers: obstore and s3fs.

    python -m benchmarks.stores.libraries [--runs 5] [--venvs DIRECTORY]

Each library is installed into a virtual environment of its own, which --venvs keeps. S3 is moto,
and HTTP our own static server, each a process on the same machine: the seconds are those of client
and server together, and processor seconds are the client's alone.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.measuring import ROOT, machine, measure
from benchmarks.stores import library_calls
from harness.stores.s3 import S3Server

PACKAGES = {"obstore": ("obstore==0.12.1",), "s3fs": ("s3fs", "aiohttp")}
IMPORTS = {"obstore": "import obstore.store", "s3fs": "import s3fs, fsspec.implementations.http"}
CALLS = {
    "list": "S3: list 2,000 objects",
    "ranges": "S3: 64 ranges of 1 MiB of 256 MiB, at once",
    "get": "S3: get 256 MiB",
    "put": "S3: put 256 MiB, in parts of 16 MiB",
    "http ranges": "HTTP: 64 ranges of 1 MiB of 256 MiB, at once",
    "http get": "HTTP: get 256 MiB",
}


@dataclass(frozen=True)
class Installed:
    """A library in its environment: what came with it beside pip, and how large all of it is."""

    python: Path
    packages: list[str]
    megabytes: float


def installed(directory: Path, library: str) -> Installed:
    """An environment with that library alone, made where there is none."""
    python = directory / library / "bin" / "python"
    if not python.exists():
        venv.create(directory / library, with_pip=True)
        command = [str(python), "-m", "pip", "install", "-q", *PACKAGES[library]]
        subprocess.run(command, check=True)
    listed = [str(python), "-m", "pip", "list", "--format", "json"]
    found = json.loads(subprocess.run(listed, check=True, capture_output=True).stdout)
    packages = [f"{each['name']} {each['version']}" for each in found]
    [site] = (directory / library / "lib").glob("python*/site-packages")
    files = [path for path in site.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    ours = [path for path in files if path.relative_to(site).parts[0].split("-")[0] not in _TOOLS]
    size = sum(path.stat().st_size for path in ours)
    return Installed(
        python, [each for each in packages if each.split()[0] not in _TOOLS], size / 1e6
    )


_TOOLS = {"pip", "setuptools", "_distutils_hack", "pkg_resources", "distutils-precedence.pth"}


@contextmanager
def served_directory(directory: Path) -> Iterator[str]:
    """Our static server of it, in a process of its own: where it is."""
    command = [sys.executable, "-m", "harness.stores.static", str(directory)]
    process = subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.kill()


def called(of: Installed, library: str, call: str, url: str, runs: int) -> dict[str, Any]:
    """What `library_calls` prints, in the environment of that library."""
    program = str(Path(library_calls.__file__))
    command = [str(of.python), program, library, call, url, str(runs)]
    told: dict[str, Any] = json.loads(measure(command).output)
    return told


def import_row(of: dict[str, Installed], runs: int) -> str:
    """Processor milliseconds of an import, above those of an empty interpreter."""
    told = []
    for library, each in of.items():
        spent = []
        for statement in ("pass", IMPORTS[library]):
            times = [measure([str(each.python), "-c", statement]) for _ in range(runs + 1)]
            spent.append(median(result.cpu_seconds for result in times[1:]))
        told.append(f"{1000 * (spent[1] - spent[0]):.0f} ms CPU")
    return f"| import | {' | '.join(told)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--venvs", type=Path)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary, S3Server() as store:
        venvs = options.venvs or Path(temporary) / "venvs"
        of = {library: installed(venvs.absolute(), library) for library in PACKAGES}
        data = b"x" * library_calls.BIG_BYTES
        store.put(library_calls.BIG, data)
        for number in range(library_calls.OBJECTS):
            store.put(f"{library_calls.MANY}/{number:04}", b"1")
        files = Path(temporary) / "files"
        files.mkdir()
        (files / library_calls.BIG).write_bytes(data)
        print(f"{machine()}; median of {options.runs} runs after a first.\n")
        print(f"| what | {' | '.join(of)} |\n|---|{'---|' * len(of)}")
        packages = [f"{len(each.packages)}" for each in of.values()]
        print(f"| packages that it installs, itself included | {' | '.join(packages)} |")
        print(f"| installed | {' | '.join(f'{e.megabytes:.0f} MB' for e in of.values())} |")
        print(import_row(of, options.runs))
        with served_directory(files) as plain:
            for call, what in CALLS.items():
                url = plain if call.startswith("http") else store.url
                cells = []
                for library, each in of.items():
                    told = called(each, library, call, url, options.runs)
                    wall, cpu = median(told["wall"]), median(told["cpu"])
                    peak = told["peak"] / 1e6
                    cells.append(f"{wall:.2f} s, {cpu:.2f} s CPU, peak {peak:.0f} MB")
                print(f"| {what} | {' | '.join(cells)} |", flush=True)
        for library, each in of.items():
            print(f"\n{library}: {', '.join(each.packages)}")


if __name__ == "__main__":
    main()

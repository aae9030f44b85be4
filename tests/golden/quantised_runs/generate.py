"""Make the golden cases of a library.

    python -m tests.golden.quantised_runs.generate LIBRARY --out DIR

Run it with an interpreter that has the library: those of other libraries are not imported.
"""

from __future__ import annotations

import argparse
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

LIBRARIES = ("transformers", "compressed-tensors", "bitsandbytes", "torchao")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", choices=LIBRARIES)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    module = f"tests.golden.quantised_runs.cases_of_{given.library.replace('-', '_')}"
    root = given.out / f"{given.library}-{version(given.library)}"
    for case in import_module(module).cases():
        case.write(root)
        print(root / case.name)


if __name__ == "__main__":
    main()

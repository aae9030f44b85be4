"""`double`: a machine whose NVML a test controls, down to the shared library."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sensors.double import Double

SOURCE = Path(__file__).parents[2] / "harness" / "nvml_double.c"


NEWEST = 3


def compiled(directory: Path, lists: int) -> Path:
    """`directory`, with a libnvidia-ml.so.1 compiled from `nvml_double.c`, which says what `lists`
    is."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler for the NVML double")
    options = ("-shared", "-fPIC", "-Wall", "-Werror", "-O1", f"-DLISTS={lists}")
    target = directory / "libnvidia-ml.so.1"
    subprocess.run([compiler, *options, "-o", target, SOURCE], check=True)
    return directory


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the library of a driver of today."""
    return compiled(tmp_path_factory.mktemp("nvml"), NEWEST)


@pytest.fixture
def double(library: Path, tmp_path: Path) -> Iterator[Double]:
    machine = Double(library, tmp_path)
    yield machine
    for probe in machine.probes:
        probe.close()

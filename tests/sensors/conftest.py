"""`double`: a machine whose NVML a test controls, down to the shared library."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sensors.double import Double

SOURCE = Path(__file__).with_name("nvml_double.c")


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a libnvidia-ml.so.1 compiled from `nvml_double.c`."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler for the NVML double")
    directory = tmp_path_factory.mktemp("nvml")
    target = directory / "libnvidia-ml.so.1"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-Wall", "-Werror", "-O1", "-o", target, SOURCE], check=True
    )
    return directory


@pytest.fixture
def double(library: Path, tmp_path: Path) -> Iterator[Double]:
    machine = Double(library, tmp_path)
    yield machine
    for probe in machine.probes:
        probe.close()

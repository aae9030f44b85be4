"""A machine with GPUs that are not there: NVML's double, compiled, and what it says."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from benchmarks.measuring import ROOT

SOURCE = ROOT / "harness" / "nvml_double.c"


def gpus_of(work: Path, count: int) -> Mapping[str, str]:
    """The environment of a machine with so many GPUs, on each of which this process holds memory.

    Raises RuntimeError: there is no C compiler.
    """
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise RuntimeError("needs a C compiler for NVML's double")
    library = work / "libnvidia-ml.so.1"
    if not library.exists():
        command = [compiler, "-shared", "-fPIC", "-O2", "-DLISTS=3", "-o", library, SOURCE]
        subprocess.run(command, check=True)
    lines = [f"gpu GPU-double-{n} 81559 71000 0" for n in range(count)]
    lines += [f"hold {n} {os.getpid()} 70500" for n in range(count)]
    lines += [f"runs {n} 97 68 690 1710" for n in range(count)]
    state = work / f"gpus-{count}"
    state.write_text("\n".join(lines) + "\n")
    return {**os.environ, "LD_LIBRARY_PATH": str(work), "NVML_DOUBLE": str(state)}

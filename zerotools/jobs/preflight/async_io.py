"""Check that DeepSpeed's operator `async_io` can be used. Offload to NVMe needs this operator.

DeepSpeed compiles the operator at its first use, unless it was compiled at the installation. The
job's interpreter runs this file as a program, so the file imports only the standard library. Its
argument is the job's device. The program prints the missing parts as JSON.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

_PROGRAM = """#include <libaio.h>
int main() { io_context_t c = 0; int status = io_setup(8, &c); return status < 0 ? -status : 0; }
"""
_INSTALL = "install libaio-dev (libaio-devel on Fedora and similar systems)"
_NO_LIBRARY = 127
"""The exit status of a program if the dynamic loader does not find a library of the program."""


def async_io_refusal(why: str) -> str:
    """Return the error message for a job with offload to NVMe.

    `why` is the reason that `why_no_async_io` returned.
    """
    return (
        'deepspeed.config offloads to "nvme", and the operator that DeepSpeed needs for it, '
        f'async_io, cannot be compiled here: {why}, or offload to "cpu"'
    )


def why_no_async_io(device: str = "cpu") -> str | None:
    """Return the reason why this interpreter cannot use DeepSpeed's `async_io` for the `device`,
    with a remedy; None if the interpreter can use it.
    """
    if _is_installed():
        return None
    if device == "cuda" and (why := without_toolkit()) is not None:
        return f"{why}; install the CUDA toolkit of torch's version and set CUDA_HOME to it"
    compiler = os.environ.get("CXX", "c++")
    for program in (compiler, "ninja"):
        if shutil.which(program, path=_path()) is None:
            return f"{program} is not installed; install it"
    return _without_libaio(compiler)


def without_toolkit() -> str | None:
    """Return the reason why this machine cannot compile operators for GPUs.

    Return None if an nvcc is found and runs.

    nvcc is searched where torch searches it (`torch.utils.cpp_extension._find_cuda_home`), and run
    as DeepSpeed runs it (`installed_cuda_version`).
    """
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    if home is None and (found := shutil.which("nvcc")) is not None:
        home = str(Path(found).parents[1])
    if home is None and (usual := Path("/usr/local/cuda")).exists():
        home = str(usual)
    if home is None:
        return "the CUDA toolkit is missing"
    nvcc = Path(home, "bin", "nvcc")
    try:
        status = _status(nvcc, "-V")
    except OSError as error:
        return f"{nvcc} cannot be run ({error.strerror})"
    return f"{nvcc} -V ends with status {status}" if status else None


def _is_installed() -> bool:
    """Return whether `async_io` was compiled when DeepSpeed was installed (DS_BUILD_AIO=1)."""
    return any(next(folder.glob("async_io_op*.so"), None) for folder in _folders())


def _folders() -> Iterator[Path]:
    found = importlib.util.find_spec("deepspeed")
    for folder in (found and found.submodule_search_locations) or ():
        yield Path(folder) / "ops" / "aio"


def _path() -> str:
    """Return the value of PATH, extended by the directory where pip installs ninja."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def _without_libaio(compiler: str) -> str | None:
    with tempfile.TemporaryDirectory() as scratch:
        source, program = Path(scratch, "libaio.cpp"), Path(scratch, "libaio")
        source.write_text(_PROGRAM)
        if _status(compiler, source, "-o", program, "-laio"):
            return f"{compiler} does not find libaio; {_INSTALL}"
        try:
            status = _status(program)
        except PermissionError:  # not allowed to run a program or query the kernel
            return None
    if status == _NO_LIBRARY:
        return "the loader does not find libaio.so; name its directory in LD_LIBRARY_PATH"
    return f"the kernel has no asynchronous I/O: {os.strerror(status)}" if status else None


def _status(*command: str | Path) -> int:
    quiet = subprocess.DEVNULL
    return subprocess.run(command, stdin=quiet, stdout=quiet, stderr=quiet, check=False).returncode


if __name__ == "__main__":
    print(json.dumps(why_no_async_io(sys.argv[1])))

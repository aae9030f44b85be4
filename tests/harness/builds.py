"""DeepSpeed's operators, compiled once for this environment: `python -m tests.harness.builds`.

It takes minutes, for which a test does not wait; `scripts/test` does it beforehand. torch guards a
build by a file called `lock` that it never removes where the build was killed, and everything that
needs the operator then waits for ever. Whoever runs tests holds a lock of the kernel here, so that
files of builds that are over can be told and are removed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
from pathlib import Path
from typing import IO

DIRECTORY = Path(os.environ.get("TORCH_EXTENSIONS_DIR", f"{sys.prefix}/torch_extensions"))
OPERATORS = ("CPUAdamBuilder", "ShareMemCommBuilder")
STALE = ("lock", ".ninja_lock")


def hold(directory: Path = DIRECTORY) -> IO[bytes]:
    """Remove the locks of builds that were killed, unless someone else holds `directory`; hold it
    until the file is closed."""
    directory.mkdir(parents=True, exist_ok=True)
    file = (directory / "in-use").open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pass  # a build may be going on
    else:
        for path in (path for name in STALE for path in directory.glob(f"*/{name}")):
            path.unlink()
    fcntl.flock(file, fcntl.LOCK_SH)
    return file


def main() -> None:
    """Compile what is not there yet."""
    if shutil.which("c++") is None:
        print("no C++ compiler: DeepSpeed's operators are not compiled, and tests do without")
        return
    os.environ |= {
        "DS_ACCELERATOR": "cpu",
        "TORCH_EXTENSIONS_DIR": str(DIRECTORY),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",  # DeepSpeed's own ninja
    }
    with hold():
        from deepspeed.ops import op_builder

        for name in OPERATORS:
            builder = getattr(op_builder, name)()
            if not (DIRECTORY / builder.name / f"{builder.name}.so").exists():
                print(f"compiling {builder.name} (once; minutes)", flush=True)
                builder.load(verbose=False)


if __name__ == "__main__":
    main()

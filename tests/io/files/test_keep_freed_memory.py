from __future__ import annotations

import subprocess
import sys

import pytest

_PROGRAM = """
import resource, sys
from zerotools.io.files.keep_freed_memory import keep_freed_memory

if sys.argv[1] == "kept":
    keep_freed_memory()

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

for _ in range(3):
    blocks = [bytearray(b"1") * (4 << 20) for _ in range(4)]
    del blocks
before = faults()
for _ in range(10):
    blocks = [bytearray(b"1") * (4 << 20) for _ in range(4)]
    del blocks
print(faults() - before)
"""
PAGES = (16 << 20) // 4096


@pytest.mark.skipif(sys.platform != "linux", reason="mallopt is of glibc")
def test_memory_that_was_freed_is_used_again_without_page_faults() -> None:
    def faults(how: str) -> int:
        command = [sys.executable, "-c", _PROGRAM, how]
        return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    assert faults("kept") < PAGES <= faults("returned")

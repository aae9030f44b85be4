"""What a process is refused by the kernel is refused before."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
from collections.abc import Sequence

import pytest

from zerotools.jobs.text.exec_limits import stack_bytes_allowed, stack_bytes_needed, too_long


def kernel_takes(arguments: Sequence[str], environment: dict[str, str]) -> bool:
    try:
        subprocess.run(("/bin/true", *arguments), env=environment, check=True)
    except OSError as error:
        if error.errno != errno.E2BIG:
            raise
        return False
    return True


@pytest.mark.skipif(os.sysconf("SC_PAGE_SIZE") != 4096, reason="the limit is 32 pages")
def test_the_kernel_agrees_about_one_string() -> None:
    for length in (131_071, 131_072):
        argument = "x" * length
        assert kernel_takes([argument], {}) == (too_long(argument) is None)
        value = "\udce9" * (length - len("ABC="))  # bytes, not characters
        assert kernel_takes([], {"ABC": value}) == (too_long(value, "ABC") is None)


def test_the_kernel_agrees_about_all_of_them() -> None:
    room = stack_bytes_allowed(resource.getrlimit(resource.RLIMIT_STACK)[0])
    environment = {f"VARIABLE_{index:06}": "x" * 1000 for index in range(room // 1100)}
    taken = stack_bytes_needed([], environment)
    assert taken < room - 8192
    assert kernel_takes([], environment)
    more = environment | {f"MORE_{index:06}": "x" * 1000 for index in range(room // 5000)}
    assert stack_bytes_needed([], more) > room
    assert not kernel_takes([], more)


def test_the_room_is_a_quarter_of_the_stack_within_bounds() -> None:
    assert stack_bytes_allowed(8 << 20) == 2 << 20
    assert stack_bytes_allowed(1 << 10) == 128 << 10
    assert stack_bytes_allowed(-1) == stack_bytes_allowed(1 << 40) == 6 << 20

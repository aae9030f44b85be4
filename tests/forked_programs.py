"""Programs that ask transformers, forked from a process that has imported it: `python -P -c` takes
0.3 s of processor time there, and 4.5 s anew.

The full matrices start them anew.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import pytest

from harness import forked
from tests.matrices import FULL


@contextmanager
def forked_programs(place: Path) -> Iterator[None]:
    """In this context, `subprocess.run` forks what is started as `python -P -c PROGRAM`; `place` is
    where it may write."""
    if FULL:
        yield
        return
    anew = subprocess.run

    def run(
        words: Sequence[str],
        *,
        input: str = "",
        env: Mapping[str, str] | None = None,
        timeout: float = 120.0,
        **others: Any,
    ) -> subprocess.CompletedProcess[str]:
        if list(words[1:3]) != ["-P", "-c"]:
            return anew(words, input=input, env=env, timeout=timeout, **others)
        program = place / "program.py"
        program.write_text(f"import io, sys\nsys.stdin = io.StringIO({input!r})\n{words[3]}")
        with TemporaryFile() as out, TemporaryFile() as err:
            process = forked.start(
                forked.TORCH,
                ["-P", str(program), *words[4:]],
                cwd=Path.cwd(),
                env=dict(os.environ if env is None else env),
                out=out,
                err=err,
            )
            status = process.wait(timeout)
            said = []
            for stream in (out, err):
                stream.seek(0)
                said.append(stream.read().decode())
        return subprocess.CompletedProcess(list(words), status, *said)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("subprocess.run", run)
        yield

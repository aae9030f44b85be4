"""What attacks zerotools, shown to the commands that users run: each says one sentence about it,
runs nothing, writes nothing outside of the output, ends soon, and takes little memory."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile import (
    dcp_cases,
    file_cases,
    pattern_cases,
    pickle_cases,
    safetensors_cases,
    sidecar_cases,
    tensor_cases,
    zip_cases,
)
from tests.hostile.case import ARGUMENTS, Case
from tests.hostile.warden import Outcome, Warden

OF = (
    pattern_cases,
    pickle_cases,
    zip_cases,
    tensor_cases,
    safetensors_cases,
    dcp_cases,
    file_cases,
    sidecar_cases,
)
CASES = {
    f"{module.__name__.rpartition('.')[2].removesuffix('_cases')}: {case.name}": case
    for module in OF
    for case in module.CASES
}
MOST_BYTES = 200 * 10**6
LEAST = 60


@pytest.fixture(scope="module")
def warden() -> Iterator[Warden]:
    with Warden() as started:
        yield started


@pytest.fixture
def place() -> Iterator[Path]:
    """Where another user may look, too: `in` for the case, `to` for outputs."""
    path = Path(tempfile.mkdtemp(prefix="zerotools-hostile-"))
    for folder, mode in ((path, 0o755), (path / "in", 0o755), (path / "to", 0o777)):
        folder.mkdir(exist_ok=True)
        folder.chmod(mode)
    yield path
    shutil.rmtree(path)


def test_there_are_enough_and_none_is_there_twice() -> None:
    assert len(CASES) == sum(len(module.CASES) for module in OF) >= LEAST


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_it_is_refused_with_a_sentence(warden: Warden, place: Path, case: Case) -> None:
    path = case.make(place / "in")
    before = _listing(place / "in")
    for number, command in enumerate(case.commands):
        out = place / "to" / f"out-{number}"
        given = [part.format(path=path, out=out) for part in ARGUMENTS[command]]
        found = warden.run(given, place / "to", as_nobody=case.as_nobody)
        judge(case, command, found)
        assert out.exists() == (found.status == 0 and "{out}" in ARGUMENTS[command])
    assert _listing(place / "in") == before
    assert not pickle_cases.MARK.exists()


def judge(case: Case, command: str, found: Outcome) -> None:
    """It said what it must, and did nothing else."""
    assert re.search(case.says, found.said), (command, found)
    assert "Traceback" not in found.said
    assert "defect in zerotools" not in found.said
    assert found.status >= 0, (command, found)
    assert case.status in (None, found.status), (command, found)
    assert found.deeds == []
    assert found.peak <= MOST_BYTES, (command, found)


def _listing(directory: Path) -> list[tuple[str, int, int]]:
    found = (path.lstat() for path in sorted(directory.rglob("*")))
    names = [path.name for path in sorted(directory.rglob("*"))]
    return [(name, each.st_size, each.st_mtime_ns) for name, each in zip(names, found, strict=True)]

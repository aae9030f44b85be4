"""The files for systemd, with the path of the program."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from zerotoolsd.app.systemd_units import UNITS, unit_text

SYSTEMD = Path(__file__).resolve().parents[3] / "systemd"


def test_every_file_for_systemd_has_a_name() -> None:
    files = {path.relative_to(SYSTEMD).as_posix() for path in SYSTEMD.rglob("*") if path.is_file()}
    assert files == {*UNITS.values()}
    for name, file in UNITS.items():
        assert unit_text(name) == (SYSTEMD / file).read_text()


@pytest.mark.parametrize(
    ("program", "written"),
    [
        ("/opt/zerotools/bin/zerotoolsd", "/opt/zerotools/bin/zerotoolsd"),
        ("/home/a b/bin/zerotoolsd", '"/home/a b/bin/zerotoolsd"'),
        ("/a%b/$c/zerotoolsd", "/a%%b/$c/zerotoolsd"),
        ("/a%b/$c d/zerotoolsd", '"/a%%b/$c d/zerotoolsd"'),
        ('/a"\\b/zerotoolsd', '/usr/bin/env "/a\\"\\\\b/zerotoolsd"'),
        ("/o'b/$c/zerotoolsd", '/usr/bin/env "/o\'b/$$c/zerotoolsd"'),
    ],
)
def test_a_unit_starts_the_program_that_printed_it(program: str, written: str) -> None:
    lines = unit_text("user", program).splitlines()
    assert f"ExecStart={written}" in lines
    system = unit_text("system", program)
    assert f"ExecStart={written} --state-dir /var/lib/zerotools" in system.splitlines()
    assert "/usr/bin/env zerotoolsd" not in system


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@pytest.mark.parametrize("folder", ["plain", "a b", "$c", "${c} d", "50%d", "é;#", "o'b", 'a"\\b'])
def test_systemd_finds_the_program(folder: str, tmp_path: Path) -> None:
    program = tmp_path / folder / "zerotoolsd"
    program.parent.mkdir()
    program.symlink_to("/bin/true")
    unit = tmp_path / "zerotools-of-a-test.service"
    start = next(
        line
        for line in unit_text("user", str(program)).splitlines()
        if line.startswith("ExecStart=")
    )
    unit.write_text(f"[Service]\n{start}\n", "utf-8")
    command = ["systemd-analyze", "verify", unit]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert [line for line in done.stderr.splitlines() if unit.name in line] == []

"""The files for systemd, with the path of the program."""

from __future__ import annotations

from pathlib import Path

import pytest

from zerotoolsd.command.units import UNITS, unit_text

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
        ("/a%b/$c/zerotoolsd", '"/a%%b/$$c/zerotoolsd"'),
        ('/a"\\b/zerotoolsd', '"/a\\"\\\\b/zerotoolsd"'),
    ],
)
def test_a_unit_starts_the_program_that_printed_it(program: str, written: str) -> None:
    lines = unit_text("user", program).splitlines()
    assert f"ExecStart={written}" in lines
    system = unit_text("system", program)
    assert f"ExecStart={written} --state-dir /var/lib/zerotools" in system.splitlines()
    assert "/usr/bin/env" not in system

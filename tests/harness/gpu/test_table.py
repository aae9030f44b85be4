"""The files of a run, and the wheels of a folder."""

from __future__ import annotations

import json
from pathlib import Path

from harness.gpu.table import LINES, MEMORY, TABLE, Row, installed, summary, write


def test_failures_are_said_again_at_the_end(tmp_path: Path) -> None:
    memory = ("stage 1, reserved: 10.00 MiB predicted, 9.00 held",)
    rows = [
        Row("versions", "a torch", "torch 2.13.0, no card", "ok", 1.0),
        Row("attention", "1e-5", "3.0e-02 apart", "FAIL", 2.0, memory),
        Row("NVML answers", "each in 2 s", "a CPU has no driver", "skip", 0.0),
        Row("speed", "0.9", "the budget is used up", "late", 0.0),
    ]
    last = "ran 2, failed 1, late 1, skipped 1, torch 2.13.0, no card"
    again = ["FAIL attention: 3.0e-02 apart", "late speed: the budget is used up"]
    assert summary(rows) == [*again, last]
    write(rows, tmp_path)
    table = (tmp_path / TABLE).read_text().splitlines()
    assert table[1] == "attention | 1e-5 | 3.0e-02 apart | FAIL | 2.0"
    assert table[-1] == last
    lines = [json.loads(line) for line in (tmp_path / LINES).read_text().splitlines()]
    assert [line["state"] for line in lines] == ["ok", "FAIL", "skip", "late"]
    assert (tmp_path / MEMORY).read_text() == f"attention: {memory[0]}\n"


def test_wheels_come_from_the_folder_alone(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    assert installed(wheels, tmp_path).found == f"{wheels} has none"
    (wheels / "nothing-1.0-py3-none-any.whl").write_bytes(b"no archive")
    row = installed(wheels, tmp_path)
    assert (row.state, "nothing" in row.found) == ("FAIL", True)

"""What is read from a run directory that its own ranks can write to."""

import os
from pathlib import Path

from zerotoolsd import told


def test_the_newest_step_is_found_among_other_lines(tmp_path: Path) -> None:
    lines = [b'{"event": "step", "step": 1}', b'{"event": "step", "step": 2}', b"[", b'{"event": 3']
    (tmp_path / "progress.jsonl").write_bytes(b"x" * 40_000 + b"\n" + b"\n".join(lines))
    assert told.last_step(tmp_path) == {"event": "step", "step": 2}


def test_a_pipe_in_the_place_of_the_file_is_not_waited_for(tmp_path: Path) -> None:
    assert told.last_step(tmp_path) is None
    os.mkfifo(tmp_path / "progress.jsonl")
    assert told.last_step(tmp_path) is None

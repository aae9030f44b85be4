"""What the writing commands say when they are interrupted."""

from __future__ import annotations

from pathlib import Path

import pytest

from zerotools.cli.output.convert_and_report import hint_at_resuming
from zerotools.io.output.staging import partial_of


def test_an_interrupted_run_says_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt), hint_at_resuming(out):
        raise KeyboardInterrupt
    assert capsys.readouterr().err == ""
    partial_of(out).mkdir()
    with pytest.raises(KeyboardInterrupt), hint_at_resuming(out):
        raise KeyboardInterrupt
    kept = f"note: {tmp_path}/out.partial is kept"
    said = f"{kept}; run the same command with --resume to continue\n"
    assert capsys.readouterr().err == said

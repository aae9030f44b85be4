"""What the writing commands say when they are interrupted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden_files import JOB
from zerotools.cli.options.conversion_options import hint_at_resuming
from zerotools.io.output.staging import partial_of
from zerotools.ops.conversions.consolidate import Options, prepare


def test_an_interrupted_run_says_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    conversion = prepare(JOB, tmp_path / "out", Options())
    with pytest.raises(KeyboardInterrupt), hint_at_resuming(conversion):
        raise KeyboardInterrupt
    assert capsys.readouterr().err == ""
    partial_of(tmp_path / "out").mkdir()
    with pytest.raises(KeyboardInterrupt), hint_at_resuming(conversion):
        raise KeyboardInterrupt
    kept = f"note: {tmp_path}/out.partial is kept"
    said = f"{kept}; run the same command with --resume to continue\n"
    assert capsys.readouterr().err == said

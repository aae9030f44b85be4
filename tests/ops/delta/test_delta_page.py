"""The program in docs/explanation/delta-file.md applies a delta as `zerotools apply` does."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import ml_dtypes
import numpy as np

import zerotools
from harness.started import run
from tests.ops.delta.pairs import stepped, weights, write_model

PAGE = Path(__file__).parents[3] / "docs/explanation/delta-file.md"


def test_the_program_of_the_page_applies_every_kind_of_block(tmp_path: Path) -> None:
    (text,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert len(text.splitlines()) < 100
    program = tmp_path / "program.py"
    program.write_text(text)
    a = write_model(tmp_path / "a", weights())
    step = stepped(weights(), 0.05)
    step["b.weight"] = (step["b.weight"] * 1.5).astype(ml_dtypes.bfloat16)
    step["fresh"] = np.arange(7, dtype=np.float32)
    b = write_model(tmp_path / "b", step)
    for path in (a, b):
        (path / "tokenizer.json").write_text('{"words": "' + "x" * 70_000 + '"}')
    zerotools.delta(a, b, tmp_path / "d")
    zerotools.apply(a, tmp_path / "d", out=tmp_path / "made")
    command = [sys.executable, program, a, tmp_path / "d", tmp_path / "by-program"]
    run(command, timeout=60, check=True)
    for path in (tmp_path / "by-program").iterdir():
        assert path.read_bytes() == (tmp_path / "made" / path.name).read_bytes(), path.name

"""The program in docs/explanation/delta-file.md applies a delta as `zerotools apply` does."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np

import zerotools
from harness.started import run
from tests.ops.delta.pairs import stepped, weights, write_model
from zerotools.core import dtypes

PAGE = Path(__file__).parents[3] / "docs/explanation/delta-file.md"


def test_the_program_of_the_page_applies_every_kind_of_block(tmp_path: Path) -> None:
    (text,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert len(text.splitlines()) < 100
    program = tmp_path / "program.py"
    program.write_text(text)
    every = {
        "of-float64": np.linspace(0, 1, 50),
        "of-uint8": np.arange(50, dtype=np.uint8),
        "of-bool": np.arange(50) % 3 == 0,
        "of-float8": np.linspace(0, 1, 50).astype(ml_dtypes.float8_e4m3fn),
        "of-int32": np.arange(50, dtype=np.int32),
    }
    a = write_model(tmp_path / "a", {**weights(), **every})
    moved = {name: np.ascontiguousarray(array[::-1]) for name, array in every.items()}
    step = {**stepped(weights(), 0.05), **moved}
    step["b.weight"] = (step["b.weight"] * 1.5).astype(ml_dtypes.bfloat16)
    step["fresh"] = np.arange(7, dtype=np.float32)
    b = write_model(tmp_path / "b", step)
    for path in (a, b):
        (path / "tokenizer.json").write_text('{"words": "' + "x" * 70_000 + '"}')
    for part in ("2/2", "1/2"):
        zerotools.delta(a, b, tmp_path / "d", part=part)
    zerotools.apply(a, tmp_path / "d", out=tmp_path / "made")
    command = [sys.executable, program, a, tmp_path / "d", tmp_path / "by-program"]
    run(command, timeout=60, check=True)
    for path in (tmp_path / "by-program").iterdir():
        assert path.read_bytes() == (tmp_path / "made" / path.name).read_bytes(), path.name
    whole = (tmp_path / "d").read_bytes()
    (tmp_path / "d").write_bytes(whole[:200] + bytes([whole[200] ^ 1]) + whole[201:])
    command[-1] = tmp_path / "damaged"
    refused = run(command, timeout=60, stderr=subprocess.PIPE)
    assert (refused.returncode, b"the delta is damaged" in refused.stderr) == (1, True)
    assert not (tmp_path / "damaged").exists()
    zerotools.delta(a, b, tmp_path / "d", overwrite=True)
    command[2:] = [b, tmp_path / "d", tmp_path / "twice"]
    refused = run(command, timeout=60, stderr=subprocess.PIPE)
    assert b"the delta was made from another A" in refused.stderr


def test_the_page_names_every_dtype() -> None:
    rows = re.findall(r"^\| (`.*`) \| (\d+) \| (`.*`) \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    named = {
        (name, int(width), stored)
        for names, width, stores in rows
        for name, stored in zip(names.split(", "), stores.split(", "), strict=True)
    }
    assert named == {
        (f"`{each.name}`", each.itemsize, f"`{each.safetensors}`")
        for each in dtypes.DTYPES
        if each.safetensors is not None
    }

"""docs/how-to/use-from-python.md is run as a notebook, by a real kernel."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.formats.deepspeed.reading.test_check_same_save import poke
from tests.golden_files import DEEPSPEED, GOLDEN

PAGE = Path(__file__).resolve().parents[2] / "docs/how-to/use-from-python.md"
SAID = (
    "output/checkpoint-2 deepspeed step 2, 2 ranks",
    "14 tensors, 1745 bytes, in ",
    "resume-from for 4 ranks",
    "whole 1745 bytes",
    "(13, 7) float32 ",
    "{'equal': 12, 'differs': 1}\nembed.weight 0.068",
    "('exp_avg', 'exp_avg_sq', 'step')",
    "read 1745 bytes",
    "70B stage 3, offload disk, ",
    "complete\n6 pieces are from output/checkpoint-2",
)
"""Words that each recipe prints, in their order."""
SCORE = """\
import os, sys, urllib.request
url = f"{os.environ['HF_ENDPOINT']}/{sys.argv[1]}/resolve/main/model.safetensors"
headers = {"Authorization": f"Bearer {os.environ['HF_TOKEN']}"}
with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as reply:
    print("read", len(reply.read()), "bytes")
"""


def recipes() -> dict[str, str]:
    """The code of each recipe, by its title."""
    _, *parts = re.split(r"^## (.*)$", PAGE.read_text("utf-8"), flags=re.MULTILINE)
    codes = (
        re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL) for text in parts[1::2]
    )
    return {title: "\n".join(code) for title, code in zip(parts[::2], codes, strict=True)}


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with what the recipes name."""
    for step in (1, 2, 3):
        shutil.copytree(DEEPSPEED / "z3-bf16-w2/checkpoint", tmp_path / f"output/checkpoint-{step}")
    poke(
        next((tmp_path / "output/checkpoint-1").rglob("*rank_1_*optim_states.pt")),
        "fp32_flat_groups",
        bytes(4),
    )
    next((tmp_path / "output/checkpoint-3").rglob("*rank_1_*optim_states.pt")).unlink()
    shutil.copytree(GOLDEN / "torch-2.13.0/fsdp2-dcp-w3/checkpoint", tmp_path / "fsdp-run")
    config = {"bf16": {"enabled": True}, "zero_optimization": {"stage": 2}}
    (tmp_path / "ds_config.json").write_text(json.dumps(config))
    (tmp_path / "score.py").write_text(SCORE)
    places = [str(PAGE.parents[2]), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, places)))
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "jupyter"))
    return tmp_path


def printed(cell: nbformat.NotebookNode) -> str:
    return "".join(each.get("text", "") for each in cell.outputs if each.get("name") == "stdout")


@pytest.mark.dear(30, "a kernel is a process of its own, and imports IPython and zerotools")
def test_the_recipes_run_as_a_notebook(directory: Path) -> None:
    codes = recipes()
    cells = [nbformat.v4.new_code_cell(code) for code in codes.values()]
    place = {"metadata": {"path": str(directory)}}
    NotebookClient(nbformat.v4.new_notebook(cells=cells), timeout=120, resources=place).execute()
    said = dict(zip(codes, map(printed, cells), strict=True))
    assert len(said) == len(SAID) == 10
    for words, text in zip(SAID, said.values(), strict=True):
        assert words in text
    for name in ("model", "resume-from", "for-deepspeed", "rescued"):
        assert (directory / name).is_dir()

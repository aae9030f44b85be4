"""The recipes of `docs/tutorial`, and one of `docs/how-to`, done word for word on CPUs.

Their ranks and programs find torch imported. They run in `scripts/judge`: `test_commands.py` always
reads their commands and job files, and `test_readme.py` does the quick start.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from harness import forked
from harness.warm_interpreter import interpreter
from tests.daemon.daemons import REAL, daemon_in
from tests.docs.tutorials import ROOT, follow

TUTORIALS = ROOT / "docs" / "tutorial"
RECIPES = ROOT / "docs" / "how-to"
PROGRAMS = ("make_pieces.py", "train.py", "check.py")

pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]


def done(page: Path, directory: Path, modules: Sequence[str]) -> str:
    work = directory / "work"
    work.mkdir()
    with (
        interpreter(directory / "python", modules, PROGRAMS) as python,
        daemon_in(directory / "state", program=REAL) as daemon,
    ):
        daemon.start()
        return follow(page, work, daemon.state / "api.sock", python)


@pytest.mark.full
@pytest.mark.dear(80, "real ranks of both engines, word for word")
@pytest.mark.deepspeed
def test_fine_tune_on_two_cards(tmp_path: Path) -> None:
    said = done(TUTORIALS / "fine-tune-on-two-cards.md", tmp_path, forked.DEEPSPEED)
    apart = re.search(r"^at most ([\d.]+)% apart$", said, re.M)
    assert apart is not None
    assert float(apart[1]) < 0.5
    assert "wrote merged-deepspeed" in said
    assert "wrote merged-torch" in said


@pytest.mark.full
@pytest.mark.dear(80, "three jobs of six million parameters, word for word")
def test_a_model_that_does_not_fit(tmp_path: Path) -> None:
    said = done(TUTORIALS / "a-model-that-does-not-fit.md", tmp_path, forked.TORCH)
    assert "state of a rank: 12.3 MiB on the device" in said
    assert "resumed at step 4" in said


@pytest.mark.full
@pytest.mark.dear(40, "a pipeline of two stages that goes on, word for word")
@pytest.mark.deepspeed
def test_a_pipeline_becomes_one_model(tmp_path: Path) -> None:
    said = done(RECIPES / "pipeline.md", tmp_path, forked.DEEPSPEED)
    assert "39 param16" in said
    assert "wrote model: 39 tensors" in said
    assert "verified against the source" in said
    assert re.search(r"^loss [\d.]+$", said, re.M)

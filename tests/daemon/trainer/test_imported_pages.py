"""Jobs of web pages train on two CPU ranks: the page as it was saved, a tiny model in place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.launching import TINY_LLAMA
from tests.daemon.trainer.finetuning import VOCABULARY, adverts, make_tokenizer, write_lines
from tests.daemon.trainer.several import run_all
from tests.jobs.imports import pages
from zerotools.cli.commands.import_config import page_import
from zerotools.jobs.imports.combine_configs import Imported
from zerotools.jobs.jobfile_tables.spec import FP16_ON_CPU

pytestmark = [pytest.mark.torch, pytest.mark.dear(15, "two ranks")]


def imported(page: str, *numbers: int) -> Imported:
    found = page_import(page, "page.txt", numbers)
    assert found.problem is None, found.problem
    return found


def on_two_processors(tree: dict[str, Any], steps: int) -> dict[str, Any]:
    """The job of a page where there are no GPUs."""
    assert tree.pop("gpus") == 2
    whole = {**tree, "device": "cpu", "ranks": 2, "train": {**tree["train"], "steps": steps}}
    return {
        name: value for name, value in whole.items() if name not in ("output_dir", "checkpoint")
    }


def test_a_blog_trains_on_two_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = tmp_path / "owner" / "tiny"
    make_tokenizer(model)
    (tmp_path / "Adverts").mkdir()
    write_lines(tmp_path / "Adverts" / "train.json", adverts(16))
    write_lines(tmp_path / "Adverts" / "dev.json", adverts(4))
    tree = on_two_processors(imported(pages.BLOG).tree, steps=2)
    tree["data"]["tokenizer"] = tree["model"].pop("path")
    assert tree["data"]["tokenizer"] == str(model)
    tree["model"]["config"] = {**TINY_LLAMA, "vocab_size": VOCABULARY} | {
        "max_position_embeddings": 256
    }
    tree["env"] = {FP16_ON_CPU: "1"}
    tree["fp16"]["initial_scale_power"] = 4
    losses = run_all(tmp_path / "run", Path(__file__), 2, {"blog": tree}, ends=False).losses("blog")
    assert len(losses) == 2
    assert losses[0] > 0


@pytest.mark.full
def test_configs_of_other_pages_train_on_two_ranks(tmp_path: Path) -> None:
    jobs = {
        "guide-0": imported(pages.GUIDE, 1).tree,
        "guide-2": imported(pages.GUIDE, 2, 3).tree,
        "tutorial": imported(pages.TUTORIAL).tree,
    }
    ready = {name: on_two_processors(tree, steps=2) for name, tree in jobs.items()}
    for tree in ready.values():
        tree["train"].update(batch_size=8, micro_batch_size=1)
        tree["train"].pop("epochs", None)
    runs = run_all(tmp_path / "run", Path(__file__), 2, ready, ends=False)
    assert [len(runs.losses(name)) for name in jobs] == [2, 2, 2]

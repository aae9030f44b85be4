"""A web page as a job: the launch line and the configs that belong together."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.jobs.imports import pages
from tests.jobs.text.test_page_blocks import PAGE
from zerotools.cli.options.page_import import page_import
from zerotools.core.errors import BadRequest
from zerotools.jobs.imports.reading.job_keys import look_up


def test_a_launch_line_gets_the_config_that_it_names(capsys: pytest.CaptureFixture[str]) -> None:
    found = page_import(PAGE, "p.txt", (1, 2))
    assert found.problem is None
    assert found.tree["gpus"] == 2
    assert found.tree["zero"] == {"stage": 2}
    assert found.tree["train"]["learning_rate"] == 1e-4
    assert found.origins["gpus"] == "p.txt:6 --num_gpus"
    assert found.origins["zero.stage"] == "ds.json:12 zero_optimization.stage"
    assert "the end of the line behind a \\ (line 6)" in capsys.readouterr().err


def test_an_accelerate_config_belongs_to_its_launch_line() -> None:
    found = page_import(PAGE, "p.txt", (4, 3))
    assert found.problem is None
    assert (found.tree["gpus"], found.tree["zero"]) == (2, {"stage": 2})
    assert found.tree["train"]["steps"] == 3


def test_several_of_a_kind_must_be_chosen_from(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BadRequest, match=r"p\.txt: has 2 launch lines; choose those that belong"):
        page_import(PAGE, "p.txt", ())
    assert "#     2  line 11: DeepSpeed config, 3 lines" in capsys.readouterr().err
    with pytest.raises(BadRequest, match="has 2 launch lines"):
        page_import(PAGE, "p.txt", (1, 4))
    with pytest.raises(BadRequest, match=r"--block 9: p\.txt has only the blocks 1 to 4"):
        page_import(PAGE, "p.txt", (9,))


def test_a_launch_line_without_a_program_is_passed_over(capsys: pytest.CaptureFixture[str]) -> None:
    page = 'deepspeed --num_gpus 2 # your program\n{"train_batch_size": 8}\n'
    found = page_import(page, "p.txt", ())
    assert found.tree["train"]["batch_size"] == 8
    assert "line 1 is not read" in capsys.readouterr().err
    with pytest.raises(BadRequest, match="given no program"):
        page_import("deepspeed --num_gpus 2 # x", "p.txt", ())
    with pytest.raises(BadRequest, match=r"has no launch line and no config.* zerotools init asks"):
        page_import("nothing", "p.txt", ())


def test_a_script_may_start_its_program_by_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    line = "python finetune.py --base_model owner/base-7b --data_path a.json --output_dir out\n"
    for text, source in ((line, "run.sh"), (f"#!/bin/bash\n{line}", "run")):
        found = page_import(text, source, ())
        assert found.problem is None
        assert found.tree["train"]["batch_size"] == 128
    with pytest.raises(BadRequest, match="has no launch line and no config"):
        page_import(line, "page.txt", ())  # of a page it may be any command
    with pytest.raises(BadRequest, match=r"run\.sh: has no launch line"):
        page_import("echo nothing\n", "run.sh", ())


def test_pages_import_as_they_were_saved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    blog = page_import(pages.BLOG, "blog.txt", ())
    assert blog.problem is None
    assert blog.missing == ()
    assert look_up(blog.tree, "train.batch_size") == 8
    assert look_up(blog.tree, "offload.optimizer") == "cpu"
    assert blog.findings.steps[0] == "hf download owner/tiny --local-dir owner/tiny"
    assert page_import(pages.GUIDE, "guide.txt", (1,)).problem is None
    second = page_import(pages.GUIDE, "guide.txt", (2, 3))
    assert second.problem is None
    assert look_up(second.tree, "zero.stage") == 2
    assert second.formulas["train.batch_size"] == (
        "train.batch_size = the sequences of a GPU at a time (train.micro_batch_size) "
        "x 4 (deepspeed_config.gradient_accumulation_steps) x 2 GPUs"
    )
    tutorial = page_import(pages.TUTORIAL, "tutorial.txt", ())
    assert tutorial.problem is None
    assert look_up(tutorial.tree, "offload.optimizer") == "cpu"
    with pytest.raises(BadRequest, match="start without one: zerotools init"):
        page_import(pages.OVERVIEW, "overview.txt", ())

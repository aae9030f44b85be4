"""A web page as a job: the launch line and the configs that belong together."""

from __future__ import annotations

import pytest

from tests.jobs.text.test_page_blocks import PAGE
from zerotools.cli.options.page_import import page_import
from zerotools.core.errors import BadRequest


def test_a_launch_line_gets_the_config_that_it_names(capsys: pytest.CaptureFixture[str]) -> None:
    found = page_import(PAGE, "p.txt", (1, 2))
    assert found.problem is None
    assert found.tree["gpus"] == 2
    assert found.tree["zero"] == {"stage": 2}
    assert found.tree["train"]["learning_rate"] == 1e-4
    assert found.origins["gpus"] == "p.txt:6 --num_gpus"
    assert found.origins["zero.stage"] == "ds.json:12 zero_optimization.stage"
    assert "p.txt:6: the end of the line behind a" in capsys.readouterr().err


def test_an_accelerate_config_belongs_to_its_launch_line() -> None:
    found = page_import(PAGE, "p.txt", (4, 3))
    assert found.problem is None
    assert (found.tree["gpus"], found.tree["zero"]) == (2, {"stage": 2})
    assert found.tree["train"]["steps"] == 3


def test_several_of_a_kind_must_be_chosen_from(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BadRequest, match=r"p\.txt: has 2 launch lines; choose those that belong"):
        page_import(PAGE, "p.txt", ())
    assert "#     2  p.txt:11  DeepSpeed config, 3 lines" in capsys.readouterr().err
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
    with pytest.raises(BadRequest, match="has no launch line and no config"):
        page_import("nothing", "p.txt", ())

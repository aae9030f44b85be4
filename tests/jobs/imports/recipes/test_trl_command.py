"""The console program of TRL, as the command of accelerate that it runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.jobs.imports.recipes.told import of
from zerotools.core.errors import BadRequest
from zerotools.jobs.imports.reading.job_keys import look_up
from zerotools.jobs.imports.recipes.launch_line import read_launch
from zerotools.jobs.imports.recipes.recipe import Program

LINE = "trl sft --model_name_or_path o/b --dataset_name o/d --output_dir out"


def program(line: str) -> Program:
    found = read_launch(line, "run.sh", Path(), lines=True).program
    assert found is not None
    return found


def test_its_ranks_are_started_by_accelerate_with_the_options_of_a_preset() -> None:
    found = program(f"{LINE} --accelerate_config zero2 --main_process_port 29501 --num_processes=3")
    assert found.launcher == "accelerate"
    assert found.options == ("--use_deepspeed", "--zero_stage=2")
    assert found.command[:2] == ("-m", "trl.scripts.sft")
    assert not {"--accelerate_config", "zero2", "29501"} & set(found.command)


def test_a_file_of_accelerate_is_named_to_it(tmp_path: Path) -> None:
    recipe = read_launch(f"{LINE} --accelerate_config my.yaml", "run.sh", tmp_path, lines=True)
    assert recipe.accelerate_file is not None
    assert recipe.accelerate_file.value == "my.yaml"


@pytest.mark.parametrize("value", ["$N", "zero3"])
def test_what_only_a_shell_knows_is_named(value: str) -> None:
    line = f"{LINE} --accelerate_config {value} --num_processes $N"
    assert "--num_processes: $N" in str(of(read_launch(line, "run.sh", Path(), lines=True)).problem)


def test_an_option_at_the_end_without_a_value_is_no_preset() -> None:
    found = of(read_launch(f"{LINE} --accelerate_config", "run.sh", Path(), lines=True))
    assert look_up(found.tree, "zero.stage") == 0


def test_its_other_commands_train_nothing() -> None:
    with pytest.raises(BadRequest, match="has no launch line"):
        read_launch("trl vllm-serve --model o/b", "run.sh", Path(), lines=True)

"""The command that starts a program is found, whatever starts that command."""

from __future__ import annotations

import pytest

from zerotools.jobs.imports.programs.launch_wrappers import (
    StartCommand,
    commands_within,
    launched_command,
    script_of,
    settings_by,
)


def launches(text: str) -> list[StartCommand]:
    found = (launched_command(command.words) for command in commands_within(text, "run.sh"))
    return [each for each in found if each is not None]


@pytest.mark.parametrize(
    ("text", "kind", "first"),
    [
        ("sudo -E nohup torchrun x.py", "torchrun", "torchrun"),
        ("srun -N 1 --gpus 4 python -u x.py", "python", "python"),
        ("timeout 4h numactl -N 0 deepspeed x.py", "deepspeed", "deepspeed"),
        ("uv run --with torch --python 3.12 accelerate launch x.py", "accelerate", "accelerate"),
        ("docker run --name deepspeed -it me/deepspeed torchrun x.py", "torchrun", "torchrun"),
        ("singularity exec --nv a.sif /opt/bin/torchrun x.py", "torchrun", "/opt/bin/torchrun"),
        ("poetry run llamafactory-cli train x.yaml", "llamafactory-cli", "llamafactory-cli"),
        ("bash -lc 'cd x && torchrun x.py'", "torchrun", "torchrun"),
        ("docker exec box sh -c \"bash -c 'torchrun x.py'\"", "torchrun", "torchrun"),
        ('C="torchrun x.py"\neval $C', "torchrun", "torchrun"),
    ],
)
def test_a_launcher_is_found_behind_what_starts_it(text: str, kind: str, first: str) -> None:
    (found,) = launches(text)
    assert (found.kind, found.words[0].text) == (kind, first)


@pytest.mark.parametrize(
    "text",
    ["echo torchrun x.py", "then echo python x.py", "pip install deepspeed", "uv run pytest", ""],
)
def test_what_starts_no_training_is_no_launch(text: str) -> None:
    assert launches(text) == []


def test_words_within_a_shell_have_their_lines_and_settings() -> None:
    text = "true\nA=1 docker run -e N=2 image bash -c 'cd x\nB=3 torchrun y.py $A'"
    *_, command = commands_within(text, "run.sh")
    assert [(word.text, word.line) for word in command.words[:2]] == [
        ("torchrun", 3),
        ("y.py", 3),
    ]
    assert {name: word.text for name, word in command.settings.items()} == {"A": "1", "B": "3"}
    assert {name: word.text for name, word in settings_by(command.by).items()} == {"N": "2"}


def test_values_of_options_are_no_variables() -> None:
    text = (
        "docker run --mount type=bind,source=/data,target=/d --ulimit memlock=-1 --env A=1 "
        "--env=D=4 -e B=2 image env --ignore-environment C=3 torchrun y.py"
    )
    *_, command = launches(text)
    assert {name: word.text for name, word in settings_by(command.by).items()} == {
        "A": "1",
        "B": "2",
        "C": "3",
        "D": "4",
    }


@pytest.mark.parametrize("before", ["", "sudo ", "A=1 ", "nohup ", "srun -N 1 "])
def test_a_container_is_named_as_the_starter(before: str) -> None:
    (found,) = launches(f"{before}docker run --gpus all image torchrun y.py")
    assert found.starter == "docker run"


def test_what_is_not_known_within_a_shell_is_a_problem_of_its_word_alone() -> None:
    text = 'torchrun_args="--a 1"\nbash -c "torchrun --node_rank $RANK x.py $torchrun_args"'
    (found,) = launches(text)
    assert [word.text for word in found.words if not word.problem] == [
        *("torchrun", "--node_rank", "x.py", "--a", "1"),
    ]
    assert [word.problem for word in found.words if word.problem] == [
        "$RANK is not set in the text; write its value"
    ]


def test_a_script_that_another_runs_is_named() -> None:
    found = [script_of(command.words) for command in commands_within("srun bash a/b.sh 3", "x")]
    assert [word and word.text for word in found] == ["a/b.sh"]

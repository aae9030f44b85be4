"""The command that starts a program is found, whatever starts that command."""

from __future__ import annotations

from pathlib import Path

import pytest

from zerotools.jobs.imports.programs.find_launcher import (
    StartCommand,
    commands_within,
    launched_command,
    script_of,
    settings_by,
)
from zerotools.jobs.imports.programs.read_launch_line import read_launch


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


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("docker run -l x=y --label z=1 -v a=b:/c image", {}),
        (
            "docker run -e=A=1 -eB=2 -ite C=3 --env-file f -e D image",
            {"A": "1", "B": "2", "C": "3"},
        ),
        ("docker run --name env -l x=y image env A=a,b", {"A": "a,b"}),
        ("podman exec -e A=1,B=2 box nohup env -u C B=3", {"A": "1,B=2", "B": "3"}),
        ("apptainer exec -e --env A=1,B=2 a.sif", {"A": "1", "B": "2"}),
        ("srun -J a=b --comment x=y", {}),
        ("srun --export=A=1,B,C='a b' -N 1", {"A": "1", "C": "a b"}),
        ("srun --export A=1,ALL --exclusive env B=2 timeout 10", {"A": "1", "B": "2"}),
        ("srun --export=\"A='1,2',B=3\"", {"A": "1,2", "B": "3"}),
        ("sudo -u me A=1 nice -n 5", {"A": "1"}),
        ("kubectl exec box -- env A=1", {"A": "1"}),
        ("uv run --with a=b", {}),
    ],
)
def test_each_wrapper_sets_variables_by_its_own_options(by: str, expected: dict[str, str]) -> None:
    (command,) = launches(f"{by} torchrun x.py")
    assert {name: word.text for name, word in settings_by(command.by).items()} == expected


def test_a_value_that_only_a_shell_knows_stays_with_its_variable() -> None:
    (command,) = launches("srun --export=A=$X,B=2 torchrun x.py")
    found = settings_by(command.by)
    assert found["A"].problem == "$X is not set in the text; write its value"
    assert (found["B"].text, found["B"].problem) == ("2", "")


@pytest.mark.parametrize("wrap", ["--wrap='cd a && torchrun x.py'", '--wrap "torchrun x.py"'])
def test_the_command_of_a_batch_job_is_read(wrap: str) -> None:
    commands = list(commands_within(f"sbatch -N 1 --export=A=1 {wrap}", "run.sh"))
    (found,) = [each for each in commands if launched_command(each.words)]
    assert [word.text for word in found.words] == ["torchrun", "x.py"]
    assert {name: word.text for name, word in settings_by(found.by).items()} == {"A": "1"}


@pytest.mark.parametrize(
    ("line", "options"),
    [
        ("torchrun -t3 -mpkg x.py", ()),
        ("python -Xdev -Wignore x.py", ("-Xdev", "-Wignore")),
        ("python -um pkg.train --lr 1", ("-u",)),
        ("deepspeed -ilocalhost:0 x.py", ()),
    ],
)
def test_options_of_launchers_may_be_joined(line: str, options: tuple[str, ...]) -> None:
    run = read_launch(f"{line} --model_name_or_path a", "run.sh", Path(), lines=True)
    assert run.program is not None
    words = (*run.program.options, *run.program.command)
    assert set(options) <= set(words)
    unknown = [row.key for row in run.findings.rows if "no such option" in (row.why or "")]
    assert unknown == (["-mpkg"] if "-mpkg" in line else [])


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
    found = [script_of(each.words) for each in commands_within("sbatch -N 1 a/b.sh 3", "x")]
    assert [word and word.text for word in found] == ["a/b.sh"]

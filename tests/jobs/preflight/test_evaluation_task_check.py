"""Names of tasks are read from the harness's files without the harness."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from zerotools.jobs.preflight import evaluation_task_check
from zerotools.jobs.preflight.evaluation_task_check import unknown_tasks, unknown_tasks_refusal

FILES = {
    "arc/arc_easy.yaml": "tag:\n  # both\n  - ai2_arc\n\n  - 'science'\ntask: arc_easy # here\n",
    "mmlu/_default_yaml": "tag: mmlu_all\n",
    "mmlu/stem.yaml": '"group": "mmlu_stem"\ntask:\n- task: physics\n- group: inner\n',
    "mmlu/two.yaml": "tag: [one, two]\ntask: both\r\n",
    "arc/README.md": "task: readme\n",
    "arc/utils.py": "task: python\n",
}
KNOWN = (
    *("ai2_arc", "science", "arc_easy", "mmlu_all", "mmlu_stem", "physics", "inner"),
    *("one", "two", "both"),
)


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / "tasks" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, newline="")
    return tmp_path / "tasks"


def test_tasks_groups_and_tags_are_known_and_others_are_not(tasks: Path) -> None:
    assert unknown_tasks([*KNOWN, "mmlu_*", "a?c_easy"], [tasks]) == {}
    found = unknown_tasks(["arc_easi", "readme", "python", "all", "nope_*"], [tasks])
    assert list(found) == ["arc_easi", "readme", "python", "all", "nope_*"]
    assert found["arc_easi"][0] == "arc_easy"


def test_the_sentence_names_at_most_three_that_are_near(tasks: Path) -> None:
    many = tasks / "many.yaml"
    many.write_text("tag:\n" + "".join(f"- winogrande_{n}\n" for n in range(9)))
    found = unknown_tasks(["winogrand", "qqqqqqq"], [tasks])
    assert len(found["winogrand"]) == 3
    assert unknown_tasks_refusal({"arc_esy": ["arc_easy"], "qqq": []}) == (
        "eval.tasks: lm-evaluation-harness has no task arc_esy (nearest: arc_easy), and no "
        "task qqq; correct the name, or set eval.task_dir to the directory of your tasks"
    )


def test_the_program_looks_into_the_package_and_the_user_s_directory(tasks: Path) -> None:
    package = tasks.parent / "lm_eval"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('was imported')")
    tasks.rename(package / "tasks")
    own = tasks.parent / "own"
    own.mkdir()
    (own / "mine.yaml").write_text("task: mine-own")

    def asked(*words: str) -> object:
        command = [sys.executable, "-P", evaluation_task_check.__file__, *words]
        env = {"PYTHONPATH": str(tasks.parent)}
        return json.loads(subprocess.run(command, env=env, check=True, stdout=-1).stdout)

    assert asked(str(own), "arc_easy", "mine-own") == {}
    assert asked("", "arc_easy", "mine-own") == {"mine-own": []}


@pytest.mark.evals
def test_every_name_that_the_harness_knows_is_known() -> None:
    """Of its own files those that are named most: it takes 20 s to read all of them."""
    found = find_spec("lm_eval")
    assert found is not None
    assert found.origin is not None
    wanted = ["hellaswag", "arc_easy", "ai2_arc", "mmlu", "gsm8k", "winogrande", "truthfulqa_mc2"]
    wanted += ["mmlu_pro", "ifeval", "bbh", "leaderboard", "paloma", "wic", "squadv2", "boolq"]
    wanted += ["AraDiCE_ArabicMMLU_high_humanities_history_egy", "bertaqa", "humaneval", "wikitext"]
    assert unknown_tasks(wanted, [Path(found.origin).parent / "tasks"]) == {}

"""The program that evaluates, with a harness that is only told of, and with the real one."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.launching import job, run
from tests.daemon.daemons import Daemon, daemon_in
from tests.matrices import FULL
from zerotools.integrations.evaluation_harness import main, scores_of
from zerotools.jobs.jobfile.derive_evaluation_job import HARNESS
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotoolsd.children.export import export_newest

RESULTS = {
    "mmlu": {"acc,none": 0.5, "acc_stderr,none": 0.1, "alias": "mmlu"},
    "mmlu_law": {"acc,none": 0.25},
    "gsm8k": {"exact_match,strict-match": 0.125, "exact_match,flexible-extract": 0.75},
    "told": {"perplexity,none": float("nan"), "bits,none": "N/A", "sample_len": 7},
    "tagged": {"acc,none": 1},
}


def test_scores_are_those_of_groups_that_have_any_and_of_tasks_in_no_such_group() -> None:
    groups = {"mmlu": ["mmlu_law"], "bare": ["tagged"]}
    assert scores_of({"results": RESULTS, "group_subtasks": groups}) == {
        "mmlu/acc": 0.5,
        "gsm8k/exact_match,strict-match": 0.125,
        "gsm8k/exact_match,flexible-extract": 0.75,
        "tagged/acc": 1.0,
    }
    assert "mmlu_law/acc" in scores_of({"results": RESULTS})
    both = scores_of({"results": RESULTS, "group_subtasks": groups}, ["mmlu", "mmlu_law"])
    assert (both["mmlu/acc"], both["mmlu_law/acc"]) == (0.5, 0.25)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """A daemon on a fresh state directory, not started yet."""
    with daemon_in(tmp_path / "state") as one:
        yield one


Reported = list[tuple[int, dict[str, float]]]


class Harness:
    """`lm_eval`: its tasks by directory, and how it was asked."""

    def __init__(self, answer: dict[str, Any] | None) -> None:
        self.answer, self.asked, self.managers = answer, dict[str, Any](), list[dict[str, Any]]()

    def put_in(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def manager(**paths: Any) -> Any:
            self.managers.append(paths)
            own = paths.get("include_defaults") is False
            known = ["mine"] if own else ["mine", "arc_easy", "arc_hard"]
            match = lambda names: [k for k in known if Path(k).match(names[0])]  # noqa: E731
            return SimpleNamespace(all_subtasks=known, match_tasks=match)

        def evaluate(**asked: Any) -> dict[str, Any] | None:
            self.asked = asked
            return self.answer

        package = SimpleNamespace()
        evaluator, tasks = SimpleNamespace(simple_evaluate=evaluate), SimpleNamespace()
        tasks.TaskManager = manager
        found = {"lm_eval": package, "lm_eval.evaluator": evaluator, "lm_eval.tasks": tasks}
        for name, module in found.items():
            monkeypatch.setitem(sys.modules, name, module)  # type: ignore[arg-type]


@pytest.fixture
def reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reported:
    """Evaluations that were reported, from a job whose model was exported."""
    (tmp_path / "out" / "model").mkdir(parents=True)
    (tmp_path / "out" / "evaluated.json").write_text('{"checkpoint": "/c", "step": 7}')
    (tmp_path / "tasks").mkdir()
    monkeypatch.setenv("ZEROTOOLS_MODEL", str(tmp_path / "out" / "model"))
    monkeypatch.setenv("ZEROTOOLS_OUTPUT_DIR", str(tmp_path / "out"))
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.chdir(tmp_path)
    return Reported()


def evaluate(told: Reported, *words: str) -> None:
    main(words, lambda step, **scores: told.append((step, scores)))


def test_options_mean_what_they_mean_to_the_harness(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reported: Reported
) -> None:
    harness = Harness({"results": {"arc_easy": {"acc,none": 0.5}}})
    harness.put_in(monkeypatch)
    evaluate(
        reported, "--tasks", "arc_*,mine", "--num_fewshot", "5", "--limit", "9", "--device", "cpu"
    )
    assert harness.managers == [{"include_path": None}]
    assert harness.asked.pop("task_manager") is not None
    assert harness.asked == {
        "model": "hf",
        "model_args": {"pretrained": str(tmp_path / "out" / "model")},
        "tasks": ["arc_easy", "arc_hard", "mine"],
        "num_fewshot": 5,
        "limit": 9.0,
        "batch_size": "1",
        "device": "cpu",
        "log_samples": False,
    }
    assert reported == [(7, {"arc_easy/acc": 0.5})]
    result = json.loads((tmp_path / "out" / "results.json").read_text())
    assert (result["step"], result["checkpoint"]) == (7, "/c")
    assert result["results"] == {"arc_easy": {"acc,none": 0.5}}
    assert [path.name for path in (tmp_path / "out").iterdir()] != ["model"]
    assert not (tmp_path / "out" / "model").exists()


def test_tasks_that_are_all_the_user_s_own_need_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reported: Reported
) -> None:
    harness, own = Harness({"results": {}}), str(tmp_path / "tasks")
    harness.put_in(monkeypatch)
    evaluate(reported, "--tasks", "mine", "--include_path", own)
    assert harness.managers == [{"include_path": own, "include_defaults": False}]
    assert Path.cwd() == tmp_path / "tasks"
    evaluate(reported, "--tasks", "mine,arc_easy", "--include_path", own)
    assert harness.managers[1:] == [
        {"include_path": own, "include_defaults": False},
        {"include_path": own},
    ]
    (tmp_path / "out" / "model").mkdir()
    with pytest.raises(SystemExit, match="has no task nothing"):
        evaluate(reported, "--tasks", "mine,nothing", "--include_path", own)
    assert not (tmp_path / "out" / "model").exists()  # it may have the size of the disk


def test_a_rank_that_is_not_the_first_reports_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reported: Reported
) -> None:
    Harness(None).put_in(monkeypatch)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    evaluate(reported, "--tasks", "mine")
    assert reported == []
    assert (tmp_path / "out" / "model").exists()


def test_what_does_not_fit_into_a_message_is_in_the_file(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    reported: Reported,
    capsys: pytest.CaptureFixture[str],
) -> None:
    many = {f"a_task_with_a_long_name_{n}": {"acc,none": n / 7} for n in range(200)}
    Harness({"results": many}).put_in(monkeypatch)
    evaluate(reported, "--tasks", "mine")
    ((_, told),) = reported
    assert 0 < len(told) < 200
    assert len(json.dumps(told)) < 3500
    assert f"{200 - len(told)} more scores are only in results.json" in capsys.readouterr().out
    assert len(json.loads((tmp_path / "out" / "results.json").read_text())["scores"]) == 200


LETTERS = "abcdefghijklmnopqrstuvwxyz "
TASK = """task: letters
dataset_path: json
dataset_kwargs:
  data_files:
    test: letters.jsonl
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: choices
doc_to_target: gold
metric_list:
  - metric: acc
  - metric: acc_norm
"""


def write_tokenizer(directory: Path) -> None:
    """A tokenizer of one token for each letter."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {word: number for number, word in enumerate(["<unk>", "</s>", *LETTERS])}
    letters = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    letters.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    PreTrainedTokenizerFast(
        tokenizer_object=letters, unk_token="<unk>", eos_token="</s>", pad_token="</s>"
    ).save_pretrained(directory)


def write_task(directory: Path) -> list[dict[str, Any]]:
    """A task of the user's own, with its data beside it."""
    draw = random.Random(5)
    words = ["".join(draw.choices(LETTERS[:8], k=draw.randrange(2, 6))) for _ in range(120)]
    rows = [
        {"question": words[4 * n], "choices": words[4 * n + 1 : 4 * n + 4], "gold": n % 3}
        for n in range(30)
    ]
    directory.mkdir()
    (directory / "letters.yaml").write_text(TASK)
    lines = "".join(f"{json.dumps(row)}\n" for row in rows)
    (directory / "letters.jsonl").write_text(lines)
    return rows


def judged(model_dir: Path, rows: list[dict[str, Any]]) -> dict[str, float]:
    """The same scores, computed by transformers and torch alone."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype="auto")
    read = AutoTokenizer.from_pretrained(model_dir)
    right = {"acc": 0, "acc_norm": 0}
    for row in rows:
        found = []
        for choice in row["choices"]:
            ids = torch.tensor([read(f"{row['question']} {choice}")["input_ids"]])
            with torch.no_grad():
                logs = model(ids[:, :-1]).logits.log_softmax(-1)
            chosen = logs.gather(2, ids[:, 1:, None])[0, len(row["question"]) - 1 :]
            found.append(float(chosen.sum()))
        normed = [each / len(choice) for each, choice in zip(found, row["choices"], strict=True)]
        right["acc"] += found.index(max(found)) == row["gold"]
        right["acc_norm"] += normed.index(max(normed)) == row["gold"]
    return {f"letters/{name}": count / len(rows) for name, count in right.items()}


def by_command_line(model_dir: Path, place: Path, env: dict[str, str]) -> dict[str, float]:
    """The same scores as `lm_eval` writes them, which reads all of its own files first."""
    words = ["--model", "hf", "--model_args", f"pretrained={model_dir}", "--tasks", "letters"]
    words += ["--include_path", str(place / "tasks"), "--output_path", str(place / "theirs")]
    command = [sys.executable, "-m", "lm_eval", *words, "--device", "cpu"]
    subprocess.run(command, env=env, cwd=place / "tasks", check=True, capture_output=True)
    (found,) = (place / "theirs").rglob("results_*.json")
    scores = json.loads(found.read_text())["results"]["letters"]
    return {f"letters/{name}": scores[f"{name},none"] for name in ("acc", "acc_norm")}


@pytest.mark.evals
@pytest.mark.torch
@pytest.mark.dear(40, "a rank that trains, and the harness, which imports for seconds")
def test_a_trained_checkpoint_is_asked_a_task_of_the_user_s_own(
    daemon: Daemon, tmp_path: Path
) -> None:
    """Without a network. The judge reads the export of another command."""
    text = tmp_path / "text"
    text.write_text("abc def gha bad cab " * 200)
    write_tokenizer(tmp_path / "tokenizer")
    rows = write_task(tmp_path / "tasks")
    data = {"text": [str(text)], "tokenizer": str(tmp_path / "tokenizer"), "sequence_length": 16}
    trained = run(tmp_path / "run", job(text, data=data)).run_dir / "out"
    exported = export_newest(trained, "bf16")
    daemon.start()
    asked = ["--tasks", "letters", "--include_path", str(tmp_path / "tasks"), "--device", "cpu"]
    tree: dict[str, Any] = {
        "engine": "script",
        "device": "cpu",
        "env": {
            "HF_HUB_OFFLINE": "1",
            "HF_HOME": str(tmp_path / "hub"),
            "PATH": os.environ["PATH"],
        },
        "script": {"command": [*HARNESS, *asked], "directory": "/", "evaluates": str(trained)},
    }
    daemon.client.submit(job_from_dict({"python": sys.executable, **tree}, source="job"))
    done = daemon.wait_for_end(1)
    assert done["state"] == "succeeded", (daemon.run_dir() / "rank-0.log").read_text()[-4000:]
    wanted = judged(exported, rows)
    assert {name: done["evaluation"][name] for name in wanted} == pytest.approx(wanted)
    if FULL:
        assert by_command_line(exported, tmp_path, tree["env"]) == pytest.approx(wanted)
    assert 0 < wanted["letters/acc"] < 1
    assert done["evaluation"]["step"] == 4

"""`zerotools init`: what it asks, writes and refuses."""

from __future__ import annotations

import json
import shutil
import sys
import tomllib
from pathlib import Path

import pytest

from tests.cli.conftest import Command, Done
from tests.ops.estimate.tiny_configs import config
from zerotools.cli.main import build, run
from zerotools.jobs.jobfile.parse import parse_job

CARDS = ("--gpus", "2", "--gpu-memory", "24GiB", "--host-memory", "64GiB")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a model and text, which is the working directory."""
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text(json.dumps(config("llama", vocab_size=256)))
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "a.txt").write_text("text")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def init(capsys: pytest.CaptureFixture[str]) -> Command:
    def invoke(*arguments: str) -> Done:
        capsys.readouterr()
        status = run(build(), ["init", *arguments])
        return Done(status, *capsys.readouterr())

    return invoke


def test_what_is_seen_makes_a_job_file(here: Path, init: Command) -> None:
    done = init("--yes", *CARDS)
    assert done.status == 0, done.err
    assert done.out.startswith("wrote job.toml: stage 0 is the fastest that fits")
    assert "next: zerotools submit job.toml --dry-run" in done.out
    text = (here / "job.toml").read_text()
    assert "# " in text
    spec = parse_job(text, source="job.toml", base_dir=here)
    assert spec.model.config == str(here / "tiny" / "config.json")
    assert spec.data.text == (str(here / "corpus" / "*.txt"),)
    assert spec.world_size == 2


@pytest.mark.parametrize("pattern", ["c*/a.txt", "**/*.txt", "corpus/[ab].txt", "corpus/?.txt"])
def test_a_pattern_of_data_is_one_as_in_a_job_file(here: Path, init: Command, pattern: str) -> None:
    done = init("--yes", *CARDS, "--data", pattern)
    assert done.status == 0, done.err
    spec = parse_job((here / "job.toml").read_text(), source="job.toml", base_dir=here)
    assert spec.data.text == (str(here / pattern),)


def test_json_has_the_job_and_its_estimate(here: Path, init: Command) -> None:
    done = init("--yes", "--json", *CARDS)
    found = json.loads(done.out)
    assert found["job"] == tomllib.loads((here / "job.toml").read_text())
    assert found["estimate"]["choice"]["fits"] is True


def test_without_gpus_it_is_a_job_for_the_cpu(here: Path, init: Command) -> None:
    assert init("--yes", "-o", "cpu.toml").status == 0
    spec = parse_job((here / "cpu.toml").read_text(), source="job", base_dir=here)
    if spec.device == "cpu":  # no GPU is seen on this machine
        assert (spec.world_size, spec.train.precision) == (1, "fp32")


def test_questions_have_what_is_seen_as_their_answers(
    here: Path, init: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def prompt(text: str, default: object, **_: object) -> object:
        asked.append((text, default))
        return 3 if "GPUs" in text else default

    monkeypatch.setattr("click.prompt", prompt)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    assert init("--gpu-memory", "24GiB").status == 0
    assert [default for _, default in asked[:2]] == [
        str(here / "tiny"),
        str(here / "corpus" / "*.txt"),
    ]
    spec = parse_job((here / "job.toml").read_text(), source="job", base_dir=here)
    assert spec.world_size == 3


def test_the_ways_are_shown_and_one_is_chosen(
    here: Path, init: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is a number of the list, which is that of estimate."""
    (here / "tiny" / "config.json").write_text(json.dumps(config("llama", **WIDE)))
    (here / "tiny" / "model.safetensors").touch()
    (here / "tiny" / "tokenizer.json").touch()
    answers = {"Which?": 2}

    def prompt(text: str, default: object, **_: object) -> object:
        return answers.get(text, default)

    monkeypatch.setattr("click.prompt", prompt)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    done = init("--gpus", "1x24", "--ram", "60", "--json")
    assert done.status == 0, done.err
    assert "These settings fit, the cheapest first:" in done.err
    assert "1. an 8-bit optimizer and the optimizer in host memory (up to twice as" in done.err
    found = json.loads(done.out)
    free = shutil.disk_usage(here).free  # ways that need more of it are not shown
    shown = [way for way in found["estimate"]["ways"] if way["disk_bytes"] <= free]
    assert found["way"] == shown[1]["changes"]
    assert found["job"] == tomllib.loads((here / "job.toml").read_text())


def test_a_way_is_chosen_by_its_number(here: Path, init: Command) -> None:
    (here / "tiny" / "config.json").write_text(json.dumps(config("llama", **WIDE)))
    cards = ("--gpus", "1x24", "--ram", "60")
    done = init("--yes", *cards, "--way", "1")
    assert done.status == 0, done.err
    tree = tomllib.loads((here / "job.toml").read_text())
    assert tree["offload"] == {"optimizer": "cpu"}
    refused = init("--yes", *cards, "--way", "99", "-o", "other.toml")
    assert refused.status == 2
    assert "--way 99: " in refused.err
    assert "1. an 8-bit optimizer and the optimizer in host memory" in refused.err
    assert not (here / "other.toml").exists()


WIDE = {
    "vocab_size": 256,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
}


def test_preferences_are_for_dpo_with_adapters(here: Path, init: Command) -> None:
    (here / "tiny" / "model.safetensors").touch()
    (here / "tiny" / "tokenizer.json").touch()
    (here / "pairs.jsonl").write_text('{"prompt": "a", "chosen": "b", "rejected": "c"}\n')
    done = init("--yes", *CARDS, "--data", "pairs.jsonl", "--method", "lora")
    assert done.status == 0, done.err
    spec = parse_job((here / "job.toml").read_text(), source="job.toml", base_dir=here)
    assert spec.data.preferences == (str(here / "pairs.jsonl"),)
    assert (spec.lora.rank, spec.train.learning_rate) == (16, 5e-6)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((), "init asks questions, but has no terminal"),
        (("--yes", "-o", "tiny"), "tiny: exists already"),
        (("--yes", "--model", "nowhere"), "nowhere: this model directory does not exist"),
        (("--yes", "--model", "corpus"), "corpus: has no config.json"),
        (("--yes", "--data", "tiny"), "tiny: has no supported data"),
        (("--yes", "--data", "nothing/*.txt"), "has no supported data"),
        (("--yes", "--gpus", "0"), "0 is not in the range"),
        (("--yes", "--method", "lora"), "has no weights"),
        (("--yes", "-o", "nowhere/job.toml"), "nowhere is not a directory"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(
    here: Path, init: Command, given: tuple[str, ...], said: str
) -> None:
    done = init(*given)
    assert done.status in (2, 3)
    assert said in " ".join(done.err.split())
    assert not (here / "job.toml").exists()


def test_an_empty_directory_has_nothing(
    tmp_path: Path, init: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "this directory has no model" in init("--yes").err
    (tmp_path / "config.json").write_text(json.dumps(config("llama")))
    assert "this directory has no data" in init("--yes").err

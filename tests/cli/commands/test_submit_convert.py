"""`submit --convert`: what is tried, and which job comes of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.daemon.http.api.fakes import FakeService
from tests.golden_files import DEEPSPEED

ZERO3 = str(DEEPSPEED / "z3-bf16-w2" / "checkpoint")


def test_the_reason_of_a_trial_that_fails_is_in_the_json_too(
    zerotools: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").touch()
    done = zerotools("submit", "--json", "--convert", "--", "consolidate", ZERO3, "out")
    assert done.status == 2
    [error] = json.loads(done.out)["errors"]
    assert error["detail"].endswith("because the conversion would fail: out exists")
    assert error["hint"] == "choose another output, or pass --overwrite"
    assert done.err.count("error: ") == 1


def test_a_conversion_is_tried_and_queued_as_parts(
    zerotools: Command, service: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = zerotools("submit", "--convert", "--parts", "2", "--", "consolidate", ZERO3, "out")
    assert done.status == 0
    assert done.out.startswith(f"job 1 (consolidate {ZERO3} out) is queued: 2 ranks on CPU")
    assert "pass --config-dir DIR" in done.err
    spec = service.views[1].spec
    assert spec["python"] == sys.executable
    assert spec["script"]["directory"] == str(tmp_path)
    assert spec["script"]["command"] == [
        *("-m", "zerotools", "consolidate", "--part-from", "torchrun"),
        *(ZERO3, "out"),
    ]
    assert list(tmp_path.glob("out*")) == []


@pytest.mark.parametrize(
    ("words", "way", "restarts"),
    [
        (["consolidate", ZERO3, "out"], ["--part-from", "torchrun"], 3),
        # What a run takes up again is in `ops/execution/test_resuming`.
        pytest.param(
            ["consolidate", ZERO3, "out", "--verify"], ["--resume"], 3, marks=pytest.mark.full
        ),
        (["verify", ZERO3], [], 0),
    ],
)
def test_one_process_can_be_begun_again_too(
    zerotools: Command,
    service: FakeService,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    way: list[str],
    restarts: int,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert zerotools("submit", "--convert", "--", *words).status == 0
    spec = service.views[1].spec
    assert spec["script"]["command"] == ["-m", "zerotools", words[0], *way, *words[1:]]
    assert spec["max_restarts"] == restarts


def test_what_waits_for_another_job_is_not_tried(
    zerotools: Command, service: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    zerotools("submit", "--convert", "--", "verify", ZERO3)
    later = ("submit", "--convert", "--after", "1", "--", "consolidate", "later", "out")
    assert "without a trial run" in zerotools(*later).err
    assert service.views[2].spec["script"]["command"][3] == "--resume"


def test_the_same_key_is_the_same_job_though_its_output_is_there(
    zerotools: Command, service: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    again = ("submit", "--convert", "--idempotency-key", "k", "--", "consolidate", ZERO3, "out")
    assert zerotools(*again).status == 0
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "model.safetensors").touch()
    assert zerotools(*again).status == 0


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--convert", "--", "consolidate", "nowhere", "out"], "nowhere does not exist"),
        (["--convert", "--", "thin", ZERO3], "write one of consolidate, reshard"),
        (["--convert", "--", "consolidate", ZERO3, "o", "--part=1/2"], "--parts N to submit"),
        (["--convert", "--parts", "2", "--", "reshard", ZERO3, "o"], "--world-size"),
        (["--convert", "--", "consolidate", ZERO3, "o", "--help"], "a help page cannot be a job"),
        (["--convert", "--parts", "2", "--", "verify", ZERO3], "leave --parts out"),
        (
            ["--convert", "--sweep", "seed=1,2", "--", "verify", ZERO3],
            "leave|--parts N instead of --array",
        ),
        (["--parts", "2", "job.toml"], "--parts divides a conversion"),
        (["--convert", "--deepspeed", "d.json", "--", "verify", ZERO3], "no training"),
    ],
)
def test_what_would_fail_is_not_queued(
    zerotools: Command,
    service: FakeService,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    why: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    done = zerotools("submit", *arguments)
    assert done.status == 2
    assert any(each in done.err for each in why.split("|"))
    assert not service.views

"""The command in this process: what it prints, its exit status, and that it asks for --yes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.ops.thinning.made import contents, copy_of
from zerotools import formats
from zerotools.cli.commands.convert import command as convert
from zerotools.cli.commands.thin import command
from zerotools.ops.thinning.carry_out_thinning import SCHEMA
from zerotools.runs.thinning_record import THINNED, workspace_of


@pytest.fixture(autouse=True)
def _no_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZEROTOOLS_SOCKET", str(tmp_path / "nobody.sock"))


def run(*arguments: object) -> Result:
    return CliRunner().invoke(command, [*map(str, arguments)], standalone_mode=False)


def test_without_yes_it_only_says_what_it_would_do(tmp_path: Path) -> None:
    path = copy_of("deepspeed-0.19.8/z2-bf16-w2", tmp_path) / "global_step2"
    before = contents(tmp_path)
    done = run(path)
    assert done.return_value == 0
    first, second, *_, note, last = done.output.splitlines()
    assert first.startswith("would free ")
    assert "training cannot resume from it afterwards" in first
    assert "drops exp_avg (996 B), exp_avg_sq (996 B), step (28 B); the masters stay" in second
    assert note.startswith("note: no daemon answers, so it is not known whether a job would")
    assert last == "nothing was changed; run it again with --yes"
    assert contents(tmp_path) == before


def test_a_run_thinned_and_thinned_again(tmp_path: Path) -> None:
    path = copy_of("deepspeed-0.19.8/z2-bf16-w2-tags", tmp_path)
    (path / "best-0.5").rename(path / "global_step2")
    (path / "latest").write_text("global_step3")
    done = run(path, "--keep-last", 1, "--drop-masters", "--yes")
    assert done.return_value == 0
    assert f"thinned {path / 'global_step1'}: 5 tensors stay; whole" in done.output
    assert f"stays: {path / 'global_step3'}: it is the newest" in done.output
    found = json.loads(run(path, "--keep-last", 1, "--drop-masters", "--json").output)
    assert found["schema"] == SCHEMA
    assert found["dry_run"] is True
    assert found["jobs_checked"] is False
    assert [each["status"] for each in found["checkpoints"]] == ["nothing", "nothing"]
    assert [each["path"] for each in found["stays"]] == [str(path / "global_step3")]


def test_one_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    path = copy_of("deepspeed-0.19.8/z2-bf16-w2", tmp_path)
    done = run(tmp_path / "nothing", path, "--yes", "--json")
    assert done.return_value == 2
    failed, thinned = json.loads(done.stdout[done.stdout.index("{") :])["checkpoints"]
    assert failed["status"] == "refused"
    assert failed["message"] == f"{tmp_path / 'nothing'} does not exist"
    assert thinned["status"] == "thinned"
    assert thinned["soundness"] == "whole"
    assert thinned["tensors_compared"] == 7
    assert thinned["freed_bytes"] > 0


def test_what_a_killed_run_left_is_said_and_removed(tmp_path: Path) -> None:
    path = copy_of("deepspeed-0.19.8/z2-bf16-w2", tmp_path) / "global_step2"
    assert run(path, "--yes").return_value == 0
    left = workspace_of(path)
    (left / path.name).mkdir(parents=True)
    (left / path.name / "zero_pp_rank_0_mp_rank_00_optim_states.pt").write_bytes(b"x" * 9000)
    assert f"an earlier run left {left.name} next to it" in run(path).output
    assert left.exists()
    done = run(path, "--yes")
    assert done.return_value == 0
    assert "removed leftovers of an earlier run: 8.8 KiB" in done.output
    assert not left.exists()


def test_contradictions(tmp_path: Path) -> None:
    path = copy_of("deepspeed-0.19.8/z2-bf16-w2", tmp_path)
    done = run(path, "--keep-last", 1, "--tag", "global_step2")
    assert "--tag selects one checkpoint of a directory" in str(done.exception)
    assert "--older-than soon" in str(run(path, "--older-than", "soon").exception)


def test_what_is_freed_is_the_difference_of_the_sizes(tmp_path: Path) -> None:
    path = copy_of("deepspeed-0.19.8/z2-bf16-w2", tmp_path) / "global_step2"
    (found,) = json.loads(run(path, "--json").output)["checkpoints"]
    assert found["freed_bytes"] == found["bytes_before"] - found["bytes_after"] > 0
    for file in path.glob("*"):
        (tmp_path / file.name).hardlink_to(file)
    (found,) = json.loads(run(path, "--json").output)["checkpoints"]
    assert found["freed_bytes"] < 0
    difference = found["bytes_before"] - found["bytes_after"]
    assert difference == found["freed_bytes"] + found["shared_bytes"]
    said = run(path, "--yes").output
    assert "more disk space for 1 checkpoint, because the dropped data has other hard links" in said
    assert "took " in said


def test_one_under_several_names_is_thinned_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = copy_of("deepspeed-0.19.8/z2-bf16-w2", tmp_path)
    (tmp_path / "link").symlink_to(path)
    monkeypatch.chdir(path / "global_step2")
    names = (path, ".", path / "global_step2", tmp_path / "link" / "global_step2")
    done = run(*names, "--yes")
    assert done.return_value == 0
    assert done.output.count("thinned ") == 1
    assert 'enter the directory again afterwards (cd "$PWD")' in done.output


def test_what_is_made_of_a_thinned_one_was_not_thinned(tmp_path: Path) -> None:
    path = copy_of("zerotools-0.1.0/step-00000003", tmp_path)
    assert run(path, "--yes").return_value == 0
    assert (path / THINNED).is_file()
    assert THINNED not in formats.read_any(path).model_sidecars


def test_weights_alone_make_a_universal_checkpoint(tmp_path: Path) -> None:
    path = copy_of("deepspeed-0.19.8/z2-bf16-w2", tmp_path)
    assert run(path, "--drop-masters", "--yes").return_value == 0
    arguments = [str(path), str(tmp_path / "out"), "--to", "universal"]
    done = CliRunner().invoke(convert, arguments, standalone_mode=False)
    assert done.exception is None
    made = formats.read_any(tmp_path / "out").tensors
    assert {key.name for key in made} == {key.name for key in formats.read_any(path).tensors}

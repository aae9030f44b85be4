"""`zerotools delta` and `zerotools apply`: what they print, their exit statuses, and pipes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness.started import run as run_program
from tests.ops.delta.pairs import loaded, stepped, weights, write_model
from zerotools.cli.main import build, run

Answer = tuple[int, str, str]


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A directory with the models a and b."""
    write_model(tmp_path / "a", weights())
    write_model(tmp_path / "b", stepped(weights(), 0.02))
    return tmp_path


def zerotools(capsys: pytest.CaptureFixture[str], *words: object) -> Answer:
    capsys.readouterr()
    status = run(build(), list(map(str, words)))
    return status, *capsys.readouterr()


def test_sizes_are_shown_and_the_model_comes_back(
    models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b, delta, made = (models / name for name in ("a", "b", "d", "made"))
    status, out, err = zerotools(capsys, "delta", a, b, delta)
    assert (status, err) == (0, "")
    assert "of 1100180 elements changed; the model has 2.1 MiB, " in out
    status, out, _ = zerotools(capsys, "apply", a, delta, made)
    assert (status, loaded(made)) == (0, loaded(b))
    digests = "6 tensors in 2 files, 2.1 MiB; the digest of each block is the same as in model B"
    assert out == f"{made}: {digests}\n"
    status, out, _ = zerotools(capsys, "apply", "--in-place", a, delta, "--json")
    assert (status, json.loads(out)["files"]) == (0, 2)
    assert loaded(a) == loaded(b)
    status, out, err = zerotools(capsys, "apply", "--in-place", a, delta)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert "was applied to" in err


def test_json_names_what_is_new(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_model(models / "c", {"a.weight": weights()["a.weight"]})
    status, out, _ = zerotools(capsys, "delta", models / "c", models / "a", models / "d", "--json")
    assert status == 0
    tree = json.loads(out)
    assert tree["schema"] == "zerotools.delta/1"
    assert tree["new_tensors"] == ["b.weight", "none", "norm.weight", "scale", "steps"]
    assert tree["changed"] == 180
    _, out, err = zerotools(
        capsys, "delta", models / "c", models / "a", models / "d", "--overwrite"
    )
    assert "5 tensors only in B, stored whole" in err
    assert "times the size of the delta" in out


def test_a_model_with_other_names_is_stored_whole_with_a_note(
    models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shared = {"norm.weight": weights()["norm.weight"]}
    other = {f"model.{name}": each for name, each in weights().items()}
    write_model(models / "c", {**shared, **other})
    _, _, err = zerotools(capsys, "delta", models / "a", models / "c", models / "d")
    assert re.search(r"100% of the bytes of .*/c are in tensors that .*/a lacks", err)
    assert "if only the names differ" in err
    _, _, err = zerotools(capsys, "delta", models / "a", models / "b", models / "e")
    assert "lacks" not in err


def test_an_output_and_a_delta_are_needed(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = zerotools(capsys, "apply", models / "a", models / "b")
    assert status == 2
    assert "name both, or pass --in-place" in err
    status, _, err = zerotools(capsys, "apply", models / "a", models / "b", models / "out")
    assert status == 3
    assert err.count("\n") == 1


def test_the_standard_output_takes_the_delta_or_json(
    models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, _ = zerotools(capsys, "delta", models / "a", models / "b", "-", "--json")
    (error,) = json.loads(out)["errors"]
    assert (status, error["hint"]) == (2, "name a file as OUT, or leave --json out")


def test_parts_say_what_is_missing_and_then_what_changed(
    models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b, delta, made = (models / name for name in ("a", "b", "d", "made"))
    _, whole, _ = zerotools(capsys, "delta", a, b, models / "whole")
    status, out, err = zerotools(capsys, "delta", a, b, delta, "--part", "2/2")
    assert (status, err) == (0, "")
    assert re.fullmatch(
        rf"part 2 of 2 is complete: .* of the delta, .*% of \d+ elements changed; {delta} is ready "
        r"when all parts are complete; incomplete parts: 1\n",
        out,
    )
    status, out, _ = zerotools(capsys, "delta", a, b, delta, "--part", "1/2")
    first, second = out.splitlines()
    assert status == 0
    assert first.endswith(f"of B; all other parts are complete too, and {delta} is ready")
    assert second.partition(":")[2].partition(";")[0] in whole
    _, out, _ = zerotools(capsys, "apply", a, delta, made, "--part", "1/2")
    assert f"; {made} is ready when all parts are complete; incomplete parts: 2\n" in out
    _, out, _ = zerotools(capsys, "apply", a, delta, made, "--part", "2/2", "--json")
    assert json.loads(out)["part"]["missing"] == []
    assert loaded(made) == loaded(b)
    _, out, _ = zerotools(capsys, "delta", a, b, delta, "--part", "1/2", "--json")
    assert json.loads(out)["part"] == {
        "index": 1,
        "of": 2,
        "files": [],
        "bytes": json.loads(out)["part"]["bytes"],
        "missing": [],
    }
    status, _, err = zerotools(capsys, "delta", a, b, "-", "--part", "1/2")
    assert (status, "name a file that all parts can write" in err) == (2, True)


def test_a_delta_goes_through_a_pipe(models: Path) -> None:
    command = [sys.executable, "-m", "zerotools"]
    made = run_program(
        [*command, "delta", "a", "b", "-"], cwd=models, stdout=subprocess.PIPE, timeout=60
    )
    assert made.returncode == 0
    with Path("/dev/full").open("wb") as full:
        failed = run_program(
            [*command, "delta", "a", "b", "-"],
            cwd=models,
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=60,
        )
    assert (failed.returncode, failed.stderr.count(b"\n")) == (71, 1)
    assert b"the standard output: No space left on device" in failed.stderr
    failed = run_program(
        [*command, "apply", "a", "-", "made"],
        cwd=models,
        input=b"",
        stderr=subprocess.PIPE,
        timeout=60,
    )
    assert b"the standard input is empty, so it is not a delta" in failed.stderr
    done = run_program(
        [*command, "apply", "a", "-", "made"], cwd=models, input=made.stdout, timeout=60
    )
    assert done.returncode == 0
    assert loaded(models / "made") == loaded(models / "b")

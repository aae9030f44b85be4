"""What the page of a comparison shows: changes by layer, the tensors that changed most, what one
side lacks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import zerotools
from tests.cli.command_process import zerotools as command
from tests.golden_files import DEEPSPEED, JOB
from tests.ops.exports import export
from tests.ops.picture.test_html_page import HOSTILE, values_of
from zerotools.core.errors import BadRequest
from zerotools.ops.comparison.diff_result import RunComparison, RunDifference


def model(path: Path, seed: int, **others: Any) -> Path:
    """A model of four layers; layer 2 differs much between seeds, layer 3 not at all."""
    noise = np.random.default_rng(seed)
    tensors = {
        f"model.layers.{n}.{kind}.weight": np.random.default_rng(n)
        .standard_normal((8, 8))
        .astype(np.float32)
        for n in range(4)
        for kind in ("q_proj", "down_proj")
    }
    for name, values in tensors.items():
        scale = {"2": 1.0, "3": 0.0}.get(name.split(".")[2], 0.01)
        values += (scale * noise.standard_normal(values.shape)).astype(np.float32)
    save_file({**tensors, **others}, path)
    return path


def shown(page: str) -> dict[str, Any]:
    return json.loads(values_of(page))  # type: ignore[no-any-return]


def test_the_change_of_a_layer_is_that_of_its_tensors_joined(tmp_path: Path) -> None:
    a, b = model(tmp_path / "a.safetensors", 1), model(tmp_path / "b.safetensors", 2)
    found = shown(zerotools.diff(a, b, changes=True).to_html())
    (pair,) = found["pairs"]
    assert [found["layers"][row[1]] for row in pair["changes"]] == [
        f"model.layers.{n}" for n in range(4)
    ]
    loaded = [load_file(path) for path in (a, b)]
    for _, layer, relative, cosine, unchanged in pair["changes"]:
        ours, theirs = (
            np.concatenate(
                [
                    np.asarray(values, np.float64).ravel()
                    for name, values in each.items()
                    if name.startswith(f"{found['layers'][layer]}.")
                ]
            )
            for each in loaded
        )
        norms = np.linalg.norm(ours), np.linalg.norm(theirs)
        assert relative == pytest.approx(np.linalg.norm(ours - theirs) / norms[0], rel=1e-12)
        assert cosine == pytest.approx(ours @ theirs / (norms[0] * norms[1]), abs=1e-13)
        assert unchanged == pytest.approx((ours == theirs).mean())
    most = [row[0] for row in pair["most"]]
    assert len(most) == 6
    assert all(".2." in name for name in most[:2])
    assert len(found["tensors"]) == 8


def test_the_tensors_that_changed_most_are_those_of_each_role() -> None:
    a, b = (DEEPSPEED / case / "checkpoint" for case in ("z3-bf16-w2", "z3-bf16-w4"))
    found = shown(zerotools.diff(a, b, changes=True).to_html())
    assert found["roles"][0] == "param"
    most = found["pairs"][0]["most"]
    of_role = {role: [row for row in most if row[1] == n] for n, role in enumerate(found["roles"])}
    counts = {role: len(rows) for role, rows in of_role.items()}
    assert counts == {"param": 6, "exp_avg": 5, "exp_avg_sq": 5, "step": 0}
    for rows in of_role.values():
        assert rows == sorted(rows, key=lambda row: -row[2])


def test_of_many_tensors_ten_are_named_and_all_are_in_order(tmp_path: Path) -> None:
    a, b = (tmp_path / f"{n}.safetensors" for n in range(2))
    for path, value in ((a, 1), (b, 2)):
        save_file({f"{n}.weight": np.full(n + 2, value, np.float32) for n in range(12)}, path)
    found = shown(zerotools.diff(a, b, changes=True).to_html())
    assert len(found["pairs"][0]["most"]) == 10
    assert [row[0] for row in found["tensors"]] == [f"{n}.weight" for n in range(12)]


def test_fractions_of_the_run_are_rounded_if_they_still_differ() -> None:
    rates, close = (0.0018910065241883678, 1e-5), (0.1, 0.100000000001)
    differences = [RunDifference("step", 40, 80)]
    differences += [RunDifference("lr", *pair) for pair in (rates, close)]
    found = zerotools.diff(JOB, JOB, changes=True)
    run = RunComparison(tuple(differences), only_a=("config.json",), only_b=("scheduler",))
    assert shown(replace(found, run=run).to_html())["pairs"][0]["run"] == [
        ["step", "40", "80"],
        ["lr", "0.00189101", "1e-05"],
        ["lr", "0.1", "0.100000000001"],
        ["config.json", "recorded", "-"],
        ["scheduler", "-", "recorded"],
    ]


def test_what_one_side_lacks_is_named(tmp_path: Path) -> None:
    a = model(tmp_path / "a.safetensors", 1, extra=np.zeros(3, np.float32))
    b = model(tmp_path / "b.safetensors", 1, **{HOSTILE: np.zeros(3, np.float32)})
    found = shown(zerotools.diff(a, b, changes=True).to_html())
    assert found["pairs"][0]["only_a"] == [1, ["extra (param): float32 [3]"]]
    assert found["pairs"][0]["only_b"] == [1, [f"{HOSTILE} (param): float32 [3]"]]
    assert found["verdict"] == "different: 2 of 10 tensors"


def test_an_export_is_named_as_the_command_names_it(tmp_path: Path) -> None:
    export(JOB, tmp_path / "model")
    found = shown(zerotools.diff(JOB, tmp_path / "model", changes=True).to_html())
    assert found["verdict"].startswith("different: the ")
    assert found["verdict"].endswith("; they differ only in optimizer state that one of them lacks")
    assert not found["is_whole"]


def test_equal_checkpoints_have_no_change() -> None:
    found = shown(zerotools.diff(JOB, JOB, changes=True).to_html())
    assert found["is_whole"]
    assert {tuple(row[2:]) for row in found["pairs"][0]["changes"]} <= {(0, 1, 1), (0, None, 1)}
    assert found["pairs"][0]["most"] == []
    assert "step" not in {found["roles"][row[0]] for row in found["pairs"][0]["changes"]}


def test_a_series_compares_neighbours(tmp_path: Path) -> None:
    paths = [model(tmp_path / f"{n}.safetensors", n % 2) for n in range(3)]
    page = zerotools.diff_series(paths).to_html()
    found = shown(page)
    assert [pair["label"] for pair in found["pairs"]] == ["A-B", "B-C"]
    assert found["tensors"] is None
    assert [name for name, _ in found["facts"]] == ["A", "B", "C"]
    assert [len(pair["changes"]) for pair in found["pairs"]] == [4, 4]
    assert found["verdict"] == "0 of 2 pairs of consecutive checkpoints are equal"
    assert found["is_unknown"]
    assert not shown(zerotools.diff_series(paths[:2]).to_html())["is_unknown"]
    equal = shown(zerotools.diff_series([paths[0]] * 3).to_html())
    assert (equal["is_whole"], equal["is_unknown"]) == (True, False)
    other = model(tmp_path / "other.safetensors", 1, extra=np.zeros(3, np.float32))
    longer = shown(zerotools.diff_series([*paths, other]).to_html())
    assert not longer["is_unknown"]
    assert longer["title"] == f"{paths[0]} to {other}"
    ((role, layer),) = longer["pairs"][2]["partial"]
    assert (longer["roles"][role], longer["layers"][layer]) == ("param", "extra")
    assert [pair["partial"] for pair in longer["pairs"][:2]] == [[], []]
    with pytest.raises(BadRequest, match="at least two checkpoints, but 1 was given"):
        zerotools.diff_series(paths[:1])


def test_changes_that_were_not_measured_are_refused() -> None:
    with pytest.raises(BadRequest, match="changes=True"):
        zerotools.diff(JOB, JOB).to_html()


def test_the_command_writes_pages_and_says_what_it_cannot(tmp_path: Path) -> None:
    a, b, page = (
        model(tmp_path / "a.safetensors", 1),
        model(tmp_path / "b.safetensors", 2),
        tmp_path / "page.html",
    )
    done = command("diff", a, b, "--html", page)
    assert done.returncode == 1
    assert "REL NORM    COSINE  UNCHANGED  ROLE   LAYER" in done.stdout
    assert done.stdout.splitlines()[-1].startswith(f"page: {page} (")
    told = json.loads(command("diff", a, b, "--changes", "--json").stdout)
    assert told["layers"][3] == {
        "layer": "model.layers.3",
        "role": "param",
        "tensors": 2,
        "relative_norm": 0.0,
        "cosine": 1.0,
        "unchanged": 1.0,
    }
    assert json.loads(command("diff", a, b, "--json").stdout)["layers"] is None
    several = command("diff", a, a, b, "--html", page)
    assert several.returncode == 1
    assert several.stdout.startswith("EQUAL: 8 tensors\n")
    for extra, reason in (
        ((), "add --html FILE"),
        (("--html", page, "--json"), "--json describes"),
    ):
        refused = command("diff", a, a, b, *extra)
        assert refused.returncode == 2
        assert reason in refused.stderr

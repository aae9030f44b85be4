"""`zerotools diff`: the verdict first, then the worst, in 80 columns and in a pipe."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.golden_files import DEEPSPEED, JOB
from tests.ops.exports import export, model, noise
from zerotools.cli.commands.diff import describe
from zerotools.cli.main import build, run
from zerotools.cli.output.render import width
from zerotools.ops.comparison.checkpoint_diff import DiffOptions, diff

Z3 = DEEPSPEED / "z3-bf16-w2/checkpoint"
Z2 = DEEPSPEED / "z2-bf16-w2/checkpoint"

Diff = Callable[..., tuple[int, str, str]]


@pytest.fixture
def compare(capsys: pytest.CaptureFixture[str]) -> Diff:
    """`compare(a, b, "--role", "param")` is (exit status, stdout, stderr)."""

    def invoke(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        status = run(build(), ["diff", *map(str, arguments)])
        return (status, *capsys.readouterr())

    return invoke


def test_equal(compare: Diff) -> None:
    status, out, err = compare(Z3, Z3)
    assert (status, err) == (0, "")
    assert out.splitlines() == [
        "EQUAL: 34 tensors",
        f"A  {Z3} (deepspeed, stage 3, 2 ranks, step 2)",
        f"B  {Z3} (deepspeed, stage 3, 2 ranks, step 2)",
        "",
        "equal, bit by bit  34",
    ]


def test_an_export(compare: Diff, tmp_path: Path) -> None:
    out_path = tmp_path / "model"
    export(Z3, out_path)
    status, out, _ = compare(Z3, out_path)
    assert status == 1
    said = (
        "the 14 weights are equal after the cast to bf16; they differ only in optimizer state that "
        "one of them lacks"
    )
    assert out.splitlines()[0] == f"DIFFERENT: {said}"
    for line in (
        "equal after the cast: 9 tensors, float32 in A and bfloat16 in B",
        "--tolerance cast accepts them as equal",
        "only in A: 7 exp_avg, 7 exp_avg_sq, 7 step; B has no tensors of these roles",
        "--role param compares the weights alone",
        "only in A: step, skipped steps, samples, precision, optimizer, ds_config, param groups",
    ):
        assert line in out.splitlines()
    status, out, _ = compare(Z3, out_path, "--role", "param", "--tolerance", "cast")
    assert (status, out.splitlines()[0]) == (0, "EQUAL: 14 tensors (tolerance cast)")


def test_the_run(compare: Diff) -> None:
    status, out, _ = compare(Z3, Z2)
    assert (status, out.splitlines()[0]) == (1, "DIFFERENT: 1 value of the run")
    assert "training state, in A and in B:\n  ds_config.zero_optimization.stage: 3 and 2\n" in out
    cast = "  7; 7 of them are 16-bit copies in one checkpoint and masters in the other"
    assert cast in out
    assert compare(Z3, Z2, "--include", "*")[0] == 0


def test_different_models_take_a_few_lines(compare: Diff) -> None:
    status, out, _ = compare(Z3, JOB)
    assert status == 1
    lines = out.splitlines()
    assert len(lines) == 3
    assert lines[0] == (
        "DIFFERENT MODELS: A and B have no tensor name in common (34 tensors only in A, 44 "
        "tensors only in B); make the names equal with --rename or --strip-prefix"
    )


def test_a_proposal(compare: Diff, tmp_path: Path) -> None:
    weights = {f"layers.{n}.w": noise(n + 2, seed=n) for n in range(5)}
    a = model(tmp_path / "a", {f"module.{name}": values for name, values in weights.items()})
    b = model(tmp_path / "b", weights)
    status, out, _ = compare(a, b)
    assert status == 1
    assert out.splitlines()[-1] == r"--rename '^module\.=' would match 5 more weights"
    assert compare(a, b, "--rename", r"^module\.=")[0] == 0


@pytest.fixture
def many(tmp_path: Path) -> tuple[Path, Path]:
    """300 tensors, all of which differ, and 40 that each side has alone."""
    weights = {f"model.layers.{n}.self_attn.q_proj.weight": noise(4, 6) for n in range(300)}
    other = {
        name: values + np.float32(1e-3 * n) for n, (name, values) in enumerate(weights.items())
    }
    ours = {f"only.a.{n}": noise(2, 3) for n in range(40)}
    theirs = {f"only.b.{n}.rather.long.name.of.a.tensor": noise(7) for n in range(40)}
    return model(tmp_path / "a", weights | ours), model(tmp_path / "b", other | theirs)


def test_lists_end_at_top(compare: Diff, many: tuple[Path, Path]) -> None:
    for top in (0, 3, 10):
        status, out, _ = compare(*many, "--top", top)
        assert status == 1
        assert out.splitlines()[0] == "DIFFERENT: 379 of 380 tensors"
        assert out.count(".self_attn.q_proj.weight") == top
        assert out.count("only.a.") == out.count("only.b.") == top
    assert "the 10 worst of 299 tensors with different values:" in out
    worst = next(line for line in out.splitlines() if line.endswith("q_proj.weight"))
    assert worst.split()[-1] == "model.layers.299.self_attn.q_proj.weight"
    assert "  ... and 30 more (--json lists all)" in out


def test_rows_fit_in_80_columns_and_names_stay_whole(many: tuple[Path, Path]) -> None:
    found = diff(*many, DiffOptions())
    lines = describe(found, 10, 80)
    head = next(n for n, line in enumerate(lines) if line.lstrip().startswith("MAX ABS"))
    rows = lines[head : lines.index("", head)]
    assert all(width(line) <= 80 for line in rows)
    assert "    model.layers.299.self_attn.q_proj.weight" in rows
    piped = describe(found, 10, None)
    assert sum("model.layers" in line for line in piped) == 10
    assert len(piped) < len(lines)


def test_problems_and_what_cannot_be_read(compare: Diff, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(Z3, damaged)
    next(damaged.rglob("*zero_pp_rank_1*optim_states.pt")).unlink()
    status, out, err = compare(Z3, damaged)
    assert status == 1
    assert "cannot be read: 6 param, 6 exp_avg, 6 exp_avg_sq" in out
    assert "warning: B: " in err


def test_control_characters_in_names_are_escaped(compare: Diff, tmp_path: Path) -> None:
    a = model(tmp_path / "a", {"\x1b[31mred": noise(3), "w": noise(2)})
    b = model(tmp_path / "b", {"\x1b[31mred": noise(3, seed=1), "w": noise(2)})
    _, out, _ = compare(a, b)
    assert "\x1b" not in out
    assert "\\x1b[31mred" in out


def test_json(compare: Diff, many: tuple[Path, Path]) -> None:
    status, out, err = compare(*many, "--json")
    tree = json.loads(out)
    assert (status, err, tree["schema"], tree["equal"]) == (1, "", "zerotools.diff/1", False)
    assert len(tree["tensors"]) == 379
    assert tree["counts"]["equal"] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--tolerance", "close"), "--tolerance 'close' is not bits, cast, ulp=N or abs=X,rel=Y"),
        (("--rename", "x"), "--rename 'x' is not REGEX=REPL"),
        (
            ("--role", "momentum"),
            "neither checkpoint has a tensor that matches --role and --include",
        ),
        (("--section", "model"), "is in a format for which --section can be used"),
        (("--top", "-1"), "-1 is not in the range x>=0"),
    ],
)
def test_what_is_refused(compare: Diff, arguments: tuple[str, ...], message: str) -> None:
    status, out, err = compare(Z3, Z3, *arguments)
    assert (status, out) == (2, "")
    assert message in err


def test_a_path_that_is_not_there(compare: Diff, tmp_path: Path) -> None:
    status, _, err = compare(Z3, tmp_path / "nothing")
    assert status == 2
    assert "nothing does not exist" in err

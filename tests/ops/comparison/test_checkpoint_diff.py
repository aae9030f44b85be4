"""Two checkpoints of any format: what is the same, and what is said of the rest."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.started import run
from tests.golden_files import DEEPSPEED, GOLDEN, JOB
from tests.ops.exports import BF16, export, model, noise
from zerotools import formats
from zerotools.core.checkpoint import Key
from zerotools.core.errors import BadRequest
from zerotools.io.numeric.dtype_casts import Array
from zerotools.ops.comparison import diff_result
from zerotools.ops.comparison.checkpoint_diff import DiffOptions, carry_out_diff, diff, prepare_diff
from zerotools.ops.comparison.diff_result import CheckpointDiff, TensorDifference
from zerotools.ops.conversions import convert
from zerotools.ops.conversions.conversion import Conversion, perform_conversion
from zerotools.ops.execution.tile_workers import MemoryBudget
from zerotools.ops.verification.compare_manifest import chosen_reference
from zerotools.ops.verification.verify import carry_out_verify, prepare_verify

Z3 = DEEPSPEED / "z3-bf16-w2/checkpoint"
SOURCES = [
    Z3,
    DEEPSPEED / "z2-fp16-w2/checkpoint",
    DEEPSPEED / "z1-bf16-w2-bf16-all/checkpoint",
    DEEPSPEED / "tensor-parallel-z2-fp32-w2/checkpoint",
    JOB,
    GOLDEN / "torch-2.13.0/fsdp2-torchtitan-w2/checkpoint",
]


def compared(a: Path, b: Path, **options: Any) -> CheckpointDiff:
    return diff(a, b, DiffOptions(**options))


def two(
    tmp_path: Path, a: Mapping[str, Array], b: Mapping[str, Array], **options: Any
) -> CheckpointDiff:
    """The difference of two models as safetensors' own writer makes them."""
    return compared(model(tmp_path / "a", a), model(tmp_path / "b", b), **options)


def only(found: CheckpointDiff) -> TensorDifference:
    (tensor,) = found.tensors
    return tensor


def converted(source: Path, out: Path, to: str) -> Path:
    options: dict[str, Any] = {"ranks": 3} if to == "dcp" else {}
    conversion = convert.prepare_convert(source, out, to, {"world_size": 3} if options else {})
    assert isinstance(conversion, Conversion)
    perform_conversion(conversion, budget=MemoryBudget(), overwrite=False)
    return out


@pytest.mark.parametrize("to", ["dcp", "universal", "torch"])
def test_a_conversion_is_equal_to_its_source(tmp_path: Path, to: str) -> None:
    found = compared(Z3, converted(Z3, tmp_path / "out", to))
    assert found.is_equal, found.to_json()
    assert found.counts[diff_result.EQUAL] == len(found.tensors) == 34


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.parent.name)
def test_a_checkpoint_is_equal_to_itself(source: Path) -> None:
    found = compared(source, source)
    assert found.is_equal
    assert not found.problems
    assert set(found.counts) == set(diff_result.STATUSES)
    assert found.counts[diff_result.EQUAL] == len(found.tensors) > 0


@pytest.mark.parametrize("source", SOURCES[:4], ids=lambda path: path.parent.name)
def test_a_flipped_bit_is_found_in_its_tensor_alone(tmp_path: Path, source: Path) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(source, damaged)
    checkpoint = formats.read(damaged)
    flipped: dict[Key, tuple[int, ...]] = {}
    for number, (key, tensor) in enumerate(checkpoint.tensors.items()):
        chunk = tensor.chunks[-1]
        is_replica = any(each.box == chunk.box for each in tensor.chunks[:-1])
        if number % 2 or is_replica or key.role == "step":  # which parameters share
            continue
        with checkpoint.path_of(chunk).open("r+b") as file:
            file.seek(chunk.offset)
            first = file.read(1)[0]
            file.seek(chunk.offset)
            file.write(bytes([first ^ 1]))
        flipped[key] = chunk.box.start
    found = compared(source, damaged)
    assert {each.a.key: each.where for each in found.differing if each.a is not None} == flipped
    assert len(flipped) > 3


def test_an_export_is_equal_after_the_cast(tmp_path: Path) -> None:
    export(Z3, tmp_path / "model")
    found = compared(Z3, tmp_path / "model", roles=["param"], tolerance="cast")
    assert found.is_equal
    assert (found.counts[diff_result.CAST], found.counts[diff_result.EQUAL]) == (9, 5)
    exact = compared(Z3, tmp_path / "model", roles=["param"])
    assert not exact.is_equal
    assert len(exact.differing) == 9
    whole = compared(Z3, tmp_path / "model", tolerance="cast")
    assert {each.status for each in whole.differing} == {diff_result.ONLY_A}
    assert {each.role for each in whole.differing} == {"exp_avg", "exp_avg_sq", "step"}


def test_an_export_in_the_other_16_bit_type(tmp_path: Path) -> None:
    """Neither type holds the values of the other; `verify --against` means the same by it."""
    half, brain = noise(5, 7).astype(np.float16), noise(5, 7).astype(BF16)
    for number, (source, exported) in enumerate(
        ((half, half.astype(np.float32).astype(BF16)), (brain, brain.astype(np.float16)))
    ):
        place = tmp_path / str(number)
        place.mkdir()
        for ours, theirs in ((source, exported), (exported, source)):
            found = only(two(place, {"w": ours}, {"w": theirs}, tolerance="cast"))
            assert found.status == diff_result.CAST
            other = chosen_reference(place / "b", MemoryBudget(2**24))
            assert carry_out_verify(prepare_verify(place / "a"), other=other).findings == ()
            shutil.rmtree(place)
            place.mkdir()
        changed = exported.copy()
        changed.view(np.uint16)[3, 3] ^= 2**15
        found = only(two(place, {"w": source}, {"w": changed}, tolerance="cast"))
        assert found.status == diff_result.DIFFERS
        other = chosen_reference(place / "b", MemoryBudget(2**24))
        assert carry_out_verify(prepare_verify(place / "a"), other=other).findings


def test_16_bit_copies_of_masters_are_no_difference() -> None:
    found = compared(Z3, DEEPSPEED / "z2-bf16-w2/checkpoint")
    assert not found.differing
    assert found.counts[diff_result.CAST] == sum(each.is_copy for each in found.tensors) == 7
    assert found.run is not None
    assert [each.what for each in found.run.differences] == ["ds_config.zero_optimization.stage"]


def test_where_and_how_far(tmp_path: Path) -> None:
    ours = noise(300, 200)
    theirs = ours.copy()
    theirs[123, 45] += 1
    theirs[7, 8] = np.nextafter(theirs[7, 8], np.float32(9))
    tensor = only(two(tmp_path, {"w": ours}, {"w": theirs}))
    assert (tensor.status, tensor.where, tensor.shape) == (
        diff_result.DIFFERS,
        (123, 45),
        (300, 200),
    )
    distance = tensor.distance
    assert distance is not None
    assert distance.max_abs is not None
    assert (distance.elements, distance.differing) == (60000, 2)
    assert distance.max_abs.value == abs(float(theirs[123, 45]) - float(ours[123, 45]))
    wide = ours.astype(np.float64)
    assert distance.relative == pytest.approx(
        np.linalg.norm(theirs - wide) / np.linalg.norm(wide), rel=1e-9
    )


@pytest.mark.parametrize(
    ("tolerance", "status"),
    [
        ("bits", diff_result.DIFFERS),
        ("cast", diff_result.DIFFERS),
        ("ulp=1", diff_result.WITHIN),
        ("ulp=0", diff_result.DIFFERS),
        ("abs=1e-6", diff_result.WITHIN),
        ("rel=1e-6", diff_result.WITHIN),
        ("abs=1e-9,rel=1e-9", diff_result.DIFFERS),
    ],
)
def test_tolerances(tmp_path: Path, tolerance: str, status: str) -> None:
    ours = np.ones(10, np.float32)
    theirs = ours.copy()
    theirs[3] = np.nextafter(theirs[3], np.float32(2))
    found = two(tmp_path, {"w": ours}, {"w": theirs}, tolerance=tolerance)
    assert only(found).status == status
    assert found.is_equal == (status == diff_result.WITHIN)


def test_values_that_are_not_numbers(tmp_path: Path) -> None:
    ours = np.array([1, np.nan, np.inf, -0.0, 5], np.float32)
    theirs = np.array([1, np.nan, 2, 0.0, np.nan], np.float32)
    tensor = only(two(tmp_path, {"w": ours}, {"w": theirs}, tolerance="abs=1e30,rel=1e30"))
    assert tensor.distance is not None
    assert (tensor.distance.unmatched, tensor.distance.outside, tensor.where) == (2, 2, (2,))
    as_json = json.loads(json.dumps(_tensor(tensor)))
    assert (as_json["distance"]["a"], as_json["distance"]["b"]) == ("inf", 2.0)


def _tensor(tensor: TensorDifference) -> dict[str, Any]:
    return diff_result._tensor_json(tensor, diff_result.Tolerance())


@pytest.mark.parametrize(
    ("ours", "theirs", "status"),
    [
        (np.float32([1.5, 2]), np.float16([1.5, 2]), diff_result.CAST),
        (np.float32([1.5, 1.0000001]), np.float32([1.5, 1]).astype(BF16), diff_result.CAST),
        (np.float16([1.5, 2]), np.float32([1.5, 2]).astype(BF16), diff_result.CAST),
        (np.float32([1.5, 2]), np.float16([1.5, 3]), diff_result.DIFFERS),
        (np.float32([np.nan]), np.float16([np.nan]), diff_result.CAST),
        (np.int64([3, 4]), np.int32([3, 4]), diff_result.CAST),
        (np.int64([3, 2**40]), np.int32([3, 0]), diff_result.DIFFERS),
        (np.int64([7]), np.float32([7]), diff_result.CAST),
        (np.array([True, False]), np.uint8([1, 0]), diff_result.CAST),
        (np.int64([1]), np.uint64([1]), diff_result.DTYPE),
        (np.complex64([1]), np.float32([1]), diff_result.DTYPE),
        (np.float32([1]), np.float32([[1]]), diff_result.SHAPE),
        (np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32), diff_result.EQUAL),
        (np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float16), diff_result.CAST),
        (np.array(2.5, np.float32), np.array(2.5, np.float32), diff_result.EQUAL),
        (np.array(2.5, np.float32), np.array(2, np.float32), diff_result.DIFFERS),
    ],
    ids=lambda value: f"{value.dtype}" if isinstance(value, np.ndarray) else value,
)
def test_types_and_shapes(tmp_path: Path, ours: Array, theirs: Array, status: str) -> None:
    # A second tensor, without which two shapes would be two models.
    same = noise(3)
    found = two(tmp_path, {"w": ours, "same": same}, {"w": theirs, "same": same}, tolerance="cast")
    tensor = next(each for each in found.tensors if each.name == "w")
    assert tensor.status == status
    assert found.is_equal == (status in (diff_result.CAST, diff_result.EQUAL))


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_8_bit_floats(tmp_path: Path, name: str) -> None:
    import ml_dtypes

    ours = np.arange(256, dtype=np.uint8)
    theirs = ours.copy()
    theirs[0x38] += 1  # the value after 1.0, or near it
    files = []
    for side, values in (("a", ours), ("b", theirs)):
        path = model(tmp_path / side, {"w": values})
        data = (path / "model.safetensors").read_bytes()
        word = b'"F8_E4M3"' if name == "float8_e4m3fn" else b'"F8_E5M2"'
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        header["w"]["dtype"] = word.decode().strip('"')
        text = json.dumps(header).encode()
        (path / "model.safetensors").write_bytes(
            len(text).to_bytes(8, "little") + text + bytes(values)
        )
        files.append(path)
    distance = only(compared(*files)).distance
    element = np.dtype(getattr(ml_dtypes, name))
    wide = [each.view(element).astype(np.float64)[0x38] for each in (ours, theirs)]
    assert distance is not None
    assert distance.max_ulp is not None
    assert distance.max_abs is not None
    assert (distance.differing, distance.max_ulp.value) == (1, 1)
    assert distance.max_abs.value == abs(wide[0] - wide[1])


def test_names_that_one_side_lacks(tmp_path: Path) -> None:
    found = two(tmp_path, {"w": noise(3), "x": noise(2)}, {"w": noise(3), "y": noise(4)})
    assert [(each.name, each.status) for each in found.differing] == [
        ("x", diff_result.ONLY_A),
        ("y", diff_result.ONLY_B),
    ]
    assert not found.is_equal


def test_different_models_are_said_and_not_read(tmp_path: Path) -> None:
    done: list[int] = []
    prepared = prepare_diff(Z3, JOB, DiffOptions())
    found = carry_out_diff(prepared, on_bytes=done.append)
    assert (
        found.different_models
        == "A and B have no tensor name in common (34 tensors only in A, 44 tensors only in B); "
        "make the names equal with --rename or --strip-prefix"
    )
    assert (found.is_equal, found.run, done) == (False, None, [])
    names = {f"layers.{n}.w": noise(3, 4) for n in range(5)}
    wider = {name: noise(6, 8) for name in names}
    assert two(tmp_path, names, wider).different_models == (
        "none of the 5 common tensors has the same shape in both: layers.0.w is [3, 4] in A and "
        "[6, 8] in B"
    )


def test_names_that_match_in_part_propose_a_rule(tmp_path: Path) -> None:
    weights = {f"layers.{n}.w": noise(n + 2, seed=n) for n in range(5)}
    wrapped = {f"module.{name}": values for name, values in weights.items()}
    a, b = model(tmp_path / "a", wrapped), model(tmp_path / "b", weights)
    found = compared(a, b)
    assert found.different_models is not None
    assert found.proposals == {r"^module\.=": 5}
    assert compared(a, b, rename=[r"^module\.="]).is_equal
    assert compared(b, a, rename=[r"^module\.="]).is_equal


def test_the_worst_come_first(tmp_path: Path) -> None:
    weights = {f"w{n}": np.ones(8, np.float32) for n in range(4)}
    other = {name: values.copy() for name, values in weights.items()}
    for n, by in enumerate((0.1, 3.0, np.nan, 0.5)):
        other[f"w{n}"][n] += by
    found = two(tmp_path, weights, other)
    assert [each.name for each in found.worst(9)] == ["w2", "w1", "w3", "w0"]
    assert [each.name for each in found.worst(2)] == ["w2", "w1"]


def test_a_part_that_is_lost_is_told_and_the_rest_compared(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(Z3, damaged)
    next(damaged.rglob("*zero_pp_rank_1*optim_states.pt")).unlink()
    found = compared(Z3, damaged)
    lost = [each for each in found.tensors if each.status == diff_result.UNREADABLE]
    assert lost
    assert all(each.message for each in lost)
    assert found.counts[diff_result.EQUAL]
    assert not found.is_equal
    assert any("zero_pp_rank_1" in problem for problem in found.problems)


def test_a_torn_file_is_told(tmp_path: Path) -> None:
    weights = {"v": noise(100), "w": noise(100)}
    a, b = model(tmp_path / "a", weights), model(tmp_path / "b", weights)
    prepared = prepare_diff(a, b, DiffOptions())
    path = b / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(Exception, match="changed while it was read") as raised:
        carry_out_diff(prepared)
    assert str(path) in str(raised.value)


def test_options_that_neither_format_has_are_refused(tmp_path: Path) -> None:
    a = model(tmp_path / "a", {"w": noise(3)})
    with pytest.raises(BadRequest, match="for which --tag can be used; leave it out"):
        compared(a, a, tag="global_step1")
    tagged = DEEPSPEED / "z2-bf16-w2-tags/checkpoint"
    tags = sorted(path.name for path in tagged.iterdir() if path.is_dir())
    found = compared(tagged, tagged / tags[0], tag=tags[0])
    assert found.is_equal
    assert found.a.tag == found.b.tag == tags[0]
    assert not compared(tagged / tags[0], tagged / tags[-1]).is_equal


def test_progress_comes_to_the_whole(tmp_path: Path) -> None:
    for b in (Z3, DEEPSPEED / "z3-fp32-w2/checkpoint"):
        done: list[int] = []
        prepared = prepare_diff(Z3, b, DiffOptions())
        carry_out_diff(prepared, on_bytes=done.append)
        assert sum(done) == prepared.bytes > 0


@pytest.mark.torch
def test_checkpoints_of_megatron_are_compared(tmp_path: Path) -> None:
    from tests.formats.megatron.layouts import legacy, torch_dist

    for name, step in (("a", 100), ("b", 100), ("c", 90)):
        torch_dist(tmp_path / name, step)
    legacy(tmp_path / "ranks", 100)
    assert compared(tmp_path / "a", tmp_path / "b").is_equal
    later = compared(tmp_path / "a", tmp_path / "c")
    assert later.run is not None
    assert [each.what for each in later.run.differences] == ["step"]
    found = compared(tmp_path / "a", tmp_path / "ranks")
    assert not found.is_equal
    assert any("TP 2, PP 2" in note for note in found.notes)


PROGRAM = """
import sys
from pathlib import Path
from zerotools.cli.main import main
try:
    main(["diff", *sys.argv[1:]])
finally:
    status = Path("/proc/self/status").read_text()
    print(status.partition("VmHWM:")[2].split()[0], file=sys.stderr)
"""


def test_memory_stays_bounded(tmp_path: Path) -> None:
    """Some 75 MB that differ everywhere, in two types, in a process that has 55 MB itself."""
    ours = noise(2**18, 48)
    a = model(tmp_path / "a", {"w": ours})
    b = model(tmp_path / "b", {"w": (ours * np.float32(1.25)).astype(np.float16)})
    del ours
    done = run(
        [sys.executable, "-c", PROGRAM, str(a), str(b)],
        timeout=60,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stderr
    assert int(done.stderr.split()[-1]) * 1024 < 110 * 10**6

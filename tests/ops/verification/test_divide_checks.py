"""N runs that verify a part each find together what one run finds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.golden_files import DEEPSPEED, JOB, TORCH
from tests.matrices import FULL
from tests.ops.verification.damage import SMALL, copy, flip, largest_record
from tests.ops.verification.forms import made
from zerotools.core.errors import ZerotoolsError
from zerotools.ops.execution.output_part import OutputPart
from zerotools.ops.verification.compare_manifest import Against, chosen_reference
from zerotools.ops.verification.divide_checks import Portion, portion_of, tied_names
from zerotools.ops.verification.verification_result import Check, Soundness, Verification
from zerotools.ops.verification.verify import carry_out_verify, prepare_verify

CASES = {
    "zero 3": DEEPSPEED / "z3-bf16-w2" / "checkpoint",
    "zero 1, pipeline": DEEPSPEED / "pipeline-z1-fp32-w4" / "checkpoint",
    "tensor parallel": DEEPSPEED / "tensor-parallel-z1-bf16-w4" / "checkpoint",
    "universal": DEEPSPEED / "universal-z2-bf16-w3" / "checkpoint",
    "dcp": TORCH / "fsdp2-torchtitan-w2" / "checkpoint" / "step-4",
    "safetensors": TORCH / "fsdp2-hf-sharded-w2" / "checkpoint",
    "job": JOB,
}
SOME = ((1, "job"), (50, "dcp"))
"""One part, and more parts than there is to check: all others are of the full matrix."""
FILES = 8 if FULL else 4


def in_parts(path: Path, of: int, other: Path | None = None) -> list[Verification]:
    found = []
    for index in range(1, of + 1):
        given = prepare_verify(path, part=OutputPart(index, of))
        compared = None if other is None else chosen_reference(other, SMALL, portion=given.portion)
        found.append(carry_out_verify(given, other=compared, budget=SMALL))
    return found


def whole(path: Path, other: Path | None = None) -> Verification:
    compared: Against | None = None if other is None else chosen_reference(other, SMALL)
    return carry_out_verify(prepare_verify(path), other=compared, budget=SMALL)


def said(found: Sequence[Verification]) -> set[str]:
    return {each.message for part in found for each in part.findings}


def compare(parts: Sequence[Verification], one: Verification) -> None:
    assert said(parts) == said([one])
    assert {name for part in parts for name in part.unchecked} == set(one.unchecked)
    assert sum(part.bytes_read for part in parts) == one.bytes_read
    assert any(part.verdict is Soundness.FAULTY for part in parts) == bool(one.findings)
    assert all(part.is_whole for part in parts) == one.is_whole


@pytest.mark.parametrize(
    ("of", "case"),
    [
        pytest.param(of, case, marks=() if of == 3 or (of, case) in SOME else pytest.mark.full)
        for of in (1, 3, 50)
        for case in CASES
    ],
)
def test_what_is_whole_is_so_in_parts(case: str, of: int) -> None:
    compare(in_parts(CASES[case], of), whole(CASES[case]))


@pytest.mark.parametrize("case", CASES)
def test_damage_in_a_file_is_found_by_one_part(tmp_path: Path, case: str) -> None:
    of = 3
    found = 0
    names = sorted(prepare_verify(CASES[case]).files.names)
    for number, name in enumerate(names[:: -(-len(names) // FILES)]):
        path = copy(CASES[case], tmp_path / str(number))
        file = path / name
        try:
            at = largest_record(file)
        except BadZipFile:  # a byte in the middle of it
            at = file.stat().st_size // 2
        if not file.stat().st_size:
            continue
        flip(file, at)
        try:
            one = whole(path)
        except ZerotoolsError as error:
            with pytest.raises(type(error)):
                in_parts(path, of)
            continue
        compare(in_parts(path, of), one)
        found += bool(one.findings)
    assert found or case in ("dcp", "safetensors")


@pytest.mark.parametrize("how", ["reshard-3-3", "dcp", "universal", "torch", "export-bf16"])
def test_a_part_compares_its_own_tensors(tmp_path: Path, how: str) -> None:
    source = CASES["zero 3"]
    out = made(source, tmp_path / "out", how)
    one, parts = whole(out, source), in_parts(out, 3, source)
    compare(parts, one)
    tensors = [part.comparison.tensors for part in parts if part.comparison]
    assert one.comparison is not None
    assert (sum(tensors), len(tensors)) == (one.comparison.tensors, 3)
    assert all(0 < count < one.comparison.tensors for count in tensors)


def test_a_changed_value_is_found_by_the_part_that_has_its_tensor(tmp_path: Path) -> None:
    source = CASES["zero 3"]
    out = made(source, tmp_path / "out", "export-bf16")
    keys = list(prepare_verify(out).checkpoint.tensors)
    for key in (keys[0], keys[-1]):
        chunk = prepare_verify(out).checkpoint.tensors[key].chunks[0]
        flip(out / chunk.file, chunk.offset)
        (finding,) = [each for part in in_parts(out, 3, source) for each in part.findings]
        assert (finding.check, finding.tensor) == (Check.MANIFEST, key)
        flip(out / chunk.file, chunk.offset)


def test_what_only_the_manifest_has_is_said_by_one_part(tmp_path: Path) -> None:
    whole_weights = {name: np.full(8, n, np.float32) for n, name in enumerate("abcdef")}
    save_file(whole_weights, tmp_path / "all.safetensors")
    del whole_weights["d"]
    save_file(whole_weights, tmp_path / "less.safetensors")
    parts = in_parts(tmp_path / "less.safetensors", 3, tmp_path / "all.safetensors")
    (finding,) = [each for part in parts for each in part.findings]
    assert "d is in the manifest, but not in the checkpoint" in finding.message


def test_fewer_bits_in_one_part_leave_its_file_unchecked(tmp_path: Path) -> None:
    values = {name: np.linspace(0, 1, 8, dtype=np.float32) for name in "abcdef"}
    save_file(values, tmp_path / "wide.safetensors")
    values["f"] = values["f"].astype(np.float16)  # all bits of the others are known
    save_file(values, tmp_path / "narrow.safetensors")
    parts = in_parts(tmp_path / "wide.safetensors", 3, tmp_path / "narrow.safetensors")
    compare(parts, whole(tmp_path / "wide.safetensors", tmp_path / "narrow.safetensors"))
    assert Soundness.UNCHECKED in {part.verdict for part in parts}


def test_tied_names_are_of_one_part() -> None:
    given = prepare_verify(JOB)
    assert given.checkpoint.aliases
    for of in (2, 5, 50):
        parts = [
            portion_of(given.checkpoint, given.files, OutputPart(index, of))
            for index in range(1, of + 1)
        ]
        for alias, holder in given.checkpoint.aliases.items():
            assert [part.has_name(alias) for part in parts] == [
                part.has_name(holder) for part in parts
            ]
        for names, has in (
            (given.files.names, "has_file"),
            ({key.name for key in given.checkpoint.tensors} | {"unknown"}, "has_name"),
        ):
            for name in names:
                assert sum(getattr(part, has)(name) for part in parts) == 1


def test_names_that_another_ties_are_needed_by_both_parts() -> None:
    first, second = (Portion(OutputPart(n, 2), {}, {"head": 1, "embed": 2}) for n in (1, 2))
    assert list(tied_names("head", {"head": "embed"})) == ["head", "embed"]
    assert first.needs_name("embed", {"head": "embed"})
    assert second.needs_name("embed", {"head": "embed"})
    assert not first.needs_name("embed", {})
    assert first.has_name("other", {"other": "head"})
    assert not second.has_name("other", {"other": "head"})

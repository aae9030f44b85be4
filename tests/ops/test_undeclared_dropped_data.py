from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.golden_files import DEEPSPEED, GOLDEN, JOB
from zerotools import formats
from zerotools.core.checkpoint import Key
from zerotools.core.errors import Unsupported
from zerotools.formats.format import WriteOptions
from zerotools.ops.conversions import reshard
from zerotools.ops.conversions.conversion import Conversion
from zerotools.ops.undeclared_dropped_data import undeclared_dropped_data

ZERO = sorted(GOLDEN.glob("deepspeed-*/z[123]-bf16-w2*/checkpoint"))[::5]
CASES = [(JOB, None), *((case, stage) for case in ZERO for stage in (None, 1, 3))]


@pytest.mark.parametrize(("case", "stage"), CASES)
def test_a_reshard_holds_or_names_every_tensor(
    tmp_path: Path, case: Path, stage: int | None
) -> None:
    options = WriteOptions(stage=stage)
    done = reshard.prepare_reshard(
        case, tmp_path / "out", world_size=3, options=options, force=True
    )
    assert isinstance(done, Conversion)
    target = done.target
    there = {*target.checkpoint.tensors, *target.carried}
    named = {dropped.what for dropped in target.dropped}
    assert [key for key in done.source.tensors if key not in there and key.role not in named] == []


def test_what_a_writer_leaves_out_is_named_and_a_weight_is_refused(tmp_path: Path) -> None:
    case = DEEPSPEED / "z2-bf16-w2" / "checkpoint"
    source = formats.read(case)
    done = reshard.prepare_reshard(case, tmp_path / "out", world_size=3)
    assert isinstance(done, Conversion)
    assert undeclared_dropped_data(source, (), done.target) == []
    tensor = next(iter(source.tensors.values()))
    with_more = replace(source, tensors={**source.tensors, Key("w", "factored_rows"): tensor})
    (dropped,) = undeclared_dropped_data(with_more, (), done.target)
    assert (dropped.what, dropped.why) == ("factored_rows", "w and 0 others cannot be stored in it")
    with_weight = replace(source, tensors={**source.tensors, Key("new", "param"): tensor})
    with pytest.raises(
        Unsupported, match="new cannot be stored in deepspeed, so it is not written"
    ):
        undeclared_dropped_data(with_weight, (), done.target)

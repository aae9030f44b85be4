"""What an interrupted conversion is recognised by, in the words that journals have."""

from __future__ import annotations

from pathlib import Path

from tests.golden_files import GOLDEN
from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Checkpoint, Chunk, Key, Origin, Tensor
from zerotools.core.dtypes import FLOAT32
from zerotools.core.target import CarriedBytes, Checksum, FilePlan, LiteralBytes, Target, ZeroBytes
from zerotools.formats.format import WriteOptions
from zerotools.ops.conversions import reshard
from zerotools.ops.execution.resume_identity import identity_of

# Written by 0.2.0 before its classes were renamed: a run that it began can be resumed.
RECORDED = {
    "source files": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "options": "bde29b26ade903fb5c5791cb96e5905efc13ff4b8d9ada509117ee7a4f3da827",
    "layout": "4e4b44e00ef401b824ed02bf039747d2216c4934d62bc4005a03e516e7eb2c77",
}


def test_the_digests_of_a_plan_stay_what_older_journals_have() -> None:
    plan = FilePlan(
        64,
        (LiteralBytes(0, b"head"),),
        [CarriedBytes(4, Path("/s/a"), 8, 4)],
        (Checksum(0, 8, (60,)),),
        (ZeroBytes(8, 4),),
    )
    key = Key("w", "param")
    tensor = Tensor(FLOAT32, (2, 3), (Chunk(Box((0, 0), (2, 3)), "out", 16),))
    source = Checkpoint(Path("/s"), {key: tensor}, Origin("x", Path("/s")))
    output = Checkpoint(Path("/d"), {key: tensor}, Origin("x", Path("/d")), files={"out": 64})
    identity = identity_of(source, Target(output, {"out": plan}), "request", {})
    assert {name: identity[name] for name in RECORDED} == RECORDED


def test_what_was_asked_of_reshard_is_said_as_older_journals_have_it(tmp_path: Path) -> None:
    case = GOLDEN / "deepspeed-0.19.8" / "z2-bf16-w2" / "checkpoint"
    done = reshard.prepare_reshard(
        case, tmp_path / "out", world_size=3, options=WriteOptions(stage=1, round_robin=False)
    )
    assert isinstance(done, reshard.Conversion)
    assert done.request == (
        "(3, Settings(stage=1, sub_group_size=None, round_robin=False, ds_config=None))"
    )

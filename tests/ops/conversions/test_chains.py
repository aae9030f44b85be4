"""Through any chain of formats, and back: what every format of the chain can hold is the same byte
for byte, and what one cannot is in its list of what is dropped, which is asserted exactly."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.golden_files import DEEPSPEED, JOB, TORCH
from tests.matrices import examples
from tests.ops.chains import Held, Hop, compare, convert, dropped_by, expected, is_float
from zerotools.formats.dcp.naming_styles import STYLES
from zerotools.ops.conversions.convert import written_formats

CASES = (
    "z2-bf16-w2",
    "z3-bf16-w2",
    "z2-fp16-w2",
    "z3-bf16-w3-adapter",
    "z1-fp32-w2-amsgrad",
    "z2-bf16-w2-cpu-adam",
    "z2-fp32-w4-round-robin",
    "z3-fp32-w2-sub-groups",
    "z2-bf16-w3-aligned",
    "z2-bf16-w2-before-first-step",
    "bf16-optimizer-w4-tiny-group",
    "universal-z2-bf16-w3",
    "z2-fp32-w2-rmsprop",
    "z2-bf16-w2-sgd",
    "z3-fp16-w2",
    "z1-bf16-w2-client-state",
    "z3-fp32-w2-momentum",
)
STARTS = {case: DEEPSPEED / case / "checkpoint" for case in CASES if (DEEPSPEED / case).is_dir()}
STARTS |= {
    case: TORCH / case / "checkpoint"
    for case in ("fsdp1-dcp-w2", "fsdp2-torchtitan-w2", "fsdp2-verl-w3")
}
STARTS["job"] = JOB
# Megatron's layout is one of known models' weights, which these little models are not.
TARGETS = sorted({*written_formats()} - {"megatron"})
ADAM = {"lr": 0.5, "betas": (0.8, 0.9), "eps": 1e-7, "weight_decay": 0.0}


@st.composite
def hops(draw: st.DrawFn) -> Hop:
    ranks = {"world_size": draw(st.integers(1, 4))}
    to = draw(st.sampled_from([*TARGETS, "deepspeed", "dcp"]))
    if to == "dcp":
        return Hop(to, {**ranks, "style": draw(st.sampled_from([*STYLES]))})
    if to == "universal":
        return Hop(to, draw(st.sampled_from([{}, {"stage": 3}, {"stage": 2}])))
    if to == "deepspeed":
        stage = draw(st.sampled_from([1, 2, 3]))
        size = {"sub_group_size": draw(st.sampled_from([1, 40]))} if stage == 3 else {}
        order = {"round_robin": draw(st.booleans())} if stage == 2 else {}
        return Hop(to, {**ranks, "stage": stage, **draw(st.sampled_from([{}, size, order]))})
    return Hop(to)


def completed(hop: Hop, held: Held, scratch: Path) -> Hop:
    """With what DeepSpeed needs and the checkpoint does not say."""
    more: dict[str, Any] = {}
    if hop.to == "universal" and not held.training.groups:
        return replace(hop, options={**hop.options, **ADAM})
    if hop.to != "deepspeed":
        return hop
    if held.training.precision is None:
        zero = {
            name: hop.options[name] for name in ("stage", "sub_group_size") if name in hop.options
        }
        if "round_robin" in hop.options:
            zero["round_robin_gradients"] = hop.options["round_robin"]
        more["ds_config"] = {"bf16": {"enabled": True}, "zero_optimization": zero}
    if not (held.training.groups and held.training.is_ordered):
        names = [k.name for k, v in held.tensors.items() if k.role == "param" and is_float(v)]
        more["order"] = scratch / "order"
        more["order"].write_text("\n".join(names))
        more |= {} if held.training.groups else ADAM
    return replace(hop, options={**hop.options, **more})


def follow(start: Path, chain: list[Hop], scratch: Path) -> None:
    path, held = start, Held.of(start)
    for number, hop in enumerate(chain):
        hop, out = completed(hop, held, scratch), scratch / str(number)
        dropped = dropped_by(held, hop)
        wanted = expected(held, hop, dropped)
        held, said = convert(path, out, hop)
        assert said == dropped, hop
        compare(held, wanted)
        path = out


@settings(max_examples=examples(40))
@given(st.sampled_from(sorted(STARTS)), st.lists(hops(), min_size=1, max_size=4))
def test_what_every_format_holds_stays_and_the_rest_is_listed(start: str, chain: list[Hop]) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        follow(STARTS[start], chain, Path(scratch))

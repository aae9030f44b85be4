"""Through any chain of formats, and back: what every format of the chain can hold is the same byte
for byte, and what one cannot is in its list of what is dropped, which is asserted exactly."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.golden_files import DEEPSPEED
from tests.ops.chains import Held, Hop, compare, convert, expected, expected_drops
from zerotools import formats
from zerotools.ops.targets import STYLES

STARTS = {
    case: DEEPSPEED / case / "checkpoint"
    for case in (
        "z2-bf16-w2",
        "z3-bf16-w2",
        "z2-fp16-w2",
        "z3-bf16-w3-adapter",
        "z1-fp32-w2-amsgrad",
        "z2-bf16-w2-cpu-adam",
        "z2-fp32-w4-round-robin",
        "z3-fp32-w2-sub-groups",
        "bf16-optimizer-w4-tiny-group",
    )
}


@st.composite
def hops(draw: st.DrawFn) -> Hop:
    to = draw(st.sampled_from(["torch", "dcp", "safetensors"]))
    if to == "dcp":
        style = draw(st.sampled_from(STYLES))
        return Hop(to, {"world_size": draw(st.integers(1, 4)), "style": style})
    return Hop(to)


@settings(max_examples=40)
@given(st.sampled_from(sorted(STARTS)), st.lists(hops(), min_size=1, max_size=4))
def test_what_every_format_holds_stays_and_the_rest_is_listed(start: str, chain: list[Hop]) -> None:
    path = STARTS[start]
    held = Held.of(formats.read(path))
    with tempfile.TemporaryDirectory() as scratch:
        for number, hop in enumerate(chain):
            out = Path(scratch) / str(number)
            wanted_drops = expected_drops(held, hop)
            wanted = expected(held, hop, wanted_drops)
            held, dropped = convert(path, out, hop)
            assert dropped == wanted_drops, hop
            compare(held, wanted)
            path = out

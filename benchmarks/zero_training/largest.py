"""The largest model that trains in a fixed memory of one GPU, at every stage and offload.

What `ops/estimate` says of state bytes alone, and what trained: three steps by the production
trainer, in a process of its own for each size that is tried.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.zero_training.cases import OFFLOADS, Case, deepspeed_json, job, small_buckets
from benchmarks.zero_training.launch import Failed, run_ranks
from benchmarks.zero_training.setting import GIB, Setting
from benchmarks.zero_training.sizes import LADDER, Size, largest
from zerotools.core.training_memory_layout import DEVICE, DISK, GRADIENTS, HOST, MemoryLayout
from zerotools.ops.estimate.state_memory import (
    bytes_at,
    gathered_bytes,
    textbook_state,
    torch_engine_state,
)

SCRIPT = Path(__file__).with_name("largest_rank.py")
TOKENS = 512
STEPS = 3
BUCKET = 5_000_000
PLACES = (DEVICE, HOST, DISK)
Room = Mapping[str, int]

CASES = [
    *(Case("torch", stage, where) for stage in (0, 1, 2, 3) for where in ("none", "cpu", "disk")),
    Case("torch", 3, "params"),
    Case("torch", 3, "params, disk"),
    *(Case("deepspeed", stage) for stage in (0, 1, 2, 3)),
    Case("deepspeed", 2, "cpu"),
    Case("deepspeed", 3, "cpu"),
    Case("deepspeed", 3, "params"),
]


def layout_of(case: Case) -> MemoryLayout:
    """How a case lays out its state on one GPU."""
    offload = OFFLOADS[case.offload]
    host = "cpu" if offload else "none"
    return MemoryLayout(
        case.stage,
        world_size=1,
        offload_optimizer=offload.get("optimizer", host),
        offload_params=offload.get("params", "none"),
    )


@cache
def need(case: Case, size: Size) -> Mapping[str, int]:
    """Bytes of state by place, at most at a time. Engine `deepspeed` is taken at the textbook's
    word, as jobs take it."""
    parameters, layout = list(size.parameters()), layout_of(case)
    if case.engine == "deepspeed":
        paper = textbook_state(parameters, layout)
        return {place: bytes_at(paper, place) for place in PLACES}
    state = torch_engine_state(parameters, layout)
    found = {place: bytes_at(state, place) for place in PLACES}
    # Weights are gathered most before the backward pass makes gradients, where these are made anew.
    early = 0 if layout.has_masters else state.get((DEVICE, GRADIENTS), 0)
    found[DEVICE] = max(found[DEVICE], found[DEVICE] - early + gathered_bytes(parameters, layout))
    return found


def full(case: Case, size: Size, room: Room) -> list[str]:
    """The places that have too little room for the state."""
    return [place for place, bytes_ in need(case, size).items() if bytes_ > room[place]]


def predicted(case: Case, room: Room) -> Size | None:
    """The largest whose state finds room."""
    return largest(LADDER, lambda size: not full(case, size, room))


def room_of(setting: Setting) -> Room:
    """The cap of the GPU, nine tenths of this machine's memory, and what the work directory has."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        DEVICE: setting.cap_bytes,
        HOST: memory // 10 * 9,
        DISK: shutil.disk_usage(setting.work).free // 10 * 9,
    }


def tree_of(case: Case, size: Size, device: str, work: Path) -> dict[str, Any]:
    """The job of a trial: one sequence, activations computed again."""
    return job(
        case,
        device,
        1,
        model=size.config(TOKENS),
        data={"text": [str(Path(__file__).resolve())], "sequence_length": TOKENS},
        train={"steps": STEPS, "batch_size": 1, "activation_checkpointing": True},
        config=small_buckets(deepspeed_json(case, 1, torch_adam=True), BUCKET),
        path=work,
    )


@dataclass(frozen=True)
class Trial:
    """Whether `case` trains at a size, tried on the GPU; sizes that the host or the disk has no
    room for are not tried."""

    case: Case
    setting: Setting
    room: Room

    def __call__(self, size: Size) -> bool:
        if set(full(self.case, size, self.room)) & {HOST, DISK}:
            return False
        print(f"trying {size}: {self.case.name}", file=sys.stderr, flush=True)
        tree = tree_of(self.case, size, self.setting.device, self.setting.work)
        plan = {"bytes": self.setting.cap_bytes}
        found = run_ranks(self.setting.work / "trial", tree, SCRIPT, plan=plan)
        fits: bool = found["fits"]
        return fits


def row(case: Case, setting: Setting) -> str:
    """A row of the table."""
    room = room_of(setting)
    expected = predicted(case, room)
    at_most, limit = "none", ""
    if expected is not None:
        place = LADDER.index(expected) + 1
        at_most = str(expected)
        limit = ", ".join(full(case, LADDER[place], room)) if place < len(LADDER) else ""
    cells = [case.engine, str(case.stage), case.offload, at_most, limit]
    if setting.device == "cuda":
        start = LADDER.index(expected) if expected is not None else 0
        try:
            found = largest(LADDER, Trial(case, setting, room), start)
            cells.append("none" if found is None else str(found))
        except Failed as error:
            cells.append(f"not measured: {error}")
    return f"| {' | '.join(cells)} |"


def table(setting: Setting) -> Iterator[str]:
    """The lines of the table."""
    cap = setting.cap_bytes / GIB
    measured = setting.device == "cuda"
    yield (
        f"Largest Llama in {cap:g} GiB of one GPU: bf16, AdamW, one sequence of {TOKENS} tokens,"
    )
    yield (
        "activation checkpointing. Predicted is of the state alone: activations are not estimated."
    )
    if not measured:
        yield "Measuring needs a GPU, and there is none: predicted alone."
    yield ""
    last = [f"trains ({STEPS} steps)"] if measured else []
    names = ["engine", "stage", "offload", "predicted, at most", "limited by", *last]
    yield f"| {' | '.join(names)} |"
    yield "|" + "---|" * len(names)
    for case in (each for each in CASES if setting.has(each.name)):
        yield row(case, setting)

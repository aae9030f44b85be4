"""State bytes per rank at every stage and offload: textbook, predicted, held."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.zero_training.cases import Case, deepspeed_json, llama, small_buckets
from benchmarks.zero_training.launch import run_ranks
from benchmarks.zero_training.setting import Setting
from harness.launching import resolved

SCRIPT = Path(__file__).with_name("state_rank.py")
MODEL = llama(256, 1024, layers=6, heads=4)
ODD = {**MODEL, "vocab_size": 257, "intermediate_size": 1022, "num_hidden_layers": 5}
"""Of which some rows do not divide by 2, others not by 4."""
ADAPTERS = {"rank": 8, "target_modules": ["q_proj", "v_proj"], "frozen_precision": "train"}
RANKS = (1, 2, 4)
PLACES = ("device", "host", "disk")
HOSTED = {"none": {}, "cpu": {"optimizer": "cpu"}, "params": {"params": "cpu"}}
Found = Mapping[str, Any]


def accumulations() -> Iterator[tuple[int, str, str]]:
    """Stage, offload and way of steps of two micro batches."""
    for stage in (0, 1, 2, 3):
        for name in ("none", "cpu", "disk", *(["params"] if stage == 3 else [])):
            for way in ("sharded", "local"):
                yield stage, name, way


def jobs(work: Path, device: str, ranks: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every stage with every offload that it has, in mixed precision with AdamW."""
    base: dict[str, Any] = {
        "device": device,
        **({"ranks": ranks} if device == "cpu" else {"gpus": ranks}),
        "model": {"config": MODEL},
        "data": {"text": [str(Path(__file__).resolve())], "sequence_length": 32},
        "train": {"steps": 1, "batch_size": ranks, "precision": "bf16"},
    }
    spill = {"optimizer": "disk", "path": str(work)}
    for stage in (0, 1, 2, 3):
        for name, offload in (("none", {}), ("cpu", {"optimizer": "cpu"}), ("disk", spill)):
            yield f"torch {stage} {name}", {**base, "zero": {"stage": stage}, "offload": offload}
    for stage, name, way in accumulations():
        train = {**base["train"], "batch_size": 2 * ranks, "micro_batch_size": 1}
        changes = {"train": {**train, "accumulate": way}, "zero": {"stage": stage}}
        offload = spill if name == "disk" else HOSTED[name]
        yield f"torch {stage} {name} {way}", {**base, **changes, "offload": offload}
    for stage, name in ((0, "none"), (1, "none"), (3, "none"), (3, "cpu"), (3, "params")):
        places = {"zero": {"stage": stage}, "offload": HOSTED[name]}
        yield f"torch {stage} {name} adapters", {**base, **places, "lora": ADAPTERS}
        if stage == 3:
            yield f"torch 3 {name} odd", {**base, **places, "model": {"config": ODD}}
    third = {**base, "zero": {"stage": 3}}
    yield "torch 3 params", {**third, "offload": {"params": "cpu"}}
    yield "torch 3 params disk", {**third, "offload": {**spill, "params": "cpu"}}
    for stage, where in [*((stage, "none") for stage in (0, 1, 2, 3)), (2, "cpu"), (3, "cpu")]:
        config = deepspeed_json(Case("deepspeed", stage, where), 1, torch_adam=True)
        config = small_buckets(config, 500_000)
        tree = {**base, "engine": "deepspeed", "zero": {"stage": stage}}
        yield f"deepspeed {stage} {where}", {**tree, "deepspeed": {"config": config}}
        twice = {**config, "gradient_accumulation_steps": 2}
        train = {**base["train"], "batch_size": 2 * ranks, "micro_batch_size": 1}
        tree = {**tree, "train": train, "deepspeed": {"config": twice}}
        yield f"deepspeed {stage} {where} summed", tree


def counted(work: Path, device: str, ranks: int) -> dict[str, Found]:
    """What each job was to hold and held, on the rank that had most."""
    trees = dict(jobs(work, device, ranks))
    runs = {name.replace(" ", "-"): resolved(tree) for name, tree in trees.items()}
    first = next(iter(trees.values()))
    found: dict[str, Found] = run_ranks(work / f"states-{ranks}", first, SCRIPT, runs=runs)
    return found


def row(name: str, ranks: int, found: Found) -> str:
    """Bytes per parameter, as device + host + disk; of DeepSpeed, all that the process holds."""
    count = found["parameters"]
    engine, stage, offload = name.split("-", 2)
    offload = offload.replace("-", ", ")
    if "all" in found:
        paper, held = sum(found["textbook"].values()), found["all"]
        over = f"{100 * (held - paper) / paper:+.2f} % of the textbook"
        texts = (f"{paper / count:.2f} in all", "", f"{held / count:.2f} in all", over, "")
        return f"| {' | '.join((engine, stage, offload, str(ranks), *texts))} |"
    held, predicted = found["held"], found["predicted"]
    total, expected = sum(held.values()), sum(predicted.values())
    cells = [
        engine,
        stage,
        offload,
        str(ranks),
        *(_places(found[column], count) for column in ("textbook", "predicted", "held")),
        f"{100 * (total - expected) / expected:+.2f} %",
        f"{found['gathered'] / count:.2f}, {found['held_gathered'] / count:.2f}",
    ]
    return f"| {' | '.join(cells)} |"


def _places(sizes: Mapping[str, int], count: int) -> str:
    device, *others = (sizes[place] / count for place in PLACES)
    rest = "".join(
        f" + {size:.2f} {where}" for size, where in zip(others, PLACES[1:], strict=True) if size
    )
    return f"{device:.2f}{rest}"


def table(setting: Setting) -> Iterator[str]:
    """The lines of the table, in bytes per parameter."""
    yield (
        "| engine | stage | offload, sums of micro batches | ranks | textbook | predicted | held "
        "| held over predicted | gathered in the passes: predicted, held |"
    )
    yield "|---|---|---|---|---|---|---|---|---|"
    most = max(RANKS) if setting.device == "cpu" else setting.ranks
    for ranks in (each for each in RANKS if each <= most):
        print(f"counting on {ranks} ranks", file=sys.stderr, flush=True)
        for name, found in counted(setting.work, setting.device, ranks).items():
            yield row(name, ranks, found)

"""Megatron-Core loads what zerotools writes for it: `python -m tests.golden.megatron_runs.judge
--megatron DIR [--out DIR] [NAME ...]`.

Of each model of transformers a checkpoint is made by `zerotools convert --to megatron --map-to
megatron`. At several degrees of parallelism Megatron-Core loads it into models of zeros, all that
it asks for, and saves it again: every tensor must be the same, bit by bit. In fp32 what the model
computes is compared with transformers. With an optimizer Megatron goes on from there by its own
optimizer, and torch's AdamW from what was converted: masters and moments must be the same.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

import torch
from safetensors.torch import load_file

from tests.formats.megatron.golden import Digest, read_digests
from tests.golden_files import GOLDEN
from zerotools import formats
from zerotools.core.checkpoint import Key

from .cases import BASE, MOE, Case
from .generate import version_in
from .hub_runs import continued, hub_model, hub_run
from .started_ranks import run_ranks

TOKENS = [[1, 5, 2, 28, 9, 9, 0, 17]]
QK, BIAS = {"qk_layernorm": True}, {"add_qkv_bias": True}
MIXED = {"num_layers": 3, "moe_layer_freq": [0, 1, 1], **QK}


def _case(name: str, **degrees) -> Case:
    return Case(name, "", **{"model": dict(BASE), **degrees})


HUB = {
    "llama": (_case("1"), _case("tp2-pp2", tp=2, pp=2), _case("fp32", precision="fp32")),
    "llama-mha": (_case("tp4", tp=4, model={**BASE, "num_query_groups": 4}),),
    "llama-tied": (_case("pp2", pp=2, tied=True),),
    "qwen2": (_case("tp2", tp=2, model={**BASE, **BIAS}),),
    "qwen3": (_case("tp2-pp2", tp=2, pp=2, model={**BASE, **QK}),),
    "mixtral": (
        _case("ep2", ep=2, dp=2, model=dict(MOE)),
        _case("tp2-pp2-etp2", tp=2, pp=2, etp=2, model=dict(MOE)),
        _case("fp32", precision="fp32", model={**MOE, "moe_token_dispatcher_type": "allgather"}),
    ),
    "qwen3_moe": (_case("tp2-ep2", tp=2, ep=2, dp=2, etp=1, model={**MOE, **QK}),),
    "qwen3_moe-mixed": (_case("ep2-pp1", ep=2, dp=2, model={**MOE, **MIXED}),),
}
"""Models, and the degrees at which each is loaded."""
RUNS = {
    "megatron-core-0.16.1/dense-tp2-dp2-buckets": _case("tp1-pp2-dp2", pp=2, dp=2),
    "megatron-core-0.15.2/dense-tp2-model-space": _case("tp2-pp2", tp=2, pp=2),
    "megatron-core-0.16.1/legacy-tp2-pp2": _case("tp1-dp2", dp=2, tied=True),
    "megatron-core-0.16.1/legacy-moe-ep2-tp2": _case("tp2-ep1", tp=2, etp=2, model=dict(MOE)),
    "megatron-core-0.16.1/moe-ep2-tp2": _case("ep4", ep=4, dp=4, model=dict(MOE)),
}
"""Golden runs of Megatron, and other degrees at which their optimizer goes on."""
TRAINED = {
    "llama": _case("tp2-pp2", tp=2, pp=2),
    "mixtral": _case("tp2-ep2", tp=2, ep=2, dp=2, etp=1, model=dict(MOE)),
}
"""Models that torch trained, which Megatron goes on with."""
LOCAL = {"pre_mlp_layernorm.weight": "mlp.linear_fc1.layer_norm_weight"}


def convert(*words: object) -> None:
    command = [sys.executable, "-m", "zerotools", "convert", "--verify", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{words}: {done.stderr}")


def load_in_megatron(run: Path, case: Case, where: Path, megatron: Path, steps: int = 0) -> Path:
    """What Megatron saved of what it loaded."""
    where.mkdir(parents=True)
    (where / "case.json").write_text(json.dumps(asdict(case)))
    command = [sys.executable, "-m", "tests.golden.megatron_runs.ours_rank", str(run), "case.json"]
    run_ranks(
        [*command, str(steps)],
        where,
        world_size=case.world_size,
        megatron=megatron,
        what=f"{run.name} {case.name}",
    )
    return where / "checkpoint"


def held(run: Path) -> dict[Key, Digest]:
    """All tensors by the names of Megatron's own layers, in which all models here are built."""
    found = {}
    for key, digest in read_digests(formats.read(run)).items():
        name = key.name
        for own, local in LOCAL.items():
            name = name.replace(own, local)
        found[Key(name, key.role)] = digest
    return found


def judged(ours: Path, theirs: Path) -> str:
    a, b = held(ours), held(theirs)
    differing = sorted(str(key) for key in a.keys() | b.keys() if a.get(key) != b.get(key))
    if differing:
        return f"FAILED: {len(differing)} tensors differ, {differing[:3]}"
    return f"{len(a)} tensors equal"


def hub(name: str, root: Path, megatron: Path):
    model, run = root / "hub" / name, root / "runs" / name
    hub_model(name, model)
    mapped = ("--map-arg", "vocab_multiple=8", "--max-shard-size", "20KB")
    convert(model, run, "--to", "megatron", "--map-to", "megatron", *mapped)
    for case in HUB[name]:
        saved = load_in_megatron(run, case, root / "loads" / name / case.name, megatron)
        if case.precision == "fp32":
            yield name, case.name, _computed(model, saved.parent / "logits.safetensors")
        else:
            yield name, case.name, judged(run, saved)
    back = root / "back" / name
    convert(run, back, "--to", "safetensors", "--map-to", "hf")
    first, last = (load_file(each / "model.safetensors") for each in (model, back))
    same = first.keys() == last.keys() and all(torch.equal(first[n], last[n]) for n in first)
    yield name, "back to the Hub", f"{len(first)} tensors equal" if same else "FAILED"


def _computed(model: Path, logits: Path) -> str:
    from transformers import AutoModelForCausalLM

    theirs = load_file(logits)["logits"]
    with torch.no_grad():
        ours = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)(
            torch.tensor(TOKENS)
        ).logits
    off = (theirs[..., : ours.shape[-1]] - ours).abs().max().item()
    return f"logits differ by {off:.1e}" if off < 1e-4 else f"FAILED: logits differ by {off}"


def resumed(name: str, root: Path, megatron: Path):
    case = replace(RUNS[name], optimizer="fully_reshardable", metadata=AVOID)
    run = root / "runs" / name
    degree = ["--expert-parallel", case.ep] if "num_moe_experts" in case.model else []
    convert(GOLDEN / name / "checkpoint", run, "--to", "megatron", *degree)
    saved = load_in_megatron(run, case, root / "loads" / name / case.name, megatron)
    yield name, case.name, judged(run, saved)


AVOID = {"chained_optim_avoid_prefix": True}


def trained(name: str, root: Path, megatron: Path):
    case = replace(TRAINED[name], optimizer="fully_reshardable", metadata=AVOID)
    file, run = root / "torch" / name, root / "runs" / f"trained-{name}"
    hub_run(name, file)
    options = ("--map-arg", "vocab_multiple=8")
    convert(file, run, "--to", "megatron", "--map-to", "megatron", *options)
    saved = load_in_megatron(run, case, root / "loads" / run.name, megatron, steps=2)
    back = root / "back" / run.name
    convert(saved, back, "--to", "torch", "--map-to", "hf", "--config-dir", file)
    yield f"trained {name}", case.name, _compare(continued(name), back / "checkpoint.pt")


def _compare(wanted: Mapping[str, torch.Tensor], file: Path) -> str:
    saved = torch.load(file, weights_only=True)
    names = [name for group in saved["optimizer"]["param_groups"] for name in group["param_names"]]
    found = {f"{name}|param": value for name, value in saved["model"].items()}
    for number, state in saved["optimizer"]["state"].items():
        found |= {f"{names[number]}|{role}": value for role, value in state.items()}
    off = max(
        (found[key].float() - value.float()).abs().max().item() for key, value in wanted.items()
    )
    bits = sum(torch.equal(found[key], value) for key, value in wanted.items())
    said = f"{bits} of {len(wanted)} tensors equal, the others by {off:.1e}"
    return said if off < 1e-6 else f"FAILED: {said}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megatron", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    root = options.out or Path(tempfile.mkdtemp())
    shutil.rmtree(root, ignore_errors=True)
    megatron = options.megatron.absolute()
    print(f"megatron-core {version_in(megatron)}, torch {torch.__version__}", flush=True)
    failed = False
    for kind, each in ((hub, HUB), (resumed, RUNS), (trained, TRAINED)):
        for name in each:
            word = f"trained-{name}" if kind is trained else name
            if options.names and word not in options.names:
                continue
            try:
                for what, degrees, said in kind(name, root.absolute(), megatron):
                    failed = failed or said.startswith("FAILED")
                    print(f"| {what} | {degrees} | {said} |", flush=True)
            except RuntimeError as error:
                failed = True
                print(f"| {word} | | FAILED: {error} |", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()

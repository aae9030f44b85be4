"""A rank that builds a model of which half is frozen, at every stage and with its state in every
place: run by `launching.start`. It fails unless the trained half alone moves and has state.
"""

import argparse
import itertools
import runpy
import time
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]
entry = runpy.run_path(str(ROOT / "daemon" / "zerotoolsd" / "trainer" / "entry.py"))
entry["make_importable"]()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.distributed.tensor import DTensor  # noqa: E402

from zerotools.jobs.jobfile.memory_layout_of_job import memory_layout_of  # noqa: E402
from zerotools.jobs.jobfile_tables.spec import JobSpec  # noqa: E402
from zerotoolsd.trainer.engine_torch.build_model_and_optimizer import build_live_state  # noqa: E402
from zerotoolsd.trainer.engine_torch.training_tensors import LiveState  # noqa: E402
from zerotoolsd.trainer.model.add_lora_adapters import GATHERS_TWO_TYPES  # noqa: E402
from zerotoolsd.trainer.model.meta_model import make_meta_model, read_config  # noqa: E402
from zerotoolsd.trainer.rank.notify_supervisor import Notifier  # noqa: E402
from zerotoolsd.trainer.rank.process_group import WorldGroup, join_group  # noqa: E402
from zerotoolsd.trainer.rank.rank_settings import rank_from, read_spec  # noqa: E402
from zerotoolsd.trainer.reporting.reporter import Reporter  # noqa: E402

RELEASE = tuple(int(part) for part in torch.__version__.split(".")[:2])


def whole(live: LiveState) -> dict[str, torch.Tensor]:
    """The exact value of every parameter."""
    return {
        name: (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()
        for name, tensor in live.parameters.items()
    }


def check(spec: JobSpec, group: WorldGroup, frozen_precision: str) -> None:
    """One step of one layout."""
    meta_model = make_meta_model(read_config(spec.model))
    frozen = {name for name, _ in meta_model.model.named_parameters() if "mlp" in name}
    for name, parameter in meta_model.model.named_parameters():
        parameter.requires_grad = name not in frozen
    reporter = Reporter(group.rank, Notifier(None, group.rank.index), steps=1)
    layout = replace(memory_layout_of(spec), frozen_precision=frozen_precision)
    live = build_live_state(spec, layout, meta_model, group, reporter, record=None, pretrained=None)
    before = whole(live)
    ids = torch.arange(24).view(2, 12) + group.rank.index
    live.model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    live.optimizer.step(0.1, norm=float(live.optimizer.norm()), max_norm=1.0)
    after = whole(live)
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved == set(before) - frozen, (spec.zero, spec.offload, moved ^ (set(before) - frozen))
    assert not [name for name in live.optimizer.state() if name.rsplit(".", 1)[0] in frozen]
    for name, weight in live.model.named_parameters():
        copied = weight.full_tensor()
        assert torch.equal(copied, after[name].to(copied.dtype)), (spec.zero, spec.offload, name)


def main() -> None:
    """Every stage, on the device and on the host, in both precisions; without a file `full` in the
    run directory, two stages, each with one of the two precisions of frozen weights."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--run-dir", type=Path, required=True)
    run_dir = parser.parse_args().run_dir
    spec, is_full = read_spec(run_dir), (run_dir / "full").exists()
    group = join_group(rank_from(), spec.device)
    started = time.monotonic()
    places = ({"optimizer": "none"}, {"optimizer": "cpu"}, {"params": "cpu"})
    precisions = (("fp32", "fp32"), ("bf16", "fp32"), ("bf16", "train"))
    for stage, place, (precision, frozen) in itertools.product(range(4), places, precisions):
        if "params" in place and (
            stage < 3
            or (frozen == "train" and RELEASE < GATHERS_TWO_TYPES)  # `check_frozen_type` refuses it
        ):
            continue
        if not is_full and (stage not in (1, 3) or (precision, frozen) == ("bf16", "fp32")):
            continue
        check(
            replace(
                spec,
                zero=replace(spec.zero, stage=stage),
                offload=replace(spec.offload, **place),
                train=replace(spec.train, precision=precision),
            ),
            group,
            frozen,
        )
    print(f"{time.monotonic() - started:.1f} s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""A rank that builds models as the trainer does and gathers them whole: run by `launching.start`.

Rank 0 prints one JSON object: a digest per model over the names and bytes of its parameters and
buffers. With `model.path`, also whether each gathered tensor equals the one in the directory.
"""

import argparse
import hashlib
import json
import runpy
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]
entry = runpy.run_path(str(ROOT / "daemon" / "zerotoolsd" / "trainer" / "entry.py"))
entry["make_importable"]()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from torch.distributed.tensor import DTensor  # noqa: E402

from zerotools.core.training_memory_layout import MemoryLayout  # noqa: E402
from zerotools.jobs.jobfile_tables.model import ModelSpec  # noqa: E402
from zerotoolsd.trainer.allocate_tensors import make_memory  # noqa: E402
from zerotoolsd.trainer.model.fill_shards import load_weights, persistent_buffers  # noqa: E402
from zerotoolsd.trainer.model.initialise_from_seed import initialise_weights  # noqa: E402
from zerotoolsd.trainer.model.match_pretrained import match_directory  # noqa: E402
from zerotoolsd.trainer.model.meta_model import make_meta_model, read_config  # noqa: E402
from zerotoolsd.trainer.model.sharding import shard_model  # noqa: E402
from zerotoolsd.trainer.rank.process_group import join_group  # noqa: E402
from zerotoolsd.trainer.rank.rank_settings import rank_from, read_spec  # noqa: E402


def gathered(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Every parameter and buffer, whole, on every rank."""
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    return {
        name: (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach()
        for name, tensor in tensors.items()
    }


def digest(tensors: dict[str, torch.Tensor]) -> str:
    """One digest over names and bytes."""
    whole = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        whole.update(name.encode())
        whole.update(tensor.contiguous().numpy().tobytes())
    return whole.hexdigest()


def main() -> None:
    """Build each model of the job `name` lists, and report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--run-dir", type=Path, required=True)
    spec = read_spec(parser.parse_args().run_dir)
    group = join_group(rank_from(), spec.device)
    memory = make_memory(group.device)
    report = {}
    models = json.loads((Path(spec.output_dir or "") / "models.json").read_text())
    for name, config in models.items():
        meta_model = make_meta_model(read_config(replace(spec.model, config=config, path=None)))
        for stage in (0, 3):
            model = shard_model(
                meta_model, MemoryLayout(stage, group.rank.world_size, "fp32"), memory
            )
            parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
            initialise_weights(parameters, buffers, meta_model, spec.seed, memory.host)
            report[f"{name} {stage}"] = digest(gathered(model))
    if spec.model.path is not None:
        directory = Path(spec.model.path)
        meta_model = make_meta_model(read_config(ModelSpec(path=str(directory))))
        model = shard_model(meta_model, MemoryLayout(3, group.rank.world_size, "fp32"), memory)
        initialise_weights({}, dict(model.named_buffers()), meta_model, spec.seed, memory.host)
        targets = {**dict(model.named_parameters()), **persistent_buffers(model)}
        pretrained = match_directory(meta_model.plain, meta_model.aliases, directory)
        load_weights(targets, meta_model.aliases, pretrained)
        tensors, stored = gathered(model), load_file(directory / "model.safetensors")
        assert set(stored) <= set(tensors), set(stored) - set(tensors)
        report["path equal"] = all(
            torch.equal(tensors[name], tensor.float()) for name, tensor in stored.items()
        )
        report["path buffers finite"] = all(
            bool(torch.isfinite(buffer).all()) for buffer in model.buffers()
        )
    if group.rank.leads:
        print(json.dumps(report), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

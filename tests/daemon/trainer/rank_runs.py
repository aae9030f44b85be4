"""A rank that runs several jobs, one after another: run by `launching.start`.

Rank 0 prints one JSON object: by name, what each step came to, a digest over all that a run trains
where it ended, and why it diverged. With a file `begins` beside the jobs there is a digest of where
it began, too, and with `evaluates` what the first batch was evaluated at before. Jobs that the file
`saves` names save after `checkpoint.every` steps, and at their ends if that is true of them in the
file. Without a file `inductor`, compiled blocks are traced, and computed by torch's own kernels: a
C++ compiler takes ten seconds for the others. What depends on the config of a model alone is found
for the first job that has it.
"""

import hashlib
import json
import runpy
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

each_job = runpy.run_path(str(Path(__file__).resolve().parents[3] / "harness" / "rank_jobs.py"))[
    "each_job"
]

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.distributed.tensor import DTensor  # noqa: E402
from torch.distributed.tensor._utils import (  # noqa: E402
    compute_local_shape_and_global_offset,
)

from zerotools.runs.training_record import JobRecord  # noqa: E402
from zerotoolsd.trainer import prepare_and_train  # noqa: E402
from zerotoolsd.trainer.engine.engine_interface import Engine, StepResult  # noqa: E402
from zerotoolsd.trainer.engine_torch.engine import TorchEngine  # noqa: E402
from zerotoolsd.trainer.engine_torch.reduce_and_update import local_tensor  # noqa: E402
from zerotoolsd.trainer.engine_torch.training_tensors import LiveState  # noqa: E402
from zerotoolsd.trainer.evaluation.evaluate import EvaluationResult  # noqa: E402
from zerotoolsd.trainer.loop import TrainingRun  # noqa: E402
from zerotoolsd.trainer.rank.notify_supervisor import Notifier  # noqa: E402
from zerotoolsd.trainer.rank.process_group import WorldGroup  # noqa: E402
from zerotoolsd.trainer.rank.rank_errors import Diverged  # noqa: E402
from zerotoolsd.trainer.rank.rank_settings import read_spec  # noqa: E402
from zerotoolsd.trainer.reporting.reporter import (  # noqa: E402
    Phases,
    Reporter,
)
from zerotoolsd.trainer.save_during_training import Checkpointing  # noqa: E402


class Recorder(Reporter):
    """A reporter that keeps what each step came to."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.outcomes: list[StepResult] = []
        self.evaluations: dict[int, EvaluationResult] = {}

    def stepped(self, step: int, outcome: StepResult, tokens: int, seconds: float) -> None:
        """Keep it, and go on."""
        self.outcomes.append(outcome)
        super().stepped(step, outcome, tokens, seconds)

    def evaluated(self, step: int, found: EvaluationResult) -> None:
        """Keep it, and go on."""
        self.evaluations[step] = found
        super().evaluated(step, found)


@dataclass
class Once(Checkpointing):
    """What is saved when it is due for the first time, and at the end if it is read there."""

    every: int | None = None
    at_end: bool = False

    def save(self, record: JobRecord, *, last: bool) -> None:
        """Save what is due; wait for it at the end."""
        if record.step == self.every or (last and self.at_end):
            super().save(record, last=last)
        elif last:
            self.saves.settle()


def once_for_each(function: Callable[..., Any], key: Callable[..., str | None]) -> Any:
    """`function`, which is called once for arguments of one key; without a key always."""
    found: dict[str, Any] = {}

    def called(*args: Any, **options: Any) -> Any:
        name = key(*args, **options)
        if name is None:
            return function(*args, **options)
        if name not in found:
            found[name] = function(*args, **options)
        return found[name]

    return called


def described(config: Any) -> str:
    """All of a model's config, and how it attends."""
    return f"{config.to_json_string(use_diff=False)} {config._attn_implementation}"


def key_of_layout(model: Any, pretrained: Any) -> str | None:
    """A directory of weights says more than a config."""
    return None if pretrained else described(model.config)


for what, key in {
    "check_leaks": lambda config, packing: f"{packing} {described(config)}",
    "hub_layout": key_of_layout,
}.items():
    setattr(prepare_and_train, what, once_for_each(getattr(prepare_and_train, what), key))


TRACED = partial(torch.compile, backend="aot_eager")


def digest(live: LiveState, group: WorldGroup) -> str:
    """One digest over the names and bytes of all weights and optimizer state, gathered whole by
    rank 0. What several ranks hold is the same on all of them."""
    flat = live.flat()
    uncut = {name: held for name, held in flat.items() if not isinstance(held, DTensor)}
    assert len(set(group.gathered(digest_of(uncut)))) == 1
    return digest_of(whole(flat, group))


def digest_of(tensors: Mapping[str, torch.Tensor]) -> str:
    """One digest over names and bytes."""
    sha = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        sha.update(name.encode())
        sha.update(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


def whereabouts(live: LiveState, group: WorldGroup) -> dict[str, Any]:
    """Where the tensors of each sort are (on all ranks), whether the model computes with what the
    masters say, and the bytes of each rank by place and sort, now and at most."""
    ledger = live.memory.ledger
    sorts = {
        "weights": dict(live.model.named_parameters()),
        "masters": {} if live.masters is None else live.masters.tensors,
        "moments": live.optimizer.state(),
    }
    places = {
        sort: {
            str(ledger.tier_of(local_tensor(t)))
            for t in tensors.values()
            if local_tensor(t).numel() > 1
        }
        for sort, tensors in sorts.items()
    }
    return {
        "places": {sort: sorted(found) for sort, found in places.items()},
        "types": sorted({str(p.dtype)[6:] for p in live.model.parameters()}),
        "current": live.masters is None or is_current(live, group),
        "live": group.gathered({" ".join(key): size for key, size in ledger.live.items()}),
        "peak": group.gathered({" ".join(key): size for key, size in ledger.peak.items()}),
    }


def is_current(live: LiveState, group: WorldGroup) -> bool:
    """Whether the weights are what the masters say."""
    weights = whole(dict(live.model.named_parameters()), group)
    masters = whole(live.parameters, group)
    return all(
        torch.equal(weight, masters[name].to(weight.dtype)) for name, weight in weights.items()
    )


Part = tuple[tuple[int, ...], tuple[int, ...], bytes]


def whole(tensors: Mapping[str, torch.Tensor], group: WorldGroup) -> dict[str, torch.Tensor]:
    """All of each on rank 0, and nothing on the others: by one exchange, where `full_tensor` makes
    one for each."""
    cut = {name: tensor for name, tensor in tensors.items() if isinstance(tensor, DTensor)}
    parts: list[Any] = [None] * group.rank.world_size
    mine = {name: part(tensor) for name, tensor in cut.items()}
    dist.gather_object(mine, parts if group.rank.leads else None, group=group.control)
    if not group.rank.leads:
        return {}
    return {
        name: joined(tensor, [of_rank[name] for of_rank in parts]) if name in cut else tensor
        for name, tensor in tensors.items()
    }


def part(tensor: DTensor) -> Part:
    """Where this rank's part begins, its shape and its bytes, which are quick to send."""
    shape, offset = compute_local_shape_and_global_offset(
        tensor.shape, tensor.device_mesh, tensor.placements
    )
    held = tensor.to_local().detach().contiguous().flatten().view(torch.uint8)
    return tuple(offset), tuple(shape), held.numpy().tobytes()


def joined(tensor: DTensor, parts: Iterable[Part]) -> torch.Tensor:
    """All of a tensor; several ranks may have the same part."""
    own: dict[tuple[int, ...], tuple[tuple[int, ...], bytes]] = {}
    for offset, shape, held in parts:
        assert not held or own.setdefault(offset, (shape, held)) == (shape, held)
    found = torch.empty(tensor.shape, dtype=tensor.dtype)
    assert sum(len(held) for _, held in own.values()) == found.nbytes
    for offset, (shape, held) in own.items():
        values = torch.frombuffer(bytearray(held), dtype=tensor.dtype).view(shape)
        found[tuple(map(slice, offset, map(int.__add__, offset, shape)))] = values
    return found


def first_batch(ready: TrainingRun, group: WorldGroup) -> float:
    """The mean loss of the batch that the next step will train on, by evaluation."""
    rank, size = group.rank, ready.spec.train.batch_size
    share = ready.batches.rank_batch(ready.consumed, size, rank.data_rank, rank.data_ranks)
    found = ready.engine.evaluate(share.examples)
    loss, tokens = group.total([found.loss, found.tokens])
    return loss / tokens


def state(engine: Engine, group: WorldGroup) -> tuple[str | None, dict[str, Any] | None]:
    """Digest and whereabouts of what engine torch trains."""
    if not isinstance(engine, TorchEngine):
        return None, None
    return digest(engine.live, group), whereabouts(engine.live, group)


def write_weights(engine: Any, directory: Path, group: WorldGroup) -> None:
    """As where DeepSpeed offloads to NVMe."""
    if group.rank.leads:
        directory.mkdir()
    engine.files.write_weights(directory)


def longest_wait() -> float:
    """Seconds that a rank waits for another in a collective operation."""
    backend: Any = dist.group.WORLD._get_backend(torch.device("cpu"))
    return float(backend.options._timeout.total_seconds())


def run(run_dir: Path, group: WorldGroup) -> dict[str, Any]:
    """Run the job in `run_dir`; what there is to compare."""
    spec = read_spec(run_dir)
    group = replace(group, rank=group.rank.in_job(spec))
    if spec.train.compile and not (run_dir.parent / "inductor").exists():
        vars(torch)["compile"] = TRACED
    reporter = Recorder(group.rank, Notifier(None, group.rank.index), steps=spec.train.steps)
    phases = Phases(time.monotonic())
    ready = prepare_and_train.prepare_training(spec, run_dir, group, reporter, phases)
    at_end = json.loads((run_dir.parent / "saves").read_text()).get(run_dir.name)
    if at_end is not None:
        own, every = vars(ready.checkpoints), spec.checkpoint.every
        ready.checkpoints = Once(**own, every=every, at_end=at_end)
    # Without gradients, blocks would be compiled once more, in many seconds.
    asked = (run_dir.parent / "evaluates").exists() and not spec.train.compile
    evaluated = first_batch(ready, group) if asked else None
    error: str | None = None
    waits = [longest_wait()]
    begun, start = None, None
    if (run_dir.parent / "begins").exists():
        begun, start = state(ready.engine, group)
    try:
        assert ready.train() == 0
    except Diverged as diverged:
        error = str(diverged)
    waits.append(longest_wait())
    ended, end = state(ready.engine, group)
    if spec.engine == "deepspeed":
        write_weights(ready.engine, run_dir / "weights", group)
    return {
        "outcomes": [asdict(outcome) for outcome in reporter.outcomes],
        "evaluated": evaluated,
        "evaluations": {step: asdict(found) for step, found in reporter.evaluations.items()},
        "begun": begun,
        "start": start,
        "end": end,
        "ended": ended,
        "error": error,
        "waits": waits,
    }


if __name__ == "__main__":
    each_job(run)

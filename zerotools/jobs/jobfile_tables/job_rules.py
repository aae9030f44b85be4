"""Check the rules of the job file: the rules of each table, and rules between tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass, replace
from functools import cache
from pathlib import PurePath
from typing import Any

from zerotools.core.training_memory_layout import NF4
from zerotools.jobs.binding.bind import format_value, hints_of
from zerotools.jobs.jobfile_tables.check_store_urls import in_store
from zerotools.jobs.jobfile_tables.checkpoint import ADAPTER, check_checkpoint
from zerotools.jobs.jobfile_tables.complete_deepspeed_config import check_deepspeed
from zerotools.jobs.jobfile_tables.data import BYTES, KINDS, check_data, kind_of, tokenizer_of
from zerotools.jobs.jobfile_tables.dpo import DpoSpec
from zerotools.jobs.jobfile_tables.elastic_world_sizes import check_sizes
from zerotools.jobs.jobfile_tables.eval import check_eval
from zerotools.jobs.jobfile_tables.fp16 import Fp16Spec, check_fp16
from zerotools.jobs.jobfile_tables.job_for_each_node import check_backend, on_nodes
from zerotools.jobs.jobfile_tables.limits import check_limits
from zerotools.jobs.jobfile_tables.lora import check_lora
from zerotools.jobs.jobfile_tables.memory import check_memory
from zerotools.jobs.jobfile_tables.metrics import check_metrics
from zerotools.jobs.jobfile_tables.model import FLASH, check_model
from zerotools.jobs.jobfile_tables.notify import check_notify
from zerotools.jobs.jobfile_tables.offload import check_offload
from zerotools.jobs.jobfile_tables.rendezvous import check_rendezvous
from zerotools.jobs.jobfile_tables.script import check_script
from zerotools.jobs.jobfile_tables.slurm import check_slurm
from zerotools.jobs.jobfile_tables.spec import (
    ENGINES,
    FP16_ON_CPU,
    NUMA_AUTO,
    NUMA_CORES,
    SLURM,
    JobSpec,
    check_names,
    check_ranks,
    check_time_limit,
)
from zerotools.jobs.jobfile_tables.stall import check_stall
from zerotools.jobs.jobfile_tables.train import check_optimizer, check_train
from zerotools.jobs.jobfile_tables.zero import check_zero
from zerotools.jobs.launcher_keys.launcher_flags import PLACING, PLACING_VARIABLES

_OPTIMIZERS = ("adamw", "adam", "sgd")


def check_rules(spec: JobSpec) -> tuple[list[str], list[str]]:
    """Check all rules for `spec`.

    Return two lists: its problems, and its settings that are valid but not supported.
    """
    if spec.backend == SLURM:
        return _check_under_slurm(spec)
    wrong, unsupported = _check_here(spec)
    return [*check_backend(spec), *wrong], unsupported


def _check_under_slurm(spec: JobSpec) -> tuple[list[str], list[str]]:
    """Check the job for the smallest and the largest number of nodes that Slurm may give.

    Return the two lists of `check_rules`.
    """
    wrong, unsupported = [*check_backend(spec), *check_slurm(spec.slurm)], dict[str, None]()
    if wrong:
        return wrong, []
    # Under Slurm, a job without output_dir gets a separate directory.
    placed = replace(spec, output_dir=spec.output_dir or "/")
    counts = spec.slurm.node_counts
    for nodes in dict.fromkeys((counts[0], counts[-1])):
        found, lacking = _check_here(on_nodes(placed, nodes))
        ranks = f" (slurm.nodes = {nodes} makes {nodes * spec.world_size} ranks)"
        if found and len(counts) > 1:
            return [f"{each}{ranks}" for each in found], []
        wrong += found
        unsupported |= dict.fromkeys(lacking)
    return wrong, list(unsupported)


def most_nodes(spec: JobSpec, given: int) -> int:
    """Return how many of `given` nodes the job can use; at least 1.

    For example, the job uses 2 of 3 nodes if the ranks of 3 nodes do not divide the batch. The job
    may be invalid even with 1 node.
    """
    placed = replace(spec, output_dir=spec.output_dir or "/")
    for nodes in range(given, 1, -1):
        if not _check_here(on_nodes(placed, nodes))[0]:
            return nodes
    return 1


def _check_here(spec: JobSpec) -> tuple[list[str], list[str]]:
    wrong = [*check_ranks(spec), *check_sizes(spec), *check_time_limit(spec), *check_names(spec)]
    wrong += check_stall(spec.stall)
    wrong += [*check_rendezvous(spec.rendezvous), *_check_nodes(spec)]
    wrong += check_limits(spec.limits)
    wrong += check_memory(spec.memory, spec.limits, spec.device)
    wrong += check_notify(spec.notify)
    wrong += check_metrics(spec.metrics, spec.engine)
    wrong += _check_numa(spec)
    if spec.engine == "script":
        wrong += [*check_script(spec.script), *_check_launcher(spec), *_check_adopted(spec)]
        return wrong, []
    wrong += [
        *check_model(spec.model),
        *_check_attention(spec),
        *check_data(spec.data),
        *_check_data_with_others(spec),
        *check_eval(spec.eval),
        *_check_generation(spec),
        *_check_tasks(spec),
        *check_lora(spec.lora),
        *check_packed(spec),
        *_check_batch(spec),
        *check_train(spec.train),
        *(check_optimizer(spec.train) if spec.engine == "torch" else ()),
        *check_fp16(spec.fp16),
        *_check_precision(spec),
        *check_checkpoint(spec.checkpoint),
        *_check_checkpoints(spec),
        *check_offload(spec.offload),
        *_check_stage(spec),
        *check_zero(spec.zero, spec.all_ranks if spec.size_range is None else 0),
        *check_tensor_ranks(spec),
        *check_deepspeed(spec),
    ]
    return wrong, list(_check_supported(spec))


def _check_nodes(spec: JobSpec) -> Iterator[str]:
    nodes = f"rendezvous.nodes = {spec.rendezvous.nodes}"
    if spec.rendezvous.nodes < 2:
        return
    if spec.size_range is not None:
        yield (
            f"{nodes}: an elastic job cannot run on several nodes, because each could choose "
            "another number of ranks; set one number for "
            f"{'ranks' if spec.device == 'cpu' else 'gpus'}"
        )
    if spec.engine != "script" and spec.output_dir is None:
        yield (
            f"{nodes}: the ranks of all nodes write one checkpoint; set output_dir to a directory "
            "that all of them have, on a shared file system"
        )
    if spec.engine == "script" and spec.script.launcher == "deepspeed":
        yield (
            f'{nodes}: script.launcher = "deepspeed" would start the ranks of the other nodes by '
            'ssh, which no daemon does; set script.launcher = "torchrun"'
        )


def _check_launcher(spec: JobSpec) -> Iterator[str]:
    script = spec.script
    if script.launcher == "accelerate" and spec.device == "cpu" and spec.world_size > 1:
        yield (
            f"ranks = {spec.world_size}: accelerate launch starts only one process on CPUs; set "
            'script.launcher = "torchrun"'
        )
    if script.launcher == "plain":
        return
    ours = f"is set by the daemon; a second value would give {script.launcher} other GPUs or ranks"
    for option in script.launcher_options:
        name = option.partition("=")[0]
        word = name.removeprefix("--").replace("-", "_")  # torchrun takes the beginning of one, too
        if name.startswith("--") and word and any(each.startswith(word) for each in PLACING):
            yield f"script.launcher_options: {name} {ours}; leave it out"
    for variable in sorted(PLACING_VARIABLES & spec.env.keys()):
        yield f"env.{variable}: {ours}; leave it out"


def _check_adopted(spec: JobSpec) -> Iterator[str]:
    if spec.script.adopted is None:
        return
    if spec.device != "cpu" or spec.ranks not in (None, 1):
        yield (
            "script.adopted: a watched process gets no GPUs or ranks from the daemon; set "
            'device = "cpu", and leave ranks out'
        )
    if spec.max_restarts != 0:
        yield (
            f"max_restarts = {spec.max_restarts}: the daemon cannot restart a watched "
            "process; set it to 0"
        )


def _check_numa(spec: JobSpec) -> Iterator[str]:
    if spec.numa == NUMA_CORES and spec.memory.per_gpu is not None:
        yield (
            f'numa = "{NUMA_CORES}": jobs that share a GPU by memory.per_gpu would also share '
            f'its cores, while other cores are idle; set numa = "{NUMA_AUTO}"'
        )


def _check_data_with_others(spec: JobSpec) -> Iterator[str]:
    data = spec.data
    given = [kind for kind in KINDS if getattr(data, kind)]
    if given == ["tokens"] and data.token_type is None:
        for name in (*data.tokens, *spec.eval.files):
            if PurePath(name).suffix != ".npy":
                yield (
                    f"data.token_type: is missing; set it, because {name} does not state the type "
                    "of its ids"
                )
                break
    if given in (["examples"], ["preferences"]) and (
        tokenizer_of(data, spec.model.path) in (None, BYTES)
    ):
        needs = f"data.{given[0]} needs a Hugging Face tokenizer"
        if data.tokenizer == BYTES:
            own = (
                ""
                if spec.model.path is None
                else (", or remove data.tokenizer to use the tokenizer of model.path")
            )
            yield f'data.tokenizer = "{BYTES}": {needs}; set its path{own}'
        else:
            yield (
                f"data.tokenizer: {needs}, and model.path, which could provide one, is not "
                "set; set data.tokenizer"
            )
    if given == ["preferences"] and spec.train.router_bias_rate:
        yield (
            f"train.router_bias_rate = {spec.train.router_bias_rate}: cannot be used in a job with "
            "data.preferences; leave it out"
        )
    if spec.train.chunked_loss == "on" and (why := why_loss_is_whole(spec)) is not None:
        yield f'train.chunked_loss = "on": {why}; set it to "auto" or "off"'
    if given and given != ["preferences"] and spec.dpo != DpoSpec():
        yield (
            f"dpo.beta = {spec.dpo.beta}: cannot be used in a job with data.{given[0]}; leave it "
            "out, or name data.preferences"
        )


_GATHERING_STAGE = 3


def why_loss_is_whole(spec: JobSpec) -> str | None:
    """Return the reason why the job cannot compute its loss in parts; None if its settings allow
    it.
    """
    if spec.data.preferences:
        return "DPO needs the log-probability of each whole answer, which needs all its logits"
    if spec.engine == "deepspeed" and spec.zero.stage == _GATHERING_STAGE:
        return (
            "at stage 3 all ranks gather the head together for each part of the loss, but some "
            "ranks may have fewer parts"
        )
    return None


def _check_generation(spec: JobSpec) -> Iterator[str]:
    if not spec.eval.predict_with_generate or not any(getattr(spec.data, kind) for kind in KINDS):
        return
    if not spec.data.examples:
        yield (
            f"eval.predict_with_generate = true: data.{kind_of(spec.data)} has no prompts and no "
            "responses to compare with; use data.examples, or remove eval.predict_with_generate"
        )


def _check_tasks(spec: JobSpec) -> Iterator[str]:
    """Yield a problem if the job has evaluation tasks, but its exported model will not have a
    tokenizer.
    """
    if not spec.eval.tasks or not any(getattr(spec.data, kind) for kind in KINDS):
        return
    named = tokenizer_of(spec.data, spec.model.path)
    if named == BYTES or (named is None and spec.model.path is None):
        yield (
            f"eval.tasks = {format_value(spec.eval.tasks)}: needs a model with a Hugging Face "
            "tokenizer, "
            "and this job trains on bytes or on ready token ids; set data.tokenizer or "
            "model.path, or leave eval.tasks out"
        )


def _check_batch(spec: JobSpec) -> Iterator[str]:
    shares, batch, micro = spec.data_ranks, spec.train.batch_size, spec.train.micro_batch_size
    if spec.all_ranks < 1 or spec.size_range is not None:  # `check_sizes` reports faults of a range
        return
    together = spec.zero.same_data_ranks
    whose = f"rank{'s' * (shares > 1)}" if together == 1 else f"group{'s' * (shares > 1)} of ranks"
    if batch % shares:
        yield f"train.batch_size = {batch}: must be divisible by the {shares} {whose}"
    elif micro is not None and (batch // shares) % micro:
        one = "rank" if together == 1 else f"group of {together} ranks"
        yield (
            f"train.micro_batch_size = {micro}: must divide the {batch // shares} sequences of a "
            f"{one} (train.batch_size {batch} over {shares} {whose})"
        )


def _check_attention(spec: JobSpec) -> Iterator[str]:
    wanted = spec.model.attention
    if wanted in (*FLASH, "flex_attention") and spec.device == "cpu":
        yield (
            f'model.attention = "{wanted}": is for GPUs; on device = "cpu" leave it out, or use '
            '"sdpa" or "eager"'
        )
    elif wanted in FLASH and spec.train.precision == "fp32":
        yield (
            f'model.attention = "{wanted}": computes in 16 bits, but train.precision is "fp32"; '
            'set train.precision = "bf16", or model.attention = "sdpa"'
        )
    if wanted in (*FLASH, "flex_attention") and spec.zero.sequence_ranks > 1:
        yield (
            f'model.attention = "{wanted}": does not support sequences that are shared by '
            f'zero.sequence_ranks = {spec.zero.sequence_ranks}; leave it out, or use "sdpa", '
            "which includes flash attention"
        )


def _check_precision(spec: JobSpec) -> Iterator[str]:
    precision = spec.train.precision
    if precision != "fp16" and spec.fp16 != Fp16Spec():
        yield (
            f'fp16: cannot be used in a train.precision = "{precision}" job; leave [fp16] out, or '
            'set train.precision = "fp16"'
        )


def _check_checkpoints(spec: JobSpec) -> Iterator[str]:
    if spec.checkpoint.asynchronous and spec.engine != "torch":
        yield (
            f'checkpoint.asynchronous = true: cannot be used in an engine = "{spec.engine}" job, '
            "which writes its checkpoints itself; leave it out"
        )
    if spec.checkpoint.asynchronous and spec.offload.optimizer == "disk":
        yield (
            "checkpoint.asynchronous = true: copies the optimizer state to host memory, but "
            'offload.optimizer = "disk" keeps it on disk; leave one of them out'
        )
    if spec.checkpoint.export_on_finish == ADAPTER and spec.lora.rank is None:
        yield (
            f'checkpoint.export_on_finish = "{ADAPTER}": the job trains no adapters; set '
            'lora.rank, or export the model as "bf16"'
        )
    if spec.checkpoint.best == "eval_loss":
        yield from _check_evaluated(spec)
    if spec.engine == "script":
        yield from _check_stores_of_script(spec)
    elif spec.resume_order is not None and spec.resume_from is None:
        yield (
            f"resume_order = {spec.resume_order}: has an effect only with resume_from; set "
            "resume_from, or remove resume_order"
        )


def _check_stores_of_script(spec: JobSpec) -> Iterator[str]:
    why = (
        'is only for the built-in engines, because an engine = "script" job reads its checkpoints '
        "itself"
    )
    if in_store(spec.resume_from):
        yield f"resume_from = {spec.resume_from}: a URL {why}; download it, and name the copy"


def _check_evaluated(spec: JobSpec) -> Iterator[str]:
    every, evaluated = spec.checkpoint.every, spec.eval.every
    if not spec.eval.has_data:
        yield 'checkpoint.best = "eval_loss": needs [eval] with files or a fraction'
    elif every is not None and (evaluated is None or every % evaluated):
        yield (
            f'checkpoint.best = "eval_loss": checkpoint.every, which is {every}, must be a '
            f"multiple of eval.every, which is {'not set' if evaluated is None else evaluated}"
        )


def _check_stage(spec: JobSpec) -> Iterator[str]:
    if spec.offload.params == "cpu" and spec.zero.stage != 3:
        yield (
            'offload.params = "cpu": needs zero.stage 3, which gathers parameters block by block, '
            f"but zero.stage is {spec.zero.stage}; set it to 3, or leave offload.params out"
        )


def _check_supported(spec: JobSpec) -> Iterator[str]:
    if spec.train.precision == "fp16" and spec.device == "cpu" and spec.env.get(FP16_ON_CPU) != "1":
        yield 'train.precision = "fp16": is for GPUs; on device = "cpu" use "bf16" or "fp32"'


def check_packed(spec: JobSpec) -> Iterator[str]:
    """Yield each problem of a job that stores its frozen weights in 4 bits."""
    said = f'lora.frozen_precision = "{NF4}"'
    if not spec.lora.packs_frozen:
        if not spec.lora.double_quant and spec.lora.frozen_precision != NF4:
            yield (
                f"lora.double_quant = false: has an effect only with {said}; set that, or leave "
                "it out"
            )
        return
    if spec.model.path is None:
        yield (
            f"{said}: checkpoints hold only the adapters, so the base model must be in a "
            "directory; set model.path"
        )
    if spec.offload.params != "none":
        yield (
            f"{said}: weights of 4 bits stay on the GPU that computes with them; leave "
            f'offload.params = "{spec.offload.params}" out'
        )
    if spec.zero.tensor_ranks > 1:
        yield (
            f"{said}: weights of 4 bits cannot be shared by zero.tensor_ranks = "
            f"{spec.zero.tensor_ranks}; leave one of them out"
        )


def check_tensor_ranks(spec: JobSpec) -> Iterator[str]:
    """Yield each problem of a job with tensor parallelism: several ranks share the weights of
    each layer.
    """
    zero, train = spec.zero, spec.train
    if zero.tensor_ranks == 1:
        return
    said = f"zero.tensor_ranks = {zero.tensor_ranks}"
    if zero.stage < 2:
        yield (
            f"{said}: needs zero.stage 2 or 3, which shard the weights, but zero.stage is "
            f"{zero.stage}; set it to 3"
        )
    if zero.shard_size is not None:
        yield f"{said}: cannot be used with zero.shard_size = {zero.shard_size}; leave one out"
    if spec.fewest_nodes > 1 and spec.world_size % zero.tensor_ranks:
        yield (
            f"{said}: must divide the {spec.world_size} ranks of a node, because these ranks "
            "exchange values in every layer"
        )
    if train.optimizer not in _OPTIMIZERS:
        yield (
            f'{said}: cannot be used with train.optimizer = "{train.optimizer}", which needs '
            'whole rows or matrices; set train.optimizer = "adamw", or leave one of them out'
        )
    if train.compile:
        yield f"{said}: cannot be used with train.compile = true yet; leave one of them out"


SCRIPT = "script"
NEEDED = ("model", "data", "train")
"""The tables that a job with engine torch or deepspeed must have."""
SHARED = ("metrics", "stall", "limits", "memory", "notify", "rendezvous", "slurm")
"""The tables that a job with any engine may have."""


def misplaced_keys(tree: Mapping[str, Any]) -> Iterator[str]:
    """Yield each key or table at the root of the job file that the job's engine does not have."""
    unknown = _unknown_to_scripts() if tree.get("engine") == SCRIPT else (SCRIPT,)
    for name in tree:
        if name in unknown:
            yield name


@cache
def _unknown_to_scripts() -> frozenset[str]:
    tables = {name for name, hint in hints_of(JobSpec).items() if is_dataclass(hint)}
    return frozenset({"seed", "resume_order", *tables.difference((SCRIPT, *SHARED))})


def check_tables(tree: Mapping[str, Any]) -> Iterator[str]:
    """Yield a problem for each missing table, and for each table that the job's engine does not
    have.

    Each mistake is reported once. If the engine is unknown, yield nothing, because another check
    reports the engine. If the job has `[script]` but no table in `NEEDED`, the only problem is that
    `engine = "script"` is missing.
    """
    engine = tree.get("engine", "torch")
    if engine not in ENGINES:
        return  # the binding of tables reports it
    if engine != SCRIPT and SCRIPT in tree and not any(name in tree for name in NEEDED):
        todo = f", and engine is {format_value(engine)}; set" if "engine" in tree else "; add"
        place = "" if "engine" in tree else " before the first table"
        yield f'{SCRIPT}: is for a job of engine = "{SCRIPT}"{todo} engine = "{SCRIPT}"{place}'
        return
    for name in (SCRIPT,) if engine == SCRIPT else NEEDED:
        if name not in tree:
            yield f"{name}: the table [{name}] is missing"
    for name in misplaced_keys(tree):
        why = f'cannot be used in an engine = "{engine}" job; leave it out'
        if engine == SCRIPT:
            why += ", or pass it in script.command"
        else:
            why += f', or set engine = "{SCRIPT}" and leave {", ".join(NEEDED)} out'
        yield f"{name}: {why}"

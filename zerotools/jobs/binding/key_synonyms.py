"""Keys and values by the names that other programs give them: a guess is answered with ours.

The names on the left are those of Hugging Face's TrainingArguments, DeepSpeed's JSON, PyTorch and
common speech. They are never accepted, only explained: two names for one thing would both be used.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

KEYS: Mapping[str, str] = {
    **dict.fromkeys(("lr", "peak_lr", "max_lr"), "train.learning_rate"),
    **dict.fromkeys(("min_lr", "lr_min"), "train.min_learning_rate"),
    **dict.fromkeys(("max_steps", "num_steps", "iterations", "total_steps"), "train.steps"),
    **dict.fromkeys(("num_train_epochs", "num_epochs", "n_epochs"), "train.epochs"),
    **dict.fromkeys(
        (
            "per_device_train_batch_size",
            "train_micro_batch_size_per_gpu",
            "micro_batch",
            "micro_bs",
        ),
        "train.micro_batch_size",
    ),
    **dict.fromkeys(("train_batch_size", "global_batch_size", "bs", "batch"), "train.batch_size"),
    **dict.fromkeys(
        ("gradient_accumulation_steps", "grad_accum", "accumulate_grad_batches"),
        "train.micro_batch_size (the accumulation follows from it)",
    ),
    **dict.fromkeys(("wd", "decay"), "train.weight_decay"),
    **dict.fromkeys(("warmup", "num_warmup_steps", "warmup_num_steps"), "train.warmup_steps"),
    **dict.fromkeys(("lr_scheduler_type", "scheduler", "lr_scheduler"), "train.schedule"),
    **dict.fromkeys(("optim", "optimiser"), "train.optimizer"),
    **dict.fromkeys(("gradient_clipping", "grad_clip", "clip_grad_norm"), "train.max_grad_norm"),
    **dict.fromkeys(("gradient_checkpointing", "checkpointing"), "train.activation_checkpointing"),
    **dict.fromkeys(("dtype", "torch_dtype", "mixed_precision", "bf16"), "train.precision"),
    **dict.fromkeys(("torch_compile", "compiled"), "train.compile"),
    **dict.fromkeys(("num_gpus", "ngpus", "n_gpus", "gpu", "nproc_per_node"), "gpus"),
    **dict.fromkeys(("world_size", "nproc", "num_processes", "workers"), "ranks"),
    **dict.fromkeys(("output", "out", "save_dir", "output_path", "checkpoint_dir"), "output_dir"),
    **dict.fromkeys(("save_steps", "save_every", "save_interval"), "checkpoint.every"),
    **dict.fromkeys(("save_total_limit", "keep"), "checkpoint.keep_last"),
    **dict.fromkeys(("eval_steps", "eval_every", "eval_interval"), "eval.every"),
    **dict.fromkeys(("resume", "resume_from_checkpoint", "load"), "resume_from"),
    **dict.fromkeys(
        ("seq_len", "seq_length", "max_length", "max_seq_length", "block_size", "context_length"),
        "data.sequence_length",
    ),
    **dict.fromkeys(
        ("dataset", "train_file", "train_data", "files"), "data.text, data.tokens or data.examples"
    ),
    **dict.fromkeys(
        ("model_name_or_path", "pretrained_model", "model_path", "model_name"), "model.path"
    ),
    **dict.fromkeys(("zero_stage", "zero_optimization"), "zero.stage"),
    **dict.fromkeys(("cpu_offload", "offload_optimizer"), "offload.optimizer"),
    **dict.fromkeys(("offload_param", "offload_params"), "offload.params"),
    **dict.fromkeys(("random_seed", "manual_seed"), "seed"),
    **dict.fromkeys(("timeout", "walltime", "max_time"), "time_limit"),
    **dict.fromkeys(("environment", "envs"), "env"),
}
"""The names here of keys with other names. Names are compared without case."""

VALUES: Mapping[str, str] = {
    **dict.fromkeys(("gpu", "cuda:0", "nvidia", "gpus"), "cuda"),
    **dict.fromkeys(("float16", "half", "fp-16", "16"), "fp16"),
    **dict.fromkeys(("bfloat16", "bf-16", "brain"), "bf16"),
    **dict.fromkeys(("float32", "float", "full", "single", "32", "no"), "fp32"),
    **dict.fromkeys(("adamw_torch", "adamw_hf", "fusedadam"), "adamw"),
    **dict.fromkeys(("host", "ram"), "cpu"),
    **dict.fromkeys(("ssd", "nvme"), "disk"),
}


def key_meant(name: str, where: str, known: Iterable[str], all_keys: Iterable[str]) -> str | None:
    """Return the dotted key that `name`, unknown in the table `where` ("" or "train."), may stand
    for.

    In turn: its synonym; the same key of another table; the nearest of the table, then of all keys.
    """
    dotted = list(all_keys)
    synonym = KEYS.get(name.lower(), "")
    if synonym and synonym.replace(",", " ").split()[0] in dotted:
        return synonym
    elsewhere = [key for key in dotted if key.rpartition(".")[2] == name]
    if len(elsewhere) == 1:
        return elsewhere[0]
    close = difflib.get_close_matches(name[:64], list(known), n=1)
    if close:
        return where + close[0]
    by_name = {key.rpartition(".")[2]: key for key in reversed(dotted)}
    close = difflib.get_close_matches(name[:64], by_name, n=1, cutoff=0.8)
    return by_name[close[0]] if close else None


def value_meant(value: object, allowed: Iterable[object]) -> str | None:
    """Return the allowed value that `value` may stand for."""
    choices = [str(choice) for choice in allowed]
    text = str(value).lower()[:64]
    if VALUES.get(text) in choices:
        return VALUES[text]
    if text in choices:
        return text
    close = difflib.get_close_matches(text, choices, n=1)
    return close[0] if close else None

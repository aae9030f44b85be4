"""Every key of the job file is documented, is read by something, and says what it is elsewhere.

The last: a key names the key of DeepSpeed's JSON or accelerate's YAML that says the same, and the
importers map that key to it; or it says that neither has one (`imported=False`).
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from zerotools.jobs.binding.bind import dotted_keys, hints_of, table_of
from zerotools.jobs.binding.declaration import keys_of
from zerotools.jobs.imports.combine_configs import Imported, JobFile, import_configs
from zerotools.jobs.imports.reading.import_report import KeyOutcome
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.jobs.launcher_keys import accelerate_keys, deepspeed_keys
from zerotools.jobs.text.config_document import Document
from zerotools.jobs.text.json_parser import parse_json

REPOSITORY = Path(__file__).resolve().parents[2]
TABLES = REPOSITORY / "zerotools" / "jobs" / "jobfile_tables"
KEYS = dict(dotted_keys(JobSpec))
ROOT = {item.name: item.metadata for item in keys_of(JobSpec)}


@pytest.mark.parametrize("key", KEYS)
def test_it_is_documented_in_its_section_of_the_reference(key: str) -> None:
    table, _, name = key.rpartition(".")
    page = (REPOSITORY / "docs" / "reference" / "job-file.md").read_text()
    section = page.split(f"\n## `[{table}]`\n" if table else "\n## Top level\n", 1)[1]
    assert f"| `{name}` |" in section.split("\n## ", 1)[0]


@pytest.mark.parametrize("key", KEYS)
def test_something_beside_its_checks_reads_it(key: str) -> None:
    table, _, name = key.rpartition(".")
    hint = hints_of(JobSpec)[table] if table else JobSpec
    kind = (table_of(hint) or hint).__name__
    readers = [
        path
        for path, names in words_of_files().items()
        if name in names and names & {kind, table or "spec"}
    ]
    assert readers, f"nothing in zerotools or zerotoolsd reads {key}"


@cache
def words_of_files() -> dict[Path, set[str]]:
    """Of each source file: the attributes, names and whole strings in it, but those in the classes
    and the checks of a table."""
    found = {}
    for root in ("zerotools", "daemon/zerotoolsd"):
        for path in (REPOSITORY / root).rglob("*.py"):
            tree = ast.parse(path.read_text())
            found[path] = set(words(tree, in_tables=path.parent == TABLES))
    return found


def words(node: ast.AST, *, in_tables: bool) -> Iterator[str]:
    """As `words_of_files`, below `node`."""
    left = [node]
    while left:
        node = left.pop()
        if in_tables and isinstance(node, ast.ClassDef):
            yield node.name
            left += [each for each in node.body if isinstance(each, ast.FunctionDef)]
            continue
        if in_tables and isinstance(node, ast.FunctionDef) and "check" in node.name:
            continue
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            yield node.attr
        elif isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        left += ast.iter_child_nodes(node)


@pytest.mark.parametrize("key", KEYS)
def test_it_has_a_counterpart_or_is_said_to_have_none(key: str) -> None:
    rules = KEYS[key][0].metadata
    named = [rules[launcher] for launcher in ("deepspeed", "accelerate") if rules[launcher]]
    local = not (rules["imported"] and ROOT[key.partition(".")[0]]["imported"])
    assert bool(named) != local, "say deepspeed= or accelerate=, or imported=False"
    assert rules["deepspeed"] is None or rules["deepspeed"] in deepspeed_keys.KEYS
    assert rules["accelerate"] is None or rules["accelerate"] in accelerate_keys.KNOWN


def mapped(result: Imported) -> set[tuple[str, str | None]]:
    """(key of the config, key of the job) of what was mapped."""
    rows = result.findings.rows
    return {(row.key, row.job) for row in rows if row.outcome is KeyOutcome.MAPPED}


NVME: dict[str, Any] = {"device": "nvme", "nvme_path": "/nvme", "pin_memory": True}
DEEPSPEED: list[dict[str, Any]] = [
    {
        "train_batch_size": 8,
        "train_micro_batch_size_per_gpu": 2,
        "sequence_parallel_size": 2,
        "tensor_parallel": {"autotp_size": 2},
        "wandb": {"enabled": True, "project": "sheep"},
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "compile": {"deepcompile": True},
        "zero_optimization": {
            "stage": 3,
            "mics_shard_size": 2,
            "offload_optimizer": NVME,
            "offload_param": {"device": "cpu"},
        },
        "optimizer": {
            "type": "AdamW",
            "params": {"lr": 1e-3, "betas": [0.9, 0.9], "eps": 1e-8, "weight_decay": 0.1},
        },
        "scheduler": {
            "type": "WarmupCosineLR",
            "params": {"warmup_num_steps": 2, "total_num_steps": 9, "cos_min_ratio": 0.1},
        },
    },
    {
        "fp16": {
            "enabled": True,
            "loss_scale": 2,
            "initial_scale_power": 4,
            "loss_scale_window": 10,
            "hysteresis": 3,
            "consecutive_hysteresis": True,
            "min_loss_scale": 1,
        },
        "optimizer": {"type": "SGD", "params": {"momentum": 0.5}},
    },
    {"optimizer": {"type": "Muon", "params": {"lr": 1e-3, "muon_lr": 0.02}}},
]


def test_the_importer_maps_each_key_of_deepspeed_to_the_key_that_names_it() -> None:
    found: set[tuple[str, str | None]] = set()
    for config in DEEPSPEED:
        document = parse_json(json.dumps(config, indent=1), source="ds.json")
        found |= mapped(import_configs(None, deepspeed=document))
    named = {(item.metadata["deepspeed"], key) for key, (item, _) in KEYS.items()}
    assert {pair for pair in named if pair[0]} <= found


FSDP = {"fsdp_offload_params": True, "fsdp_activation_checkpointing": True}
ACCELERATE: list[dict[str, Any]] = [
    {
        "distributed_type": "FSDP",
        "mixed_precision": "bf16",
        "num_processes": 4,
        "enable_cpu_affinity": True,
        "dynamo_config": {"dynamo_backend": "INDUCTOR"},
        "fsdp_config": {**FSDP, "fsdp_sharding_strategy": "FULL_SHARD"},
        "parallelism_config": {
            "parallelism_config_dp_replicate_size": 2,
            "parallelism_config_dp_shard_size": 1,
            "parallelism_config_cp_size": 2,
        },
    },
    {
        "distributed_type": "FSDP",
        "fsdp_config": {"fsdp_sharding_strategy": "FULL_SHARD"},
        "parallelism_config": {"parallelism_config_tp_size": 2},
    },
    {"distributed_type": "MULTI_CPU", "use_cpu": True, "num_processes": 2},
    {
        "distributed_type": "DEEPSPEED",
        "deepspeed_config": {"deepspeed_config_file": "ds.json"},
    },
]


def test_the_importer_maps_each_key_of_accelerate_to_the_key_that_names_it() -> None:
    found: set[tuple[str, str | None]] = set()
    for config in ACCELERATE:
        found |= mapped(
            import_configs(
                JobFile({}, "job.toml", Path("/")),
                accelerate=Document("acc.yaml", config, {}),
                load=lambda name: parse_json("{}", source=name),
            )
        )
    named = {(item.metadata["accelerate"], key) for key, (item, _) in KEYS.items()}
    file = ("deepspeed_config.deepspeed_config_file", None)  # a whole config, read on its own
    assert file in found
    assert {pair for pair in named if pair[0] and pair[0] != file[0]} <= found

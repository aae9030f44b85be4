"""Read accelerate's YAML: its values for keys of the job file, and the DeepSpeed config in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from zerotools.jobs.binding.bind import format_value
from zerotools.jobs.imports.accelerate_parallelism import (
    read_affinity,
    read_parallelism,
    read_ranks,
)
from zerotools.jobs.imports.reading.check_deepspeed_keys import (
    AUTO,
    ConfigValue,
    judge_unknown_keys,
)
from zerotools.jobs.imports.reading.config_reader import ConfigReading, read_compile
from zerotools.jobs.imports.reading.import_report import Findings, KeyOutcome, add_repairs
from zerotools.jobs.imports.reading.key_claims import Claims
from zerotools.jobs.imports.reading.look_up_job_keys import JobTree, set_key
from zerotools.jobs.launcher_keys.accelerate_keys import (
    DEEPSPEED,
    FEATURES,
    IGNORED,
    KNOWN,
    PREFIXES,
    READ,
    SECTIONS,
    TABLES,
)
from zerotools.jobs.launcher_keys.config_key import is_off
from zerotools.jobs.launcher_keys.deepspeed_releases import LEAF_MODULES, NEWEST, Release
from zerotools.jobs.launcher_keys.deepspeed_releases import release_text as release_said
from zerotools.jobs.text.config_document import Document, Trail
from zerotools.jobs.text.mend_pasted_yaml import YamlKeys

YAML_KEYS = YamlKeys(KNOWN, TABLES, PREFIXES)
"""The keys of an accelerate config.

`parse_yaml` uses them to restore indentation that was lost when the text was copied.
"""
FILE = "deepspeed_config.deepspeed_config_file"
_LEAVES = "deepspeed_config.deepspeed_moe_layer_cls_names"
_PRECISIONS = {"no": "fp32", "fp16": "fp16", "bf16": "bf16", "fp8": "fp8"}
_TABLES = ("gpu_ids", "dynamo_config", "parallelism_config")
_ONE_OR_COPIES = ("NO", "MULTI_GPU", "MULTI_CPU")


_ONE_MACHINE = "on one machine HYBRID changes nothing"
_STRATEGIES: dict[str, tuple[int, str]] = {
    "FULL_SHARD": (3, ""),
    "SHARD_GRAD_OP": (2, ""),
    "NO_SHARD": (0, ""),
    "HYBRID_SHARD": (3, _ONE_MACHINE),
    "HYBRID_SHARD_ZERO2": (2, _ONE_MACHINE),
}
_NUMBERED = dict(enumerate(_STRATEGIES, start=1))
"""Number -> name of a member of torch.distributed.fsdp.ShardingStrategy. accelerate accepts
both.
"""
_STAGE = "zero.stage"


@dataclass(frozen=True)
class Launched:
    """The DeepSpeed config that an accelerate config contains (`section`) or names (`file`).

    `stated` are the keys that the user wrote in the section.
    """

    section: Document | None = None
    file: ConfigValue | None = None
    stated: tuple[ConfigValue, ...] = ()


def read_accelerate(
    document: Document, claims: Claims, findings: Findings, release: Release = NEWEST
) -> Launched:
    """Read the accelerate config `document`: add its values to `claims`, and the report to
    `findings`. Return its DeepSpeed config. `release` is the DeepSpeed version of the job's Python.
    """
    if "distributed_type" not in document.tree:
        what = "has no distributed_type, which every accelerate config has"
        if "zero_optimization" in document.tree or "train_batch_size" in document.tree:
            what += "; if it is DeepSpeed's JSON, use --deepspeed"
        else:
            what += "; is it an accelerate config?"
        findings.wrong.append(f"{document.source}: {what}")
        return Launched()
    given = dict(_read_keys(document, findings))
    add_repairs(findings, document)
    reading = ConfigReading(document.source, given, claims, findings, release=release)
    _environment(reading)
    kind = _distributed_type(reading)
    _precision(reading)
    read_ranks(reading, kind)
    read_affinity(reading)
    read_compile(reading)
    if kind == "FSDP":
        read_fsdp(reading)
    read_parallelism(reading, kind)
    launched = _deepspeed_config(reading, document) if kind == "DEEPSPEED" else Launched()
    for name in list(reading.remaining):
        _judge_rest(reading, name, kind)
    return launched


def _read_keys(document: Document, findings: Findings) -> Iterator[tuple[str, ConfigValue]]:
    unknown: list[Trail] = []
    for trail, value in _leaves(document.tree):
        name = ".".join(trail)
        if name in SECTIONS:
            if value not in (None, {}):
                what = (
                    f"{document.location(trail)} {name} = {format_value(value)}: must be a section"
                )
                findings.wrong.append(what)
        elif name in READ and name not in _TABLES and isinstance(value, (list, Mapping)):
            what = (
                f"{document.location(trail)} {name} = {format_value(value)}: must be one plain "
                "value"
            )
            findings.wrong.append(what)
        elif name in KNOWN:
            yield name, ConfigValue(name, document.title(trail), document.location(trail), value)
        else:
            unknown.append(trail)
    judge_unknown_keys(document, unknown, KNOWN, "accelerate", findings)


def _leaves(tree: Mapping[str, Any]) -> Iterator[tuple[Trail, Any]]:
    for name, value in tree.items():
        if name in SECTIONS and isinstance(value, Mapping):
            yield from (((name, inner), entry) for inner, entry in value.items())
        else:
            yield (name,), value


def _environment(reading: ConfigReading) -> None:
    given = reading.pop("compute_environment")
    if given is None:
        return
    if given.value != "LOCAL_MACHINE":
        what = f"{given.label} = {format_value(given.value)}: jobs run only on this machine"
        reading.findings.unsupported.append(what)
    reading.row(KeyOutcome.IGNORED, given, None, "jobs run only on this machine")


def _distributed_type(reading: ConfigReading) -> str:
    given = reading.remaining.pop("distributed_type", None)
    if given is None:  # the value was refused before
        return "NO"
    kind = "NO" if given.value is False else str(given.value)  # unquoted, NO is a boolean
    if kind in _ONE_OR_COPIES:
        if kind == "NO":
            reading.row(KeyOutcome.MAPPED, given, "gpus", "one rank")
        else:
            reading.map(given, "zero.stage", 0, "every rank has the whole model")
        if kind == "MULTI_CPU":
            reading.claims.add("device", "cpu", given.label, shown=given.value)
    elif kind in ("DEEPSPEED", "FSDP"):
        reading.row(KeyOutcome.MAPPED, given, "zero.stage", f"by the section {kind.lower()}_config")
    else:
        names = ", ".join([*_ONE_OR_COPIES, "DEEPSPEED", "FSDP"])
        what = f"{given.label} = {format_value(given.value)}: is not supported; supported: {names}"
        reading.findings.unsupported.append(what)
        reading.row(KeyOutcome.IGNORED, given)
    return kind


def _precision(reading: ConfigReading) -> None:
    given, key = reading.pop("mixed_precision"), "train.precision"
    if given is None:
        reading.default("mixed_precision", key, "fp32")
        return
    value = "no" if given.value is False else given.value
    if value in _PRECISIONS:
        reading.map(given, key, _PRECISIONS[value])
    else:
        what = f'{given.label} = {format_value(value)}: must be "no", "fp16", "bf16" or "fp8"'
        reading.findings.wrong.append(what)


def _deepspeed_config(reading: ConfigReading, document: Document) -> Launched:
    """Return the DeepSpeed config that accelerate would make from its section `deepspeed_config`.
    If the section names a config file, return this name.
    """
    file = reading.pop(FILE)
    section = {
        name: reading.remaining.pop(f"deepspeed_config.{name}")
        for name in DEEPSPEED
        if f"deepspeed_config.{name}" in reading.remaining
    }
    if file is not None and file.value not in (None, "none"):
        for given in section.values():
            reading.findings.wrong.append(
                f"{given.label} = {format_value(given.value)}: cannot be combined with {file.label}"
                ", which replaces the whole section; remove it"
            )
        reading.row(KeyOutcome.MAPPED, file, None, "read below")
        return Launched(file=file)
    _leave_parameters(reading, section)
    tree: JobTree = {}
    lines: dict[Trail, int] = {}
    titles: dict[Trail, str] = {}
    defaults = {"zero_stage": 2, "gradient_accumulation_steps": AUTO, "gradient_clipping": AUTO}
    for name, there in DEEPSPEED.items():
        trail = tuple(there.split("."))
        titles[trail] = document.title(("deepspeed_config", name))
        if name in section:
            value = section[name].value
            set_key(tree, there, None if value == "none" and "path" in name else value)
            _same_line(lines, trail, document, name)
        elif name in defaults:
            set_key(tree, there, defaults[name])
            titles[trail] += " (not given)"
    _leaf_modules(reading, document, tree, lines, titles)
    handed = Document(document.source, tree, lines, titles=titles)
    return Launched(handed, None, tuple(section.values()))


def _leave_parameters(reading: ConfigReading, section: dict[str, ConfigValue]) -> None:
    """Report that `offload_param_device` has no effect below ZeRO stage 3: accelerate accepts the
    key, but DeepSpeed ignores it.
    """
    stage = section["zero_stage"].value if "zero_stage" in section else 2
    if str(stage) not in ("0", "1", "2"):
        return
    for name in ("offload_param_device", "offload_param_nvme_path"):
        given = section.get(name)
        if given is not None and given.value not in (None, "none", False):
            why = f"has an effect only at stage 3, and the stage is {stage}"
            reading.row(KeyOutcome.IGNORED, section.pop(name), None, why)


def _leaf_modules(
    reading: ConfigReading,
    document: Document,
    tree: JobTree,
    lines: dict[Trail, int],
    titles: dict[Trail, str],
) -> None:
    """Move the key for "leaf modules" (classes of modules that DeepSpeed gathers as a whole) to the
    DeepSpeed config `tree`.

    The line of the key is added to `lines`, and the name of the key in the user's file to `titles`.
    """
    engine = reading.claims.of("engine")
    given = reading.remaining.get(_LEAVES)
    if given is None or not given.value or engine is None or engine.value != "deepspeed":
        return
    del reading.remaining[_LEAVES]
    if reading.release < LEAF_MODULES:
        reading.findings.unsupported.append(
            f"{given.label} = {format_value(given.value)}: needs DeepSpeed "
            f"{release_said(LEAF_MODULES)}, but the job's Python has "
            f"{release_said(reading.release)}; upgrade it, or remove the key"
        )
        return
    trail = ("zero_optimization", "leaf_module")
    names = given.value if isinstance(given.value, list) else str(given.value).split(",")
    set_key(tree, ".".join(trail), {"classes": [str(name).strip() for name in names]})
    _same_line(lines, trail, document, _LEAVES.split(".")[1])
    titles[trail] = given.title


def _same_line(lines: dict[Trail, int], trail: Trail, document: Document, name: str) -> None:
    line = document.lines.get(("deepspeed_config", name))
    if line is not None:  # options of a command have no line
        lines[trail] = line


def _judge_rest(reading: ConfigReading, name: str, kind: str) -> None:
    given = reading.remaining.pop(name)
    section = name.split(".")[0]
    if section in SECTIONS and section != f"{kind.lower()}_config":
        reading.row(KeyOutcome.IGNORED, given, None, f"distributed_type is {kind}")
    elif name in IGNORED:
        reading.row(KeyOutcome.IGNORED, given, None, IGNORED[name])
    elif name in FEATURES and not _is_off(given.value):
        what = f"{given.label} = {format_value(given.value)}"
        reading.findings.unsupported.append(f"{what}: the engine torch does not support this yet")
    else:
        reading.row(KeyOutcome.IGNORED, given, None, "is off" if name not in READ else "")


def _is_off(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(str(entry).upper() in ("NO", "FALSE", "NONE", "") for entry in value.values())
    return value == "" or is_off(value, None)


def read_fsdp(reading: ConfigReading) -> None:
    """Translate the settings for sharding, offload and activation checkpointing in
    `fsdp_config` to keys of the job file.
    """
    version = reading.pop("fsdp_config.fsdp_version")
    if version is not None:
        reading.row(KeyOutcome.IGNORED, version, None, "the engine torch shards with FSDP2")
    strategy = reading.pop("fsdp_config.fsdp_sharding_strategy")
    reshard = reading.pop("fsdp_config.fsdp_reshard_after_forward")
    if strategy is not None:
        _strategy(reading, strategy)
    if reshard is not None:
        _reshard(reading, reshard)
    if strategy is None and reshard is None:
        reading.default("fsdp_reshard_after_forward", _STAGE, 3)
    _switch(reading, "fsdp_config.fsdp_offload_params", "offload.params", "cpu")
    _switch(
        reading,
        "fsdp_config.fsdp_activation_checkpointing",
        "train.activation_checkpointing",
        True,
    )


def _strategy(reading: ConfigReading, given: ConfigValue) -> None:
    name: Any = given.value
    if str(name).isdecimal():
        name = _NUMBERED.get(int(str(name)[:4]))
    if name not in _STRATEGIES:
        names = ", ".join(_STRATEGIES)
        reading.findings.wrong.append(
            f"{given.label} = {format_value(given.value)}: must be one of {names}"
        )
        return
    stage, why = _STRATEGIES[name]
    reading.map(given, _STAGE, stage, why)


def _reshard(reading: ConfigReading, given: ConfigValue) -> None:
    value = _boolean(given.value)
    if value is None:
        _strategy(reading, given)  # FSDP1: the value is the name of the strategy
    else:
        reading.map(given, _STAGE, 3 if value else 2)


def _switch(reading: ConfigReading, name: str, key: str, on: Any) -> None:
    given = reading.pop(name)
    if given is None:
        return
    value = _boolean(given.value)
    if value is None and given.value is not None:
        what = f"{given.label} = {format_value(given.value)}: must be true or false"
        reading.findings.wrong.append(what)
    elif value:
        reading.map(given, key, on)
    else:
        reading.row(KeyOutcome.IGNORED, given, None, "is off")


def _boolean(value: Any) -> bool | None:
    if isinstance(value, bool):
        return value
    return {"true": True, "false": False}.get(str(value).lower())

"""Read the options of launchers (torchrun, deepspeed, accelerate launch): the number of ranks, and
the CPU cores of each rank.

The options of `accelerate launch` are also converted to the equivalent config file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from zerotools.jobs.binding.bind import format_value
from zerotools.jobs.imports.reading.check_deepspeed_keys import ConfigValue
from zerotools.jobs.imports.reading.import_report import Findings, KeyOutcome, ReportRow
from zerotools.jobs.jobfile_tables.spec import NUMA_AUTO, NUMA_CORES, NUMA_OFF
from zerotools.jobs.launcher_keys.accelerate_keys import KNOWN, PREFIXES
from zerotools.jobs.launcher_keys.launcher_flags import (
    ACCELERATE_KINDS,
    ACCELERATE_NAMES,
    ONE_RANK,
    SEVERAL_MACHINES,
    WORDS_AFTER,
)
from zerotools.jobs.text.config_document import Document, Trail

_COUNTS = {
    "deepspeed": ("num_gpus", "num_accelerators"),
    "torchrun": ("nproc_per_node",),
}
_MACHINES = ("num_nodes", "nnodes")
_EVERY = ("gpu", "auto")
_STARTS = "controls how the launcher starts the ranks; here the daemon starts them"


READ_HERE: Mapping[str, tuple[str, ...]] = {
    "deepspeed": ("bind_cores_to_rank", "bind_core_list"),
    "torchrun": ("numa_binding",),
}
"""Launcher -> its options that bind ranks to CPU cores. accelerate's option is also a key of
its YAML.
"""
AFFINITY = "ACCELERATE_CPU_AFFINITY"
"""The environment variable with which accelerate decides in each rank whether to bind it to CPU
cores.
"""
_ON = ("1", "y", "yes", "t", "true", "on")
_MODES = {
    "node": (NUMA_AUTO, ""),
    "socket": (NUMA_AUTO, "the processors of the GPU's node; if these are too few, of its socket"),
    "exclusive": (NUMA_CORES, ""),
    "core-complex": (NUMA_CORES, "cores of the GPU's node"),
}
"""Value of `torchrun --numa-binding` -> value of the job's `numa`, and a remark (torch 2.13,
torch/numa/binding.py).
"""
_NOT_SETTINGS = ("config_file", "module", "quiet", "no_python", *ACCELERATE_KINDS)
_TABLES = {key.rpartition(".")[2]: key for key in KNOWN if "." in key}
"""Option of `accelerate launch` -> dotted key of its YAML."""


def ranks_of(
    launcher: str,
    options: Mapping[str, ConfigValue],
    visible: ConfigValue | None,
    findings: Findings,
) -> tuple[ConfigValue | None, bool]:
    """Return the number of ranks that the launcher's `options` request; None if they do not state a
    number.

    Also return True if the launcher starts one rank for each GPU because no number is stated.

    `visible` is CUDA_VISIBLE_DEVICES, if set. Every option is reported in `findings`, except the
    options of accelerate, which another function reads.
    """
    if launcher == "accelerate":
        count = None if visible is None else _listed(visible)
        _row(findings, visible, "the daemon picks GPUs that are free")
        says_it = {"num_processes", "config_file"} & options.keys()
        return (None if says_it else count), False
    told = [
        _count(options[name], findings) for name in _COUNTS.get(launcher, ()) if name in options
    ]
    count = next(iter(told), None)
    if count is None and "include" in options:
        count = _included(options["include"])
    if count is None and visible is not None and launcher == "deepspeed":
        count = _listed(visible)
    _row(findings, visible, "the daemon picks GPUs that are free")
    for name, given in options.items():
        _judge(launcher, name, given, findings)
    if launcher == "python" or (launcher == "torchrun" and count is None and not told):
        return ConfigValue("ranks", launcher, "", 1), False
    return count, count is None


def console_ranks(
    program: str,
    count: ConfigValue | None,
    visible: ConfigValue | None,
    findings: Findings,
) -> tuple[ConfigValue | None, bool]:
    """Return the same values as `ranks_of`, but for a program that starts its ranks itself.

    `count` is the argument or variable that states the number of ranks, if set. `visible` is
    CUDA_VISIBLE_DEVICES, if set.
    """
    _row(findings, visible, "the daemon picks GPUs that are free")
    if count is not None:
        return _count(count, findings), False
    if program in ONE_RANK:
        return ConfigValue("ranks", program, "", 1), False
    ranks = None if visible is None else _listed(visible)
    return ranks, ranks is None


def _row(findings: Findings, given: ConfigValue | None, why: str) -> None:
    if given is not None:
        row = ReportRow(KeyOutcome.IGNORED, given.title, given.place, given.value, None, why)
        findings.rows.append(row)


def _count(given: ConfigValue, findings: Findings) -> ConfigValue | None:
    text = str(given.value)
    if text in _EVERY:
        return None
    if not (text.isascii() and text.isdecimal() and 0 < int(text[:6]) < 100_000):
        what = f"{given.label} = {format_value(given.value)}: must be a whole number of at least 1"
        findings.wrong.append(what)
        return None
    return replace(given, value=int(text))


def _listed(given: ConfigValue) -> ConfigValue | None:
    entries = [entry for entry in str(given.value).split(",") if entry.strip()]
    return replace(given, value=len(entries)) if entries and "-1" not in entries else None


def _included(given: ConfigValue) -> ConfigValue | None:
    """Return the GPU indices in the value of `--include`, such as `localhost:0,1`.

    Return None if the value has no indices (all GPUs of a host) or names several hosts.
    """
    _, _, slots = str(given.value).partition(":")
    return _listed(replace(given, value=slots)) if "@" not in str(given.value) else None


def _judge(launcher: str, name: str, given: ConfigValue, findings: Findings) -> None:
    several = name in _MACHINES and str(given.value) not in ("1", "1:1", "-1")
    hosts = name == "include" and "@" in str(given.value)
    if several or hosts:
        findings.unsupported.append(
            f"{given.label} = {format_value(given.value)}: {SEVERAL_MACHINES}"
        )
    elif name in (*_COUNTS.get(launcher, ()), "include", *READ_HERE.get(launcher, ())):
        return  # the claim adds a row for it
    elif name in WORDS_AFTER[launcher]:
        _row(findings, given, _STARTS)
    else:
        why = f"{launcher} has no such option"
        row = ReportRow(KeyOutcome.UNKNOWN, given.title, given.place, given.value, None, why)
        findings.rows.append(row)


@dataclass(frozen=True)
class NumaSetting:
    """An option of a launcher that binds ranks to CPU cores: the option, the equivalent value
    of the job's `numa`, and a remark.
    """

    given: ConfigValue
    numa: str
    why: str = ""


def numa_of(
    launcher: str,
    options: Mapping[str, ConfigValue],
    affinity: ConfigValue | None,
    findings: Findings,
) -> NumaSetting | None:
    """Return the launcher's setting that binds ranks to CPU cores. Return None if `options` and
    `affinity` have no such setting.

    `affinity` is the environment variable AFFINITY, if set.
    """
    own = {name: options[name] for name in READ_HERE.get(launcher, ()) if name in options}
    asked = _by_option(own, findings)
    if affinity is None:
        return asked
    is_on = str(affinity.value).lower() in _ON
    if is_on and asked is None:
        return NumaSetting(affinity, NUMA_AUTO)
    off = f'with numa = "{NUMA_OFF}" the kernel places the ranks'
    why = f"{asked.given.title} chooses the nodes" if is_on and asked is not None else off
    _ignore(affinity, why, findings)
    return asked


def _by_option(options: Mapping[str, ConfigValue], findings: Findings) -> NumaSetting | None:
    if (cores := options.get("bind_core_list")) is not None:
        why = "ranks use the processors that the daemon may use (taskset, AllowedCPUs=)"
        _ignore(cores, why, findings)
    if (ranks := options.get("bind_cores_to_rank")) is not None:
        return NumaSetting(ranks, NUMA_CORES, "cores near the GPU of each rank")
    given = options.get("numa_binding")
    if given is None:
        return None
    if given.value not in _MODES:
        listed = ", ".join(map(format_value, _MODES))
        findings.wrong.append(
            f"{given.label} = {format_value(given.value)}: must be one of {listed}"
        )
        return None
    return NumaSetting(given, *_MODES[str(given.value)])


def _ignore(given: ConfigValue, why: str, findings: Findings) -> None:
    row = ReportRow(KeyOutcome.IGNORED, given.title, given.place, given.value, None, why)
    findings.rows.append(row)


def flags_document(
    launcher: str, options: Mapping[str, ConfigValue], source: str, findings: Findings
) -> tuple[ConfigValue | None, Document | None]:
    """Split the options of `accelerate launch`.

    Return the option that names a config file, and all other options as a document with the keys of
    such a file.
    """
    if launcher != "accelerate":
        return None, None
    tree: dict[str, Any] = {}
    titles: dict[Trail, str] = {}
    kinds = [kind for flag, kind in ACCELERATE_KINDS.items() if flag in options]
    if kinds:
        tree["distributed_type"] = kinds[0]
    for name, given in options.items():
        if name in _NOT_SETTINGS:
            continue
        trail = _trail(ACCELERATE_NAMES.get(name, name))
        if trail is None:
            why = "accelerate's YAML has no such key"
            row = ReportRow(KeyOutcome.UNKNOWN, given.title, given.place, given.value, None, why)
            findings.rows.append(row)
            continue
        inner = tree
        for table in trail[:-1]:
            inner = inner.setdefault(table, {})
        inner[trail[-1]] = _scalar(given.value)
        titles[trail] = given.title
    return options.get("config_file"), Document(source, tree, {}, titles=titles)


def with_launch_options(file: Document | None, flags: Document) -> Document:
    """Combine an accelerate config file with the options of `accelerate launch`, as accelerate
    does. Options override the file.
    """
    if file is None:
        kind = "NO" if flags.tree.get("num_processes") == 1 else "MULTI_GPU"
        kind = "MULTI_CPU" if flags.tree.get("use_cpu") is True else kind
        return Document(
            flags.source, {"distributed_type": kind, **flags.tree}, {}, titles=flags.titles
        )
    tree = dict(file.tree)
    for name, value in flags.tree.items():
        before = tree.get(name)
        both = isinstance(value, Mapping) and isinstance(before, Mapping)
        tree[name] = {**before, **value} if both else value  # type: ignore[dict-item]
    told = {trail: f"{title} of {flags.source}" for trail, title in (flags.titles or {}).items()}
    lines = {trail: line for trail, line in file.lines.items() if trail not in told}
    titles = {**(file.titles or {}), **told}
    return Document(file.source, tree, lines, file.accepted, titles, file.text, file.mended)


def _trail(name: str) -> Trail | None:
    for table, prefix in PREFIXES.items():
        if name.startswith(prefix) and table != "fsdp_config":
            return (table, name)
    if name in _TABLES:
        return tuple(_TABLES[name].split("."))
    if name in KNOWN:
        return (name,)
    return ("fsdp_config", name) if name.startswith("fsdp_") else None


def _scalar(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if value.isascii() and value.isdecimal() and len(value) < 10:
        return int(value)
    return {"true": True, "false": False}.get(value.lower(), value)

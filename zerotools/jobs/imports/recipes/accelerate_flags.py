"""The options of `accelerate launch`, as the equivalent config file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zerotools.jobs.imports.reading.report import Findings, KeyOutcome, ReportRow
from zerotools.jobs.imports.reading.typed_keys import ConfigValue
from zerotools.jobs.launcher_keys.accelerate_keys import KNOWN, PREFIXES
from zerotools.jobs.launcher_keys.launch_flags import ACCELERATE_KINDS, ACCELERATE_NAMES
from zerotools.jobs.text.document import Document, Trail

_NOT_SETTINGS = ("config_file", "module", "quiet", "no_python", *ACCELERATE_KINDS)
_TABLES = {key.rpartition(".")[2]: key for key in KNOWN if "." in key}
"""Name of an option -> dotted key of the YAML."""


def flags_document(
    launcher: str, options: Mapping[str, ConfigValue], source: str, findings: Findings
) -> tuple[ConfigValue | None, Document | None]:
    """Return the named config file, and the other options as a separate document."""
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


def joined(file: Document | None, flags: Document) -> Document:
    """Return accelerate's combination of a config file and its options, which override the file."""
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

"""Check a DeepSpeed config key by key: types, and unknown keys with suggestions."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zerotools.jobs.binding.bind import MAX_UNKNOWN, format_value
from zerotools.jobs.imports.reading.import_report import Findings, KeyOutcome, ReportRow
from zerotools.jobs.launcher_keys.config_key import ConfigKey, ValueKind
from zerotools.jobs.launcher_keys.deepspeed_keys import KEYS, SECTIONS
from zerotools.jobs.text.config_document import Document, Trail

AUTO = "auto"
TYPES = {
    "optimizer": ("adam", "adamw", "sgd", "muon"),
    "scheduler": ("warmuplr", "warmupdecaylr", "warmupcosinelr"),
}
"""Types of optimizers and schedulers that have parameters in the table of keys.

They are written in lower case.
"""


@dataclass(frozen=True)
class ConfigValue:
    """A value in a config, with its key and position.

    `note` says how the value differs from the text, such as "was in quotes"; empty if it does not.
    """

    name: str
    title: str
    place: str
    value: Any
    note: str = ""

    @property
    def label(self) -> str:
        """The position of the value and its key as text for messages, such as `ds.json:12
        gradient_clipping`.
        """
        return f"{self.place} {self.title}"


def read_known_keys(
    document: Document, findings: Findings, fatal: Callable[[Trail], bool] = lambda trail: False
) -> dict[str, ConfigValue]:
    """Return the values of the keys in the config `document`, keyed by dotted name. Keys that
    DeepSpeed does not know are left out.

    Errors are added to `findings`. An unknown key is an error only if `fatal` returns True for it,
    or if it resembles a known key.
    """
    given: dict[str, ConfigValue] = {}
    unknown: list[Trail] = []
    for trail, value in _leaves(document.tree, ()):
        name = ".".join(trail)
        title, place = document.title(trail), document.location(trail)
        if name not in KEYS and name not in SECTIONS:
            unknown.append(trail)
            continue
        if name in SECTIONS and not (name == "zero_optimization" and isinstance(value, bool)):
            if value is not None and not isinstance(value, Mapping):
                what = f"{place} {title} = {format_value(value)}: must be an object, in braces"
                findings.wrong.append(what)
            continue
        key = KEYS.get(name, ConfigKey(ValueKind.BOOL, KEYS["zero_optimization.stage"].action))
        try:
            read, note = typed_value(key.kind, value)
        except ValueError:
            what = f"{place} {title} = {format_value(value)}: must be {key.kind.value}"
            findings.wrong.append(what)
            continue
        given[name] = ConfigValue(name, title, place, read, note)
    if unknown and _is_foreign(document, unknown):
        findings.wrong.append(
            f"{document.source}: has none of DeepSpeed's keys; is it a DeepSpeed config?"
        )
    else:
        _judge_unknown(document, unknown, findings, fatal)
    return given


def _leaves(tree: Mapping[str, Any], trail: Trail) -> Iterator[tuple[Trail, Any]]:
    for name, value in tree.items():
        here = (*trail, name)
        if isinstance(value, Mapping) and value and ".".join(here) in SECTIONS:
            yield from _leaves(value, here)
        else:
            yield here, value


def typed_value(kind: ValueKind, value: Any) -> tuple[Any, str]:
    """Return `value` converted to the type `kind`, and a note on a correction, such as "was in
    quotes". The note is empty if nothing was corrected. Raises ValueError.
    """
    if value == AUTO or kind is ValueKind.ANY or value is None:
        return value, ""
    match kind:
        case ValueKind.BOOL:
            if isinstance(value, str) and value.lower() in ("true", "false"):
                return value.lower() == "true", "was in quotes"
            if isinstance(value, bool):
                return value, ""
        case ValueKind.TEXT:
            if isinstance(value, str):
                return value, ""
        case ValueKind.NUMBERS:
            if isinstance(value, list) and all(map(_is_number, value)):
                return [float(entry) for entry in value], ""
        case ValueKind.COUNT | ValueKind.NUMBER:
            return _number(kind, value)
    raise ValueError


def _number(kind: ValueKind, value: Any) -> tuple[Any, str]:
    note = ""
    if isinstance(value, str) and len(value) <= 40:
        value, note = float(value), "was in quotes"
    if not _is_number(value) or not -(2**63) < value < 2**63:
        raise ValueError
    if kind is ValueKind.NUMBER:
        return value, note
    if value != int(value) or value < 0:
        raise ValueError
    return int(value), note


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _judge_unknown(
    document: Document,
    unknown: list[Trail],
    findings: Findings,
    fatal: Callable[[Trail], bool],
) -> None:
    # The parameters of other optimizers and schedulers are not known here, so they are accepted.
    foreign = [
        f"{section}.params."
        for section, types in TYPES.items()
        if isinstance(table := document.tree.get(section), Mapping)
        if str(table.get("type")).lower() not in types
    ]
    known = [key for key in [*KEYS, *SECTIONS] if not key.startswith(tuple(foreign))]
    judge_unknown_keys(document, unknown, known, "DeepSpeed", findings, fatal)


def _is_foreign(document: Document, unknown: list[Trail]) -> bool:
    """Return whether the document is probably for another program: no key is DeepSpeed's or similar
    to one. `unknown` are the keys that DeepSpeed does not have."""
    known = [*KEYS, *SECTIONS]
    return not any(name in known for name in document.tree) and not any(
        _nearest(trail, known) for trail in unknown[:MAX_UNKNOWN]
    )


def judge_unknown_keys(
    document: Document,
    unknown: list[Trail],
    known: Sequence[str],
    owner: str,
    findings: Findings,
    fatal: Callable[[Trail], bool] = lambda trail: False,
) -> None:
    """Report the keys that the program `owner` does not have.

    A key is an error if it resembles one of `known`, or if `fatal` returns True for it.
    """
    for trail in unknown[:MAX_UNKNOWN]:
        near = _nearest(trail, known)
        place, title = document.location(trail), document.title(trail)
        if near:
            what = f"{place} {format_value(title, bare=True)}: {owner} has no such key"
            findings.wrong.append(f"{what}; did you mean {_placed(near, trail, document)}")
        elif fatal(trail):
            what = f"{place} {format_value(title, bare=True)}: {owner} has no such key"
            findings.wrong.append(f"{what}, and does not start if it is set; remove it")
        else:
            row = ReportRow(KeyOutcome.UNKNOWN, title, place, _short(document, trail))
            findings.rows.append(row)
    if len(unknown) > MAX_UNKNOWN:
        more = len(unknown) - MAX_UNKNOWN
        findings.wrong.append(f"{document.source}: {more} more keys that {owner} does not have")


def _placed(near: str, trail: Trail, document: Document) -> str:
    """Return the end of a question: `near`, the key that the user probably meant, such as
    `fp16.enabled?`.

    If the key at `trail` lacks the indentation below its section, add how to indent it.
    """
    section, _, name = near.rpartition(".")
    if len(trail) > 1 or name != trail[-1] or document.tree.get(section, "") is not None:
        return f"{near}?"
    return f"{near}? indent it below {section}, or give --lenient"


def _nearest(trail: Trail, known: Sequence[str]) -> str | None:
    *parents, name = (part[:64] for part in trail)
    if name.startswith(("_", "/", "#")):
        return None  # how people write comments
    elsewhere = [other for other in known if other.split(".")[-1] == name]
    if elsewhere:
        return elsewhere[0]
    prefix = "".join(f"{parent}." for parent in parents)
    beside = [k for k in known if k.startswith(prefix) and "." not in k[len(prefix) :]]
    near = difflib.get_close_matches(f"{prefix}{name}", beside, n=1, cutoff=0.85)
    return near[0] if near else None


def _short(document: Document, trail: Trail) -> Any:
    value: Any = document.tree
    for part in trail:
        value = value[part]
    return value if isinstance(value, (str, int, float, bool)) else None

"""The shared code of the readers of LLaMA-Factory's and axolotl's YAML."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from zerotools.core.errors import BadRequest
from zerotools.jobs.binding.bind import show
from zerotools.jobs.imports.reading.report import Findings, KeyOutcome, ReportRow, note_mends
from zerotools.jobs.imports.reading.typed_keys import ConfigValue
from zerotools.jobs.text.document import Document


class YamlRecipe:
    """The keys of one document, each taken once; remarks on them are rows."""

    def __init__(self, document: Document, owner: str, needed: str, others: Mapping[str, str]):
        """Read a document. Raises BadRequest if it lacks `needed`, so it is not `owner`'s; a key of
        `others` shows its owner."""
        self.findings = Findings()
        note_mends(self.findings, document)
        self.left = {
            name: ConfigValue(name, document.title((name,)), document.place((name,)), value)
            for name, value in document.tree.items()
        }
        self.source = document.source
        if needed not in self.left:
            whose = next((other for key, other in others.items() if key in self.left), None)
            hint = f"; {whose}" if whose else "; is it one?"
            raise BadRequest(
                f"{self.source}: has no {needed}, which every config of {owner} has{hint}"
            )

    def take(self, name: str) -> ConfigValue | None:
        """Take the key, which counts as read from now on."""
        return self.left.pop(name, None)

    def ignore(self, reasons: Mapping[str, str]) -> None:
        """Give the keys of `reasons` their rows."""
        for name, why in reasons.items():
            if (given := self.take(name)) is not None:
                self.row(KeyOutcome.IGNORED, given, None, why)

    def row(self, outcome: KeyOutcome, given: ConfigValue, job: str | None, why: str) -> None:
        """Report what came of `given`."""
        value = given.value if isinstance(given.value, (str, int, float, bool)) else None
        row = ReportRow(outcome, given.title, given.place, value, job, why)
        self.findings.rows.append(row)

    def refuse(self, given: ConfigValue, why: str) -> None:
        """Refuse a key that the job file cannot express."""
        self.findings.unsupported.append(f"{given.said} = {show(given.value)}: {why}")

    def choice(self, name: str, choices: Mapping[str, bool], default: str) -> bool:
        """Return the entry of `choices` for the value of `name`; other values are refused."""
        given = self.take(name)
        value = default if given is None or given.value is None else str(given.value)
        if given is not None and value not in choices:
            names = ", ".join(name for name in choices if name)
            self.refuse(given, f"is not supported; supported: {names}")
        elif given is not None:
            self.row(KeyOutcome.MAPPED, given, None, "")
        return choices.get(value, False)

    def renamed(self, names: Mapping[str, str]) -> dict[str, ConfigValue]:
        """Return the remaining keys, by the names of the Trainer."""
        found: dict[str, ConfigValue] = {}
        for name, given in self.left.items():
            known = names.get(name, name)
            if known in found:
                self.findings.wrong.append(
                    f"{given.said} and {found[known].said} say the same; remove one of them"
                )
            found[known] = replace(given, name=known)
        return found

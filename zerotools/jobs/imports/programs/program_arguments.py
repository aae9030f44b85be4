"""The arguments of a training program, from a launch line or a YAML file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from zerotools.core.errors import BadRequest
from zerotools.jobs.binding.bind import show
from zerotools.jobs.imports.programs.launcher_options import NumaSetting
from zerotools.jobs.imports.reading.import_report import Findings, KeyOutcome, ReportRow, note_mends
from zerotools.jobs.imports.reading.typed_keys import ConfigValue
from zerotools.jobs.text.document import Document
from zerotools.jobs.text.expand_home import expanded


@dataclass(frozen=True)
class Program:
    """A training program, as a job of the engine `script` starts it.

    `command` is `script.command`. `launcher` and `options` start its ranks, and `env` has its
    environment variables. `name` is its common name. `unknown` lists the words that only a shell
    can compute.
    """

    name: str
    place: str
    command: tuple[str, ...]
    launcher: str
    options: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True)
class Recipe:
    """The arguments of a training program, by their names in Hugging Face's Trainer.

    `defaults` has the program's defaults by the same names; it is empty if the program is not known
    to use a Trainer. `beside` is the directory of the file with the arguments. `deepspeed` is the
    DeepSpeed config that the arguments name. `accelerate` has the options of `accelerate launch`,
    in addition to the file `accelerate_file`. `launcher` is the program that starts one rank for
    each GPU, if any; `numa` has the launcher's options for processors.

    `examples` is true if the data are examples, false if they are text, and None if only the data
    show it. `preferences` is true if the data are pairs of answers. `documents` has the texts of
    files that the script itself writes, by path. `program` is the program with the arguments, if a
    command starts it. `findings` are the findings of the reader.
    """

    source: str
    given: Mapping[str, ConfigValue]
    beside: Path
    defaults: Mapping[str, object] = field(default_factory=dict)
    who: str = ""
    deepspeed: ConfigValue | None = None
    accelerate: Document | None = None
    accelerate_file: ConfigValue | None = None
    ranks: ConfigValue | None = None
    launcher: str = ""
    numa: NumaSetting | None = None
    examples: bool | None = None
    preferences: bool = False
    documents: Mapping[str, str] = field(default_factory=dict)
    program: Program | None = None
    findings: Findings = field(default_factory=Findings)

    def found(self, name: str) -> Path:
        """Return the path of `name`, relative to the working directory; or relative to the recipe's
        file if it exists only there."""
        path = expanded(name)
        beside = self.beside / path
        return beside if not path.exists() and beside.exists() else path

    @property
    def data_key(self) -> str:
        """The key of the job file for the recipe's data."""
        if self.preferences:
            return "data.preferences"
        return "data.examples" if self.examples else "data.text"


class YamlRecipe:
    """Reads the keys of one YAML document, each once, and adds a report row for each remark."""

    def __init__(self, document: Document, owner: str, needed: str, others: Mapping[str, str]):
        """Begin to read a document.

        Raises BadRequest if the document has no key `needed`, so it is not `owner`'s; a key in
        `others` shows its real owner.
        """
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
        """Return the key and mark it as read; None if it is absent."""
        return self.left.pop(name, None)

    def ignore(self, reasons: Mapping[str, str]) -> None:
        """Report the keys of `reasons` as ignored, with their reasons."""
        for name, why in reasons.items():
            if (given := self.take(name)) is not None:
                self.row(KeyOutcome.IGNORED, given, None, why)

    def row(self, outcome: KeyOutcome, given: ConfigValue, job: str | None, why: str) -> None:
        """Add a row for `given` to the report."""
        value = given.value if isinstance(given.value, (str, int, float, bool)) else None
        row = ReportRow(outcome, given.title, given.place, value, job, why)
        self.findings.rows.append(row)

    def refuse(self, given: ConfigValue, why: str) -> None:
        """Refuse a key that the job file cannot express."""
        self.findings.unsupported.append(f"{given.said} = {show(given.value)}: {why}")

    def choice(self, name: str, choices: Mapping[str, bool], default: str) -> bool:
        """Return the entry of `choices` for the value of `name`. Other values are refused."""
        given = self.take(name)
        value = default if given is None or given.value is None else str(given.value)
        if given is not None and value not in choices:
            names = ", ".join(name for name in choices if name)
            self.refuse(given, f"is not supported; supported: {names}")
        elif given is not None:
            self.row(KeyOutcome.MAPPED, given, None, "")
        return choices.get(value, False)

    def renamed(self, names: Mapping[str, str]) -> dict[str, ConfigValue]:
        """Return the keys that were not read, under the Trainer's names."""
        found: dict[str, ConfigValue] = {}
        for name, given in self.left.items():
            known = names.get(name, name)
            if known in found:
                self.findings.wrong.append(
                    f"{given.said} and {found[known].said} say the same; remove one of them"
                )
            found[known] = replace(given, name=known)
        return found

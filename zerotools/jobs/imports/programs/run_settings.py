"""The settings of a training run, read from a launch line or a YAML file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from zerotools.core.errors import BadRequest
from zerotools.jobs.binding.bind import format_value
from zerotools.jobs.imports.programs.launcher_options import NumaSetting
from zerotools.jobs.imports.reading.check_deepspeed_keys import ConfigValue
from zerotools.jobs.imports.reading.import_report import (
    Findings,
    KeyOutcome,
    ReportRow,
    add_repairs,
)
from zerotools.jobs.text.config_document import Document
from zerotools.jobs.text.expand_home import expand_home


@dataclass(frozen=True)
class Program:
    """A training program, with everything that a job of engine `script` needs to start it.

    `command` is the value of `script.command`. `launcher` and `options` start the ranks, and `env`
    has the environment variables. `name` is the usual name of the program. `unknown` has a message
    for each word of the command that only a shell can compute.
    """

    name: str
    place: str
    command: tuple[str, ...]
    launcher: str
    options: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunSettings:
    """The settings of a training run, read from its launch line, script or YAML, under the names of
    Hugging Face's Trainer arguments.

    Attributes:
        source: the name of the file or line for messages.
        given: name -> the argument that was given.
        file_directory: the directory of the file that contains the arguments.
        defaults: name -> default of the program; empty if the program is not known to use a
            Trainer.
        who: the name of the program for messages.
        deepspeed: the DeepSpeed config that the arguments name.
        accelerate: the options of `accelerate launch`, as a document with the keys of its config
            file.
        accelerate_file: the config file that the options of `accelerate launch` override.
        launcher: the launcher, if it starts one rank for each GPU; else empty.
        ranks: the number of ranks that the launcher's options state.
        numa: the launcher's option that binds ranks to CPU cores.
        examples: true if the data are examples, false if they are text, None if only the data files
            show this.
        preferences: true if the data are pairs of answers.
        documents: path -> text of a file that the script itself writes.
        program: the program that gets the arguments, if a command starts it.
        findings: the rows and errors for the report.
    """

    source: str
    given: Mapping[str, ConfigValue]
    file_directory: Path
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
        """Return the path of the file `name`.

        `name` is relative to the working directory, or to `file_directory` if the file exists only
        there.
        """
        path = expand_home(name)
        in_directory = self.file_directory / path
        return in_directory if not path.exists() and in_directory.exists() else path

    @property
    def data_key(self) -> str:
        """The key of the job file that holds the data of the run, such as `data.text`."""
        if self.preferences:
            return "data.preferences"
        return "data.examples" if self.examples else "data.text"


class YamlSettings:
    """Reads each key of a program's YAML document once, and adds rows about the keys to the
    report.
    """

    def __init__(self, document: Document, owner: str, needed: str, others: Mapping[str, str]):
        """Begin to read the YAML document of the program `owner`.

        Raises BadRequest if the document does not have the key `needed`. `others` maps a key of
        another program to advice, which the message gives if the document has this key.
        """
        self.findings = Findings()
        add_repairs(self.findings, document)
        self.remaining = {
            name: ConfigValue(name, document.title((name,)), document.location((name,)), value)
            for name, value in document.tree.items()
        }
        self.source = document.source
        if needed not in self.remaining:
            whose = next((other for key, other in others.items() if key in self.remaining), None)
            hint = f"; {whose}" if whose else f"; is it a config of {owner}?"
            raise BadRequest(
                f"{self.source}: has no {needed}, which every config of {owner} has{hint}"
            )

    def pop(self, name: str) -> ConfigValue | None:
        """Return the value of the key `name`, and mark the key as read; None if the document
        does not have it.
        """
        return self.remaining.pop(name, None)

    def ignore(self, reasons: Mapping[str, str]) -> None:
        """Report keys as ignored. `reasons` maps each key to the reason."""
        for name, why in reasons.items():
            if (given := self.pop(name)) is not None:
                self.row(KeyOutcome.IGNORED, given, None, why)

    def row(self, outcome: KeyOutcome, given: ConfigValue, job: str | None, why: str) -> None:
        """Add a row about the key `given` to the report.

        `job` is the key of the job file that gets the value, `why` a remark.
        """
        value = given.value if isinstance(given.value, (str, int, float, bool)) else None
        row = ReportRow(outcome, given.title, given.place, value, job, why)
        self.findings.rows.append(row)

    def refuse(self, given: ConfigValue, why: str) -> None:
        """Report the key `given` as not supported, because the job file cannot express it.

        `why` is the reason.
        """
        self.findings.unsupported.append(f"{given.label} = {format_value(given.value)}: {why}")

    def choice(self, name: str, choices: Mapping[str, bool], default: str) -> bool:
        """Return the boolean to which `choices` maps the value of the key `name`.

        A value that is not in `choices` is refused; the result is then False.
        """
        given = self.pop(name)
        value = default if given is None or given.value is None else str(given.value)
        if given is not None and value not in choices:
            names = ", ".join(name for name in choices if name)
            self.refuse(given, f"is not supported; supported: {names}")
        elif given is not None:
            self.row(KeyOutcome.MAPPED, given, None, "")
        return choices.get(value, False)

    def renamed(self, names: Mapping[str, str]) -> dict[str, ConfigValue]:
        """Return the keys that were not read yet, under the Trainer's names.

        `names` maps a key to the Trainer's name.
        """
        found: dict[str, ConfigValue] = {}
        for name, given in self.remaining.items():
            known = names.get(name, name)
            if known in found:
                self.findings.wrong.append(
                    f"{given.label} and {found[known].label} say the same; remove one of them"
                )
            found[known] = replace(given, name=known)
        return found

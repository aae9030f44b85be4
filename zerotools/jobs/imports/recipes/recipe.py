"""The arguments of a training program, from any kind of file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from zerotools.jobs.imports.reading.report import Findings
from zerotools.jobs.imports.reading.typed_keys import ConfigValue
from zerotools.jobs.imports.recipes.launcher_numa import NumaAsked
from zerotools.jobs.text.document import Document
from zerotools.jobs.text.home_paths import expanded


@dataclass(frozen=True)
class Program:
    """A training program, in the form that a job of the engine `script` needs.

    `command` is `script.command`, `launcher` and `options` start its ranks, and `env` has the
    variables that are set for it. `name` is its common name. `unknown` lists the words that only a
    shell can evaluate.
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

    `defaults` are those of the program that reads the arguments, by the same names; empty if the
    program is not known to use a Trainer. `beside` is the directory of the file with the arguments.
    `deepspeed` is the named DeepSpeed config. `accelerate` has the options of `accelerate launch`,
    which go with the file `accelerate_file`. `launcher` is the program that starts one rank for
    each GPU, if any; `numa` has the launcher's options for processors. `examples` is true if the
    data are examples, not text (None: the data show it), `preferences` if they are pairs of
    answers. `documents` are the texts of files that the script itself writes, by their paths.
    `program` is the program that has the arguments, if it was started. `findings` are the findings
    of the reading.
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
    numa: NumaAsked | None = None
    examples: bool | None = None
    preferences: bool = False
    documents: Mapping[str, str] = field(default_factory=dict)
    program: Program | None = None
    findings: Findings = field(default_factory=Findings)

    def found(self, name: str) -> Path:
        """Return the path `name`: from the working directory, or next to the file if it only exists
        there."""
        path = expanded(name)
        beside = self.beside / path
        return beside if not path.exists() and beside.exists() else path

    @property
    def data_key(self) -> str:
        """The key of the job file that its data is for."""
        if self.preferences:
            return "data.preferences"
        return "data.examples" if self.examples else "data.text"

"""Options that import configs and launch lines of other launchers, and the report on the import."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import wraps
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import click

from zerotools.cli.options.click_options import LAUNCHERS, option
from zerotools.cli.output.language import has_wide, translated, wrap_wide
from zerotools.cli.output.render import clean
from zerotools.core.errors import BadRequest
from zerotools.jobs.imports.accelerate_yaml import YAML_KEYS
from zerotools.jobs.imports.combine_configs import CONFIG, Imported, JobFile, import_configs
from zerotools.jobs.imports.programs.axolotl import read_axolotl
from zerotools.jobs.imports.programs.launcher_options import with_launch_options
from zerotools.jobs.imports.programs.llamafactory import read_llamafactory
from zerotools.jobs.imports.programs.read_launch_line import read_launch
from zerotools.jobs.imports.programs.run_settings import RunSettings
from zerotools.jobs.imports.programs.trainer_based_programs import PRESET
from zerotools.jobs.imports.reading.check_deepspeed_keys import ConfigValue
from zerotools.jobs.imports.reading.import_report import (
    ENGLISH,
    FIRST,
    LATER,
    WIDTH,
    Wording,
    next_steps,
    report_lines,
)
from zerotools.jobs.imports.reading.look_up_job_keys import look_up
from zerotools.jobs.jobfile.parse import read_tree
from zerotools.jobs.launcher_keys.deepspeed_releases import NEWEST, Release, installed_release
from zerotools.jobs.launcher_keys.program_keys import TRL_PRESETS
from zerotools.jobs.text.config_document import LARGEST_FILE, Document, read_text, text_of
from zerotools.jobs.text.expand_home import expand_home
from zerotools.jobs.text.json_parser import parse_json
from zerotools.jobs.text.yaml_parser import parse_yaml

LINE = "the launch line"


class LaunchOptions(NamedTuple):
    """Values of the options --launch, --llamafactory and --axolotl. A user may give at most one of
    the three.
    """

    launch: str | None = None
    llamafactory: Path | None = None
    axolotl: Path | None = None

    @property
    def any(self) -> bool:
        """True if one of the three options was given."""
        return any(given is not None for given in self)

    def read(self, lenient: bool, number: int | None = None) -> RunSettings | None:
        """Read the launch line or the config that the option names, and return its settings; None
        if no option was given.

        `number` selects one of several launch lines.

        Raises:
            BadRequest: several options were given, or the file or line cannot be read.
            Unsupported: the config is YAML, and PyYAML is not installed.
        """
        given = [f"--{name}" for name, value in self._asdict().items() if value is not None]
        if len(given) > 1:
            raise BadRequest(f"{given[0]} and {given[1]} cannot be combined; leave one out")
        if self.launch is not None:
            return _launch(self.launch, lenient, number)
        if self.llamafactory is not None:
            document = _yaml(self.llamafactory, "LLaMA-Factory config", lenient)
            return read_llamafactory(document, self.llamafactory.parent)
        if self.axolotl is not None:
            document = _yaml(self.axolotl, "axolotl config", lenient)
            return read_axolotl(document, self.axolotl.parent)
        return None


def _launch(given: str, lenient: bool, number: int | None) -> RunSettings:
    if not given.strip():
        raise BadRequest("--launch: is empty; give a launch line, or a script with a launch line")
    if given == "-":
        text = text_of(sys.stdin.buffer.read(LARGEST_FILE + 1), "standard input", "script")
        return read_launch(
            text, "standard input", Path(), lines=True, lenient=lenient, number=number
        )
    path = Path(given)
    try:
        is_file = len(given) < 4096 and path.exists()
    except OSError:
        is_file = False
    if is_file or len(given.split()) == 1:
        text = read_text(path, "script")
        return read_launch(text, given, path.parent, lines=True, lenient=lenient, number=number)
    return read_launch(
        given, LINE, Path(), lines="\n" in given.strip(), lenient=lenient, number=number
    )


def _yaml(path: Path, what: str, lenient: bool) -> Document:
    text = read_text(path, what)
    if path.suffix == ".json":
        return parse_json(text, source=str(path), lenient=lenient)
    return parse_yaml(text, source=str(path), lenient=lenient)


def named_file(
    settings: RunSettings, named: ConfigValue | None, option: str, given: Path | None
) -> Path | None:
    """Return the path of the config that `settings` name. If they name no config, return
    `given`, the path of the option.

    If the config is not found, an error is added to the findings of `settings`.

    Raises:
        BadRequest: `settings` and the option both name a config.
    """
    if named is None:
        return given
    if given is not None:
        raise BadRequest(
            f"{named.label} = {named.value}: cannot be combined with {option} {given}; remove one "
            "of them"
        )
    if not isinstance(named.value, str):
        settings.findings.wrong.append(
            f"{named.label}: must be the path of a file; write the config to a file"
        )
        return None
    if named.value in settings.documents:
        return Path(named.value)
    path = settings.found(named.value)
    if not path.exists():
        found = "is not found here"
        if settings.file_directory != Path():
            found = f"is found neither here nor next to {settings.source}"
        if named.title.lstrip("-") == PRESET:
            found += f", and is not a preset of TRL ({', '.join(TRL_PRESETS)})"
        what = (
            f"{named.label} = {named.value}: {found}; correct the path, or import the page that "
            "has this file too (zerotools import PAGE)"
        )
        settings.findings.wrong.append(what)
        return None
    return path


RECIPE_OPTIONS = (
    option(
        "--launch",
        group=LAUNCHERS,
        metavar="LINE|FILE|-",
        help="Take settings from the command that starts a training program (deepspeed, torchrun, "
        "accelerate launch, python), or from a script with that command. Nothing is run.",
    ),
    option(
        "--llamafactory",
        group=LAUNCHERS,
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Take settings from LLaMA-Factory's YAML.",
    ),
    option(
        "--axolotl",
        group=LAUNCHERS,
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Take settings from axolotl's YAML.",
    ),
)


Closing = Callable[[Imported, RunSettings | None], Iterable[str]]
"""A function that returns sentences on the next steps with an imported job."""


def _translated(text: str) -> str:
    return translated(text, sys.stderr)


def _wrapped(line: str) -> Iterable[str]:
    if has_wide(line):
        return wrap_wide(line, WIDTH, first=FIRST, later=LATER)
    return ENGLISH.wrapped(line)


WORDING = Wording(_translated, _wrapped)
"""Translates the sentences of reports to the language of the user, and wraps their lines."""


def write_report(lines: Iterable[str]) -> None:
    """Write the lines of a report to stderr."""
    sys.stderr.write("".join(f"{clean(line)}\n" for line in lines))


class Configs(NamedTuple):
    """The configs of other launchers that the options name. With `lenient`, faults of text that was
    copied from a web page are repaired.
    """

    deepspeed: Path | None
    accelerate: Path | None
    launch_options: LaunchOptions
    lenient: bool
    written: Mapping[str, str] = MappingProxyType({})
    """The texts of files that a launch script writes or a web page shows, keyed by path."""

    @property
    def any(self) -> bool:
        """True if an option names a config or a launch line."""
        return self.deepspeed is not None or self.accelerate is not None or self.launch_options.any

    def read(self, number: int | None = None) -> RunSettings | None:
        """Return the settings in the launch line or config that an option names. Return None if no
        such option was given.

        `number` selects one of several launch lines of a script. Raises the errors of
        `LaunchOptions.read`.
        """
        return self.launch_options.read(self.lenient, number)

    def imported(self, job: JobFile | None) -> Imported:
        """Combine the job file `job` with these configs to one job, and print a report of the
        import on stderr.

        Raises:
            BadRequest: a file cannot be read.
            Unsupported: a file is YAML, and PyYAML is not installed.
        """
        return self.with_settings(job, self.read())

    def with_settings(
        self, job: JobFile | None, settings: RunSettings | None, *, closing: Closing | None = None
    ) -> Imported:
        """Do the same as `imported`, but with `settings` that were already read from a launch line
        or config.

        `closing` returns sentences about the next steps, which are added to the report.
        """
        if settings is not None:
            return self._with_files_of(settings)._imported(job, settings, closing)
        return self._imported(job, None, closing)

    def _with_files_of(self, settings: RunSettings) -> Configs:
        """Return these configs, completed with the config files that `settings` name. Raises
        BadRequest if `settings` and an option both name such a file.
        """
        deepspeed = named_file(settings, settings.deepspeed, "--deepspeed", self.deepspeed)
        accelerate = named_file(settings, settings.accelerate_file, "--accelerate", self.accelerate)
        return self._replace(
            deepspeed=deepspeed,
            accelerate=accelerate,
            written={**self.written, **settings.documents},
        )

    def _imported(
        self, job: JobFile | None, settings: RunSettings | None, closing: Closing | None
    ) -> Imported:
        job, named = self._with_named(job)
        accelerate = None if self.accelerate is None else self._accelerate(self.accelerate)
        if settings is not None and settings.accelerate is not None:
            accelerate = with_launch_options(accelerate, settings.accelerate)
        result = import_configs(
            job,
            run=settings,
            deepspeed=None if named is None else self._deepspeed(named),
            accelerate=accelerate,
            load=self._named,
            release=_release(job),
        )
        files = [path for path in (named, self.accelerate) if path is not None]
        sources = [
            *([] if job is None else [job.source]),
            *([] if settings is None else [settings.source]),
            *map(str, files),
        ]
        lines = [
            f"# {' with '.join(sources)}",
            *report_lines(result.findings, written=closing is not None, wording=WORDING),
        ]
        if result.changes:
            head = translated("changes in the config that DeepSpeed gets", sys.stderr)
            lines += [f"# {head}", *(f"#   {x}" for x in result.changes)]
        if result.problem is not None:
            return result
        ending = () if closing is None else closing(result, settings)
        lines += next_steps(result.findings, ending, WORDING)
        write_report(lines)
        return result

    def _with_named(self, job: JobFile | None) -> tuple[JobFile | None, Path | None]:
        """Return the job file without its key `deepspeed.config`, and the path of the DeepSpeed
        JSON. The path is the value of this key or of the option.

        Raises:
            BadRequest: the key and the option are both given.
        """
        config = None if job is None else look_up(job.tree, CONFIG)
        if job is None or not isinstance(config, str):
            return job, self.deepspeed
        if self.deepspeed is not None:
            raise BadRequest(
                f"{job.source}: {CONFIG} = {config}: cannot be combined with --deepspeed "
                f"{self.deepspeed}; remove one of them"
            )
        tree = dict(job.tree)
        tree["deepspeed"] = {k: v for k, v in tree["deepspeed"].items() if k != "config"}
        return replace(job, tree=tree), job.base_dir / expand_home(config)

    def _deepspeed(self, path: Path) -> Document:
        if path.suffix in (".yaml", ".yml"):
            raise BadRequest(
                f"{path}: is YAML, and DeepSpeed's config is JSON; pass an accelerate config with "
                "--accelerate"
            )
        written = self.written.get(str(path))
        text = read_text(path, "DeepSpeed config") if written is None else written
        return parse_json(text, source=str(path), lenient=self.lenient)

    def _accelerate(self, path: Path) -> Document:
        written = self.written.get(str(path))
        text = read_text(path, "accelerate config") if written is None else written
        if path.suffix == ".json":
            return parse_json(text, source=str(path), lenient=self.lenient)
        return parse_yaml(text, source=str(path), lenient=self.lenient, keys=YAML_KEYS)

    def _named(self, name: str) -> Document:
        """Read the DeepSpeed JSON that the accelerate config names. If the path is not found from
        the working directory, it is relative to the directory of the accelerate config."""
        path = expand_home(name)
        if self.accelerate is not None and not path.exists():
            beside = self.accelerate.parent / path
            path = beside if beside.exists() else path
        if not path.exists() and self.accelerate is None:
            raise BadRequest(f"deepspeed_config_file = {name}: is not found here; correct the path")
        if not path.exists():
            raise BadRequest(
                f"{self.accelerate}: deepspeed_config_file = {name}: is found neither here nor "
                f"next to {self.accelerate}; correct the path"
            )
        return self._deepspeed(path)


def _release(job: JobFile | None) -> Release:
    """Return the DeepSpeed release that is installed for the Python of the job. If none is found,
    return the newest known release.
    """
    python = None if job is None else look_up(job.tree, "python")
    found = installed_release(python if isinstance(python, str) else None)
    return NEWEST if found is None else found


def config_options(command: Callable[..., int]) -> Callable[..., int]:
    """Add the options for configs to a command. The command gets their values as the parameter
    `configs`.
    """

    @wraps(command)
    def collected(
        *,
        deepspeed: Path | None,
        accelerate: Path | None,
        launch: str | None,
        llamafactory: Path | None,
        axolotl: Path | None,
        lenient: bool,
        **given: Any,
    ) -> int:
        launch_options = LaunchOptions(launch, llamafactory, axolotl)
        return command(**given, configs=Configs(deepspeed, accelerate, launch_options, lenient))

    options = (
        option(
            "--deepspeed",
            group=LAUNCHERS,
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="Take settings from DeepSpeed's JSON.",
        ),
        option(
            "--accelerate",
            group=LAUNCHERS,
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="Take settings from accelerate's YAML.",
        ),
        *RECIPE_OPTIONS,
        option(
            "--lenient",
            group=LAUNCHERS,
            is_flag=True,
            help="Repair text copied from a web page (comments, commas, quotes, spaces, "
            "indentation), and show each repair.",
        ),
    )
    for add in reversed(options):
        add(collected)
    return collected


def read_job_file(name: str) -> JobFile:
    """Read the job file `name`, or standard input if it is `-`.

    Raises:
        BadRequest: the file cannot be read, or is neither TOML nor JSON.
    """
    if name == "-":
        source, directory = "standard input", Path.cwd()
        text = text_of(sys.stdin.buffer.read(LARGEST_FILE + 1), source, "job file")
    else:
        source, directory = name, Path(name).absolute().parent
        text = read_text(Path(name), "job file")
    return JobFile(read_tree(text, source=source), source, directory, text)

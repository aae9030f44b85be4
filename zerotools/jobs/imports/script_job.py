"""Make a job of the engine `script` from the program of a launch line."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from zerotools.core.errors import BadRequest, Unsupported
from zerotools.jobs.imports.combine_configs import Imported, JobFile, problem_of
from zerotools.jobs.imports.programs.run_settings import Program, RunSettings
from zerotools.jobs.imports.reading.import_report import Findings
from zerotools.jobs.imports.reading.look_up_job_keys import JobTree, in_order, look_up, set_key
from zerotools.jobs.jobfile.parse import job_from_tree
from zerotools.jobs.launcher_keys.launcher_flags import STARTED_BY

_OUTPUT = "output_dir"
_STOP = (
    "a stop sends SIGTERM to every rank; three more lines in {name} make it save then, and resume "
    "later (zerotools help run-your-own-script)"
)


def import_script(
    job: JobFile | None, run: RunSettings, configs: Mapping[str, Path], findings: Findings
) -> Imported:
    """Return a job of engine `script` that runs the program of `run`.

    Keys that the job file `job` sets are kept. `configs` maps a config path in the program's
    command to the file that replaces it.

    Raises:
        BadRequest: `run` has no program, for example because it was read from a YAML file.
    """
    program = run.program
    if program is None:
        raise BadRequest(f"{run.source}: has no command to run; give the launch line with --launch")
    tree: JobTree = {} if job is None else copy.deepcopy(dict(job.tree))
    source = "the job file" if job is None else job.source
    findings.wrong += program.unknown
    started = (row for row in run.findings.rows if row.key in STARTED_BY)
    findings.steps += (f"{row.key}: {row.why}" for row in started)
    origins: dict[str, str] = {}
    directory = _directory(run, program)
    for key, value in _keys(run, program, tree, directory, configs).items():
        if look_up(tree, key) is None:
            set_key(tree, key, value)
            origins[key] = program.place
    findings.steps += _steps(run, program, directory)
    spec = None
    try:
        spec = job_from_tree(tree, source=source, base_dir=directory)
    except Unsupported as error:
        findings.unsupported.append(str(error))
    except BadRequest as error:
        findings.wrong.append(str(error))
    return Imported(in_order(tree), origins, spec, (), findings, None, problem_of(findings))


def _directory(run: RunSettings, program: Program) -> Path:
    """Return the directory in which the program starts. This is the working directory, unless the
    program exists only in the directory of the script.
    """
    here, beside = Path.cwd(), Path.cwd() / run.file_directory
    file = next((word for word in program.command if word.endswith(".py")), None)
    is_beside = file is not None and not (here / file).exists() and (beside / file).exists()
    return beside if is_beside else here


def _keys(
    run: RunSettings,
    program: Program,
    tree: JobTree,
    directory: Path,
    configs: Mapping[str, Path],
) -> dict[str, Any]:
    keys: dict[str, Any] = {"engine": "script"}
    ranks = "ranks" if look_up(tree, "device") == "cpu" else "gpus"
    if (count := _ranks_of(run)) is not None:
        keys[ranks] = count
    keys["script.command"] = _replace_paths(program.command, configs)
    keys["script.launcher"] = program.launcher
    if program.options:
        keys["script.launcher_options"] = _replace_paths(program.options, configs)
    keys["script.directory"] = str(directory)
    output = run.given.get(_OUTPUT)
    if output is not None and isinstance(output.value, str):
        keys["script.checkpoint_dir"] = str(directory / output.value)
    for name, value in program.env.items():
        keys[f"env.{name}"] = value
    return keys


def _ranks_of(run: RunSettings) -> Any:
    """Return the number of ranks, if the command, an option of accelerate or a preset states it;
    else None.
    """
    if run.ranks is not None:
        return run.ranks.value
    return None if run.accelerate is None else run.accelerate.tree.get("num_processes")


def _steps(run: RunSettings, program: Program, directory: Path) -> list[str]:
    steps = []
    file = next((word for word in program.command if word.endswith(".py")), None)
    if file is not None and not (directory / file).exists():
        steps.append(
            f"{file} is not in {directory}: set script.directory to the directory that has it, or "
            "run the import there"
        )
    launcher = run.launcher or ("accelerate" if program.launcher == "accelerate" else "")
    if launcher and _ranks_of(run) is None:
        steps.append(f"{launcher} would use every GPU, but the job has one GPU unless you set gpus")
    steps.append(_STOP.format(name=program.name))
    return steps


def _replace_paths(words: Iterable[str], configs: Mapping[str, Path]) -> list[str]:
    """Return `words` with each config path replaced. `configs` maps a path in the words to its new
    path.
    """
    return [_replaced(word, configs) for word in words]


def _replaced(word: str, configs: Mapping[str, Path]) -> str:
    title, equals, value = word.partition("=")
    if word in configs:
        return str(configs[word])
    is_option = equals and title.startswith("-") and value in configs
    return f"{title}={configs[value]}" if is_option else word

"""What a test may replace, and where it may sleep: docs/contributing/write-tests.md says the rule.

A constant of a module may be replaced, and so may what the system or a person does. `REPLACED` and
`SLEEPING` list all else; neither gets new lines, and a line that is not needed any more goes.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).resolve().parents[1]
OF_PROGRAMS = re.compile(r"golden/[\w.]+-\d|golden/continued/")
"""Files that other programs wrote."""
WORDS = re.compile("setattr|delattr|sleep|mock|unittest")
CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]+")
SYSTEM = frozenset(
    {
        *("click", "fcntl", "os", "Path", "shutil", "socket", "subprocess"),
        *("sys", "tempfile", "time", "webbrowser"),
        "cuda",  # of torch: the driver of GPUs
    }
)
"""What stands for the system, or for a person at the terminal."""

REPLACED: Mapping[str, frozenset[str]] = {
    "cli/job_actions/test_slurm_submission.py": frozenset(
        {"slurm_submission.SlurmCommands", "slurm_submission._check_here"}
    ),
    "daemon/service/operations/test_priority_and_array_changes.py": frozenset(
        {"queue_store.Store._append"}
    ),
    "daemon/dispatch/test_dispatcher.py": frozenset(
        {"prepare_run_directory.prepare_run_directory"}
    ),
    "daemon/resources/test_snapshot_thread.py": frozenset({"SnapshotCache._without_answer"}),
    "daemon/children/test_mirror.py": frozenset(
        {
            "zerotools.ops.mirroring.prefix_owner.read_claim",
            "zerotools.ops.mirroring.checkpoint_mirror.fetch_copy",
        }
    ),
    "daemon/test_no_memory.py": frozenset({"store._sql"}),
    "daemon/service/test_make_job_view.py": frozenset(
        {"last_report.last_report", "it.engine.why_it_waits"}
    ),
    "daemon/trainer/engine_deepspeed/test_operator_build_directory.py": frozenset(
        {"cpp_extension.FileBaton"}
    ),
    "daemon/trainer/engine_torch/test_save_and_load_shards.py": frozenset({"of_torch.Metadata"}),
    "daemon/trainer/model/test_nf4_linear.py": frozenset(
        {"zerotoolsd.trainer.model.nf4_linear.find_spec", "nf4_linear._functional"}
    ),
    "daemon/trainer/rank/test_process_group.py": frozenset({"dist.init_process_group"}),
    "daemon/trainer/rank/test_rendezvous_of_nodes.py": frozenset(
        {"rendezvous_of_nodes.boot_id", "rendezvous_of_nodes.own_card"}
    ),
    "daemon/trainer/test_check_attention_leaks.py": frozenset(
        {"tiny_model.narrow_config", "check_attention_leaks.small_model"}
    ),
    "jobs/slurm/test_submit_to_slurm.py": frozenset({"submit_to_slurm.new_job_directory"}),
    "ops/conversions/test_conversion.py": frozenset(
        {"execute_part.remove_journals", "zerotools.io.output.staging.Staging.commit"}
    ),
    "ops/delta/test_apply_delta.py": frozenset({"zerotools.ops.delta.apply_delta._write_plain"}),
    "ops/estimate/test_parameter_shapes.py": frozenset(
        {"formats.read_any", "parameter_shapes._built"}
    ),
    "ops/serving/test_model_server.py": frozenset({"byte_source.fill_tile"}),
}
"""Functions and classes that tests replace, by file."""

SLEEPING: Mapping[str, str] = {
    "daemon/waiting.py": "`wait_for` and `wait_async`, with which tests wait",
    "daemon/http/api/fakes.py": "the answer to a client that waits for events",
    "daemon/attempts/ranked_program.py": "a program that ranks run",
    "daemon/fake_rank.py": "a program that ranks run",
    "daemon/own_program.py": "a program that ranks run",
    "integrations/lightning_program.py": "a program that ranks run",
    "integrations/trainer_program.py": "a program that ranks run",
    "golden/deepspeed_runs/launch.py": "makes golden cases: it waits for the ranks that it started",
}
"""Files that may sleep, and why."""


class Found(NamedTuple):
    """What a file replaces, as `owner.attribute`, the lines in which it sleeps, what it imports."""

    replaced: frozenset[str]
    sleeps: tuple[int, ...]
    imported: frozenset[str]


@cache
def files() -> Mapping[str, Found]:
    """Return what is found in each file. No tree is kept: there are a thousand of them."""
    found = {}
    for path in sorted(TESTS.rglob("*.py")):
        name = path.relative_to(TESTS).as_posix()
        if not OF_PROGRAMS.match(name):
            found[name] = look_at(path.read_text(encoding="utf-8"))
    return found


def look_at(source: str) -> Found:
    """Return what is found in the text of a file."""
    if WORDS.search(source) is None:  # most files: parsing them takes seconds
        return Found(frozenset(), (), frozenset())
    tree = ast.parse(source)
    return Found(frozenset(_replaced(tree)), tuple(_sleeps(tree)), frozenset(_imported(tree)))


def _calls(tree: ast.Module) -> Iterator[ast.Call]:
    return (each for each in ast.walk(tree) if isinstance(each, ast.Call))


def _constants(tree: ast.Module) -> dict[str, str]:
    """Return the texts that a module gives names to."""
    return {
        target.id: str(each.value.value)
        for each in tree.body
        if isinstance(each, ast.Assign) and isinstance(each.value, ast.Constant)
        for target in each.targets
        if isinstance(target, ast.Name)
    }


def _replaced(tree: ast.Module) -> Iterator[str]:
    """Yield what is replaced by `setattr` of pytest's MonkeyPatch."""
    for call in _calls(tree):
        if not isinstance(call.func, ast.Attribute) or call.func.attr not in ("setattr", "delattr"):
            continue
        first, *rest = call.args
        if isinstance(first, ast.Name) and first.id in _constants(tree):
            yield _constants(tree)[first.id]
        elif isinstance(first, ast.Constant):
            yield str(first.value)
        else:
            attribute = rest[0].value if isinstance(rest[0], ast.Constant) else ast.unparse(rest[0])
            yield f"{ast.unparse(first)}.{attribute}"


def is_allowed(target: str) -> bool:
    """Return whether any test may replace it."""
    *owner, attribute = target.split(".")
    return bool(CONSTANT.fullmatch(attribute)) or not SYSTEM.isdisjoint(owner)


def _sleeps(tree: ast.Module) -> Iterator[int]:
    """Yield the lines of calls that sleep. `asyncio.sleep(0)` does not: it lets other tasks run."""
    imported = {
        alias.asname or alias.name
        for each in ast.walk(tree)
        if isinstance(each, ast.ImportFrom) and each.module in ("time", "asyncio")
        for alias in each.names
        if alias.name == "sleep"
    }
    for call in _calls(tree):
        target = ast.unparse(call.func)
        if target not in ("time.sleep", "asyncio.sleep", *imported):
            continue
        if target != "time.sleep" and ast.unparse(call.args[0]) == "0":
            continue
        yield call.lineno


def _imported(tree: ast.Module) -> Iterator[str]:
    for each in ast.walk(tree):
        if isinstance(each, ast.ImportFrom):
            yield each.module or ""
        elif isinstance(each, ast.Import):
            yield from (alias.name for alias in each.names)


def test_nothing_is_replaced_but_constants_and_the_system() -> None:
    more = {
        name: frozenset(each for each in found.replaced if not is_allowed(each))
        for name, found in files().items()
    }
    assert {name: targets for name, targets in more.items() if targets} == REPLACED


def test_only_programs_and_the_helpers_that_wait_sleep() -> None:
    assert {name for name, found in files().items() if found.sleeps} == {*SLEEPING}


def test_nobody_mocks() -> None:
    for name, found in files().items():
        assert not [each for each in found.imported if each.startswith(("unittest", "mock"))], name


def test_the_check_sees_what_it_is_for() -> None:
    found = look_at(
        "from time import sleep as nap\n"
        "FIND = 'a.b.find'\n"
        "patch.setattr(module, 'run', f)\n"
        "patch.setattr(module, '_LONGEST', 1)\n"
        "patch.setattr(module.os, 'nice', f)\n"
        "patch.setattr(FIND, f)\n"
        "patch.setattr('a.b.c', f)\n"
        "nap(1)\n"
        "time.sleep(0)\n"
        "asyncio.sleep(0)\n"
        "asyncio.sleep(0.1)\n"
    )
    allowed = {"module._LONGEST", "module.os.nice"}
    assert found.replaced == {"module.run", "a.b.find", "a.b.c", *allowed}
    assert {each for each in found.replaced if is_allowed(each)} == allowed
    assert found.sleeps == (8, 9, 11)

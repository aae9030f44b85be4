"""Tests mirror the tree: `tests/io/files/test_read_json.py` tests `io/files/read_json.py`.

Tests of `zerotoolsd` are in `tests/daemon`, those of `benchmarks` and `harness` in folders of their
names, all others in `tests` itself.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
PLACES = {
    "daemon": ROOT / "daemon/zerotoolsd",
    "benchmarks": ROOT / "benchmarks",
    "harness": ROOT / "harness",
}
"""Of the first folder below `tests`; what is not here is of `zerotools`."""
OF_NO_ROOM = {
    "docs": "documents, whose commands are run",
    "formats/toy": "a format that is not shipped, which lies there as a whole",
    "golden": "files of real runs, and the programs that made them or judge ours",
    "fuzzing": "whatever bytes a fuzzer makes, by what reads them",
    "hostile": "files that attack us, by kind of file",
    "surface": "rules for the whole tree",
}
"""Folders below `tests` that no folder of the source tree has, and what they are of."""

NOT_OF_ONE_MODULE: dict[str, tuple[str, ...]] = {
    # the room as a whole: what one module does shows in another
    "room": (
        "cli/commands/test_checkpoint_commands",
        "cli/commands/test_hung_mounts",
        "cli/commands/test_parts_on_slurm",
        "cli/commands/test_slurm_jobs",
        "cli/commands/test_submit_convert",
        "cli/commands/test_submit_deepspeed",
        "cli/commands/test_submit_several",
        "cli/test_completion",
        "cli/test_interrupt",
        "cli/test_json_output",
        "daemon/http/api/test_before_the_gate",
        "daemon/dispatch/test_linked_paths",
        "daemon/dispatch/test_retention",
        "daemon/children/checkpoint_finder/test_layouts",
        "daemon/http/web/test_browser",
        "daemon/http/web/test_browser_actions",
        "daemon/http/web/test_browser_attacks",
        "daemon/http/web/test_browser_curves",
        "daemon/http/web/test_browser_hostile",
        "daemon/http/web/test_browser_load",
        "daemon/http/web/test_browser_looks",
        "daemon/http/web/test_browser_machine",
        "daemon/http/web/test_browser_secrets",
        "daemon/queue/scheduling/test_elastic_starts",
        "daemon/trainer/test_layout_agreement",
        "harness/release/test_release",
        "formats/deepspeed/schema/test_trees",
        "formats/test_real_runs",
        "ops/delta/test_deltas_in_stores",
        "ops/execution/test_shared_blocks",
        "formats/test_package_docstrings",
        "maps/test_maxtext",
        "maps/test_mtp",
        "formats/deepspeed/reading/test_versions",
        "formats/torchfile/test_unread",
        "ops/quantised/test_interrupted",
        "ops/quantised/test_peers",
        "ops/quantised/test_transformers",
        "jobs/imports/test_deepspeed_memory",
        "jobs/imports/test_deepspeed_refusals",
        "jobs/imports/test_values",
        "jobs/imports/programs/test_public_scripts",
        "ops/conversions/test_autoep_logits",
        "ops/conversions/test_bridged_models",
        "ops/conversions/test_mapped",
        "ops/conversions/test_megatron_adapters",
        "ops/conversions/test_megatron_continued",
        "ops/conversions/test_megatron_logits",
        "ops/conversions/test_megatron_mapped",
        "ops/conversions/test_to_megatron",
        "ops/conversions/test_many_ranks",
        "ops/execution/test_overwriting",
        "ops/execution/test_resuming",
        "ops/execution/test_sources",
    ),
    # real daemons and ranks: what a user sees of them
    "process": (
        "daemon/test_calendar",
        "daemon/test_gpu_memory",
        "daemon/test_hostile",
        "daemon/test_no_memory",
        "daemon/test_conversion_jobs",
        "ops/serving/test_peers",
        "daemon/trainer/test_several_machines",
        "daemon/test_elastic_jobs",
        "daemon/test_promises",
        "daemon/test_recovery",
        "daemon/test_users_adopting",
        "daemon/trainer/test_elastic_training",
        "daemon/test_users_page",
        "daemon/test_users_requests",
        "daemon/test_users_starving",
        "daemon/test_restarts",
        "daemon/test_two_daemons",
        "daemon/dispatch/test_stops_meeting",
        "daemon/supervisor/stop/test_job_commands",
        "daemon/supervisor/stop/test_killed_stops",
        "daemon/test_scripts",
        "daemon/test_starting",
        "daemon/http/api/test_tls",
        "daemon/supervisor/exit_record/test_real_ranks",
        "daemon/http/api/test_every_route",
        "daemon/http/api/test_generated_client",
        "daemon/http/api/test_statuses",
        "daemon/test_installed_service",
        "daemon/http/api/test_hostile",
        "daemon/trainer/checkpoints/test_async",
        "daemon/trainer/engine_deepspeed/test_deepspeed",
        "daemon/trainer/engine_deepspeed/test_foreign",
        "daemon/trainer/engine_deepspeed/test_lora",
        "daemon/trainer/engine_torch/test_alone",
        "daemon/trainer/engine_torch/test_fp16",
        "daemon/trainer/engine_torch/test_frozen",
        "daemon/trainer/engine_torch/test_layouts",
        "daemon/trainer/engine_torch/test_offload",
        "daemon/trainer/engine_torch/test_stages",
        "daemon/trainer/engine_torch/test_tensor_ranks",
        "daemon/trainer/evaluation/test_generation",
        "daemon/trainer/test_placement",
        "daemon/trainer/test_choices",
        "daemon/trainer/test_ending",
        "daemon/trainer/test_chunked",
        "daemon/trainer/test_exporting",
        "daemon/trainer/test_finetuning",
        "daemon/trainer/test_hub",
        "daemon/trainer/test_imported_pages",
        "daemon/trainer/test_foreign",
        "daemon/trainer/test_refusals",
        "daemon/trainer/test_same_losses",
        "daemon/trainer/test_sequence_ranks",
        "daemon/trainer/test_simulated_gpu",
        "daemon/trainer/test_stopped_jobs",
    ),
    # another project's library reads what we write, or writes what we read
    "judge": (
        "formats/dcp/test_torch",
        "formats/dcp/test_resume_with_torch",
        "formats/deepspeed/universal/test_judge",
        "formats/deepspeed/writing/test_continued",
        "formats/deepspeed/writing/test_judge",
        "formats/deepspeed/writing/test_judge_other_format",
        "formats/deepspeed/writing/test_judge_parallel",
        "formats/deepspeed/writing/test_trainer_continues",
        "formats/safetensors/test_transformers",
        "formats/torchfile/test_torch",
        "jobs/imports/test_peers",
        "ops/conversions/test_export_logits",
        "ops/conversions/test_exported_models",
        "ops/conversions/test_lora_runs",
        "ops/conversions/test_exports_load",
        "ops/picture/test_keyboard_and_touch",
        "ops/picture/test_narrow_window",
        "ops/picture/test_unusual_checkpoints",
    ),
    # every case of tests/golden
    "golden": (
        "daemon/queue/test_golden_queues",
        "formats/dcp/test_golden",
        "formats/deepspeed/reading/test_golden",
        "ops/conversions/test_deepspeed_exports",
        "ops/conversions/test_other_trainers",
        "ops/inspection/test_said_and_written",
        "test_regenerated",
    ),
    # what holds for all inputs
    "property": (
        "io/numeric/test_casts",
        "io/torchzip/test_pickle_round_trip",
        "ops/conversions/test_chains",
        "ops/execution/test_any_layout",
    ),
    # how the tests themselves run
    "tests": ("test_side_by_side",),
    # a page of the documents says what there is
    "docs": ("daemon/http/api/test_docs", "ops/delta/test_delta_page"),
}
"""Test files, without their ending, that no module or folder has the name of, by reason."""


def mirroring() -> list[Path]:
    """Those that mirror the tree, relative to `tests`."""
    found = [path.relative_to(TESTS) for path in sorted(TESTS.rglob("test_*.py"))]
    return [path for path in found if OF_NO_ROOM.keys().isdisjoint(map(str, path.parents))]


def source_of(folder: Path) -> Path:
    """The folder of the source tree that a folder below `tests` mirrors."""
    first, *rest = folder.parts or ("",)
    return PLACES[first].joinpath(*rest) if first in PLACES else ROOT / "zerotools" / folder


def is_named_for_a_module(test: Path) -> bool:
    """Whether its module, or the folder of that name, is where the test's folder mirrors."""
    named = source_of(test.parent) / test.stem.removeprefix("test_")
    return named.with_suffix(".py").exists() or named.is_dir()


def test_every_folder_of_tests_mirrors_one_of_the_source() -> None:
    folders = {test.parent for test in mirroring()}
    assert [str(each) for each in sorted(folders) if not source_of(each).is_dir()] == []
    assert [each for each in OF_NO_ROOM if not (TESTS / each).is_dir()] == []


def test_a_test_is_named_for_its_module_or_says_why_not() -> None:
    others = {str(t.with_suffix("")) for t in mirroring() if not is_named_for_a_module(t)}
    listed = [each for reason in NOT_OF_ONE_MODULE.values() for each in reason]
    assert len(listed) == len(set(listed))
    assert others - set(listed) == set(), "name it for its module, or list it with its reason"
    assert set(listed) - others == set(), "take it off the list: it is gone, or has its module"

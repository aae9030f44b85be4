"""What the product does on GPUs alone is reached by a test on the CPU, or by a check of
`harness.gpu`: the table below names one for each function that asks for CUDA."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DEVICE = "cuda"
SIGNS = ('"cuda', '"cpu"', "cuda.", "cuda(", "is_cuda", "is_cpu", "on_gpu")
OF_TENSORS = {"cuda", "is_cuda", "is_cpu"}
ON_GPU = {"on_gpu", "on_gpus"}
"""Names in the daemon for "the device is cuda". Those in `zerotools` describe the machine of an
estimate, and are as good on every machine."""
TRAINER, ADMISSION = "daemon/zerotoolsd/trainer", "daemon/zerotoolsd/service/admission"
OF_TRAINER, OF_ADMISSION = "tests/daemon/trainer", "tests/daemon/service/admission"
OF_ATTEMPTS = "tests/daemon/attempts"
TABLES, OF_TABLES = "zerotools/jobs/jobfile_tables", "tests/jobs/jobfile_tables"
HEARTBEATS = "daemon/zerotoolsd/supervisor/heartbeats"
OF_HEARTBEATS = "tests/daemon/supervisor/heartbeats"
STREAMS = f"{OF_TRAINER}/engine_torch/test_master_weights.py"
GPU = "harness.gpu"

COVERED: dict[str, str] = {
    "daemon/zerotoolsd/attempts/cause_of_end.py cause_of": "tests/daemon/attempts/"
    "test_cause_of_end.py test_what_has_no_gpu_ran_out_of_no_gpu_memory",
    f"{HEARTBEATS}/rank_heartbeats.py Heartbeats._stall_text": f"{OF_HEARTBEATS}/"
    "test_rank_heartbeats.py test_ranks_that_hang_together_on_gpus_get_the_advice_about_nccl",
    f"{HEARTBEATS}/stall_limits.py StallLimits.is_eased": f"{OF_HEARTBEATS}/"
    "test_stall_detector.py test_a_rank_that_spins_in_a_collective_on_a_gpu_does_not_work",
    f"{HEARTBEATS}/stall_limits.py StallLimits.deadline": f"{OF_HEARTBEATS}/"
    "test_stall_detector.py "
    "test_a_first_step_in_which_every_rank_waits_has_the_deadline_of_a_step",
    f"{TRAINER}/model/predict_state_memory.py Prediction.__str__": f"{OF_TRAINER}/reporting/"
    "test_explain_out_of_memory.py "
    "test_the_sentence_has_what_was_expected_and_offload_where_that_is_most_of_it",
    f"{ADMISSION}/memory_check.py _row": f"{OF_ADMISSION}/test_memory_check.py "
    "test_a_job_on_cpus_takes_the_hosts_memory",
    f"{ADMISSION}/memory_check.py estimate_job_memory": "tests/daemon/service/test_submission.py "
    "test_a_model_that_no_gpu_here_can_hold_is_refused_with_what_would_fit",
    f"{ADMISSION}/memory_check.py why_never": f"{OF_ADMISSION}/test_memory_check.py "
    "test_a_job_that_never_fits_is_refused_with_what_would",
    f"{ADMISSION}/memory_check.py note_of": f"{OF_ADMISSION}/test_memory_check.py "
    "test_the_note_has_the_numbers",
    f"{ADMISSION}/memory_check.py _would_fit": f"{OF_ADMISSION}/test_memory_check.py "
    "test_where_nothing_fits_the_nearest_is_said",
    "daemon/zerotoolsd/service/submission.py JobSubmission._memory_notes": "tests/daemon/service/"
    "test_submission.py "
    "test_a_model_that_no_gpu_here_can_hold_is_refused_with_what_would_fit",
    "daemon/zerotoolsd/service/submission.py JobSubmission._check": "tests/daemon/service/"
    "test_answer_requests.py test_bf16_on_gpus_without_it_is_refused_with_the_setting_that_works",
    f"{TRAINER}/save_during_training.py _in_thread": f"{OF_TRAINER}/"
    "test_save_during_training.py "
    "test_the_thread_writes_on_the_device_of_its_rank",
    f"{TRAINER}/engine_torch/save_and_load_shards.py HostCopy.copy": f"{OF_TRAINER}/engine_torch/"
    "test_save_and_load_shards.py test_the_copy_is_complete_before_training_goes_on",
    f"{TRAINER}/engine_torch/save_and_load_shards.py HostCopy._buffer_for": f"{OF_TRAINER}/"
    "engine_torch/test_save_and_load_shards.py "
    "test_what_comes_from_a_gpu_goes_to_locked_memory_where_there_is_some",
    f"{TRAINER}/preflight_model_and_data.py check_job": f"{OF_TRAINER}/"
    "test_preflight_model_and_data.py "
    "test_what_a_gpu_holds_is_told_as_memory_of_the_gpu",
    f"{TRAINER}/engine_torch/master_weights.py CudaCopyStream.__init__": f"{STREAMS} "
    "test_a_copy_waits_for_the_gradient_and_keeps_its_memory",
    f"{TRAINER}/engine_torch/master_weights.py CudaCopyStream.to_host": f"{STREAMS} "
    "test_a_copy_waits_for_the_gradient_and_keeps_its_memory",
    f"{TRAINER}/engine_torch/master_weights.py CudaCopyStream.add_to_host": f"{STREAMS} "
    "test_a_copy_waits_for_the_gradient_and_keeps_its_memory",
    f"{TRAINER}/engine_torch/master_weights.py CudaCopyStream.to_device": f"{STREAMS} "
    "test_weights_that_return_are_waited_for_by_the_device",
    f"{TRAINER}/engine_torch/master_weights.py CudaCopyStream.wait_on_device": f"{STREAMS} "
    "test_weights_that_return_are_waited_for_by_the_device",
    f"{TRAINER}/engine_torch/master_weights.py make_copy_stream": f"{STREAMS} "
    "test_a_gpu_has_a_stream_for_copies",
    f"{TRAINER}/engine_torch/muon.py computing_type": f"{OF_TRAINER}/engine_torch/"
    "test_muon.py test_gpus_without_bf16_iterate_in_fp32",
    f"{TRAINER}/allocate_tensors.py PinnedArena._lock": f"{OF_TRAINER}/test_allocate_tensors.py "
    "test_pages_are_locked_by_torch_s_runtime",
    f"{TRAINER}/allocate_tensors.py _clear_cuda_error": f"{GPU} tests of mark gpu",
    f"{TRAINER}/model/sharding.py free_reduction_buffers": f"{OF_TRAINER}/model/"
    "test_sharding.py test_parameters_on_the_host_leave_their_buffers_on_a_gpu_alone",
    f"{TRAINER}/model/sharding.py _Reduced.__call__": f"{OF_TRAINER}/model/"
    "test_sharding.py test_the_buffer_before_is_freed_once_its_stream_is_done",
    f"{TRAINER}/allocate_tensors.py make_memory": f"{OF_TRAINER}/test_allocate_tensors.py "
    "test_copies_of_a_gpu_go_through_pinned_memory_unless_the_job_forbids_it",
    f"{TRAINER}/model/attention_choice.py choose_kernel": f"{OF_TRAINER}/model/"
    "test_attention_choice.py test_the_log_says_which_kernel",
    f"{TRAINER}/model/attention_choice.py repeat_for.shares_heads": f"{OF_TRAINER}/model/"
    "test_attention_choice.py test_keys_are_repeated_where_no_fused_kernel_shares_their_heads",
    f"{TRAINER}/model/rng_state.py capture_rng": f"{OF_TRAINER}/model/test_rng_state.py "
    "test_the_generator_of_a_gpu_is_saved_and_restored",
    f"{TRAINER}/model/rng_state.py restore_rng": f"{OF_TRAINER}/model/test_rng_state.py "
    "test_the_generator_of_a_gpu_is_saved_and_restored",
    f"{TRAINER}/rank/process_group.py device_of_rank": f"{OF_TRAINER}/rank/test_process_group.py "
    "test_a_rank_takes_the_gpu_of_its_number",
    f"{TRAINER}/reporting/explain_out_of_memory.py half_type": f"{OF_TRAINER}/reporting/"
    "test_explain_out_of_memory.py test_the_gpu_of_the_rank_is_asked",
    f"{TRAINER}/reporting/reporter.py Reporter.stepped": f"{OF_TRAINER}/reporting/"
    "test_reporter.py test_a_step_on_a_gpu_tells_the_most_memory",
    f"{TRAINER}/reporting/mfu.py make_utilization": f"{OF_TRAINER}/reporting/"
    "test_mfu.py test_the_mfu_of_known_cards_is_measured",
    f"{TRAINER}/prepare_and_train.py prepare_training": f"{GPU} training in fp32",
    "zerotools/cli/job_views/describe_job.py ranks": "tests/cli/job_views/test_describe_job.py "
    "test_ranks_are_those_of_gpus_or_of_processors",
    "zerotools/cli/job_views/describe_job.py plan": "tests/cli/job_views/test_describe_job.py "
    "test_ranks_are_those_of_gpus_or_of_processors",
    "zerotools/jobs/doctor/python_and_compilers.py _gpu_build": "tests/jobs/doctor/"
    "test_python_and_compilers.py test_what_an_interpreter_has",
    "zerotools/jobs/preflight/async_io.py why_no_async_io": f"{OF_ADMISSION}/"
    "test_interpreter_check.py test_offload_to_nvme_needs_what_async_io_is_compiled_with",
    "zerotools/jobs/preflight/deepspeed_config_check.py deepspeed_refusal": f"{OF_TRAINER}/"
    "engine_deepspeed/test_setup_deepspeed.py "
    "test_an_optimizer_that_needs_nvcc_is_refused_at_submit",
    "zerotools/jobs/jobfile_tables/spec.py check_ranks": "tests/jobs/jobfile/test_parse.py "
    "test_a_refusal_names_the_key_the_value_and_what_is_allowed",
    "zerotools/public/estimate_memory.py estimated_job": "tests/public/test_estimate_memory.py "
    "test_a_job_file_says_how_it_is_trained",
    "daemon/zerotoolsd/attempts/launcher_command.py _accelerate": f"{OF_ATTEMPTS}/"
    "test_launcher_command.py test_launchers_are_told_how_many_ranks_and_on_which_gpus",
    "daemon/zerotoolsd/attempts/choose_numa_binding.py bind_ranks": f"{OF_ATTEMPTS}/"
    "test_choose_numa_binding.py test_a_rank_has_all_processors_of_the_node_of_its_gpu",
    "daemon/zerotoolsd/attempts/make_attempt_plan.py rank_environment": f"{OF_ATTEMPTS}/"
    "test_prepare_run_directory.py test_ranks_on_gpus_see_those_of_the_attempt",
    "daemon/zerotoolsd/queue/request_from_job_file.py need_of": "tests/daemon/queue/"
    "test_schedule_queued_jobs.py "
    "test_a_job_that_made_room_on_a_gpu_in_vain_does_not_share_any_more",
    "daemon/zerotoolsd/queue/schedule_queued_jobs.py QueuePlacement._used_by": ""
    "tests/daemon/dispatch/test_gpu_memory_guard.py "
    "test_nothing_more_is_placed_on_a_gpu_while_its_memory_runs_out",
    "daemon/zerotoolsd/service/admission/interpreter_check.py needs_of": f"{OF_ADMISSION}/"
    "test_interpreter_check.py test_an_accelerate_that_starts_one_process_for_two_gpus_is_refused",
    "daemon/zerotoolsd/slurm/runner/node.py gpus_of": "tests/daemon/slurm/runner/test_node.py "
    "test_the_gpus_are_those_that_slurm_gave",
    f"{TRAINER}/engine_deepspeed/setup_deepspeed.py import_deepspeed": f"{GPU} DeepSpeed",
    f"{TRAINER}/engine_deepspeed/setup_deepspeed.py _not_built": f"{OF_TRAINER}/"
    "engine_deepspeed/test_setup_deepspeed.py test_without_nvcc_torchs_adam_serves_on_gpus",
    f"{TRAINER}/model/sharding.py sum_gradients": f"{OF_TRAINER}/model/"
    "test_sharding.py test_gradients_are_added_up_where_an_average_of_the_backend_is_wrong",
    "zerotools/cli/options/submission_options.py SlurmOptions.applied": "tests/cli/options/"
    "test_submission_options.py test_options_change_the_job_file_of_a_job_for_slurm",
    "zerotools/jobs/imports/reading/batch_size.py ranks_key": "tests/jobs/imports/reading/"
    "test_batch_size.py test_tensor_ranks_share_their_sequences",
    "zerotools/jobs/imports/script_job.py _keys": "tests/cli/commands/test_import_config.py "
    "test_as_script_the_program_runs_with_its_launcher_and_a_repaired_config",
    "zerotools/jobs/jobfile/derive_evaluation_job.py _options": "tests/jobs/jobfile/"
    "test_derive_evaluation_job.py "
    "test_it_takes_the_surroundings_and_one_rank_of_the_job_that_it_evaluates",
    f"{TABLES}/elastic_world_sizes.py _with_ranks": f"{OF_TABLES}/test_elastic_world_sizes.py "
    "test_a_pass_has_no_more_sequences_than_at_the_largest_size",
    **{
        f"{TABLES}/{function}": "tests/jobs/slurm/test_submit_to_slurm.py "
        "test_gpus_are_those_of_each_node"
        for function in (
            "elastic_world_sizes.py check_sizes",
            "job_rules.py _check_attention",
            "job_rules.py _check_nodes",
            "job_rules.py _check_supported",
            "memory.py check_memory",
            "job_for_each_node.py check_backend",
            "spec.py JobSpec.size_range",
            "spec.py JobSpec.world_size",
        )
    },
    **{
        f"{TABLES}/job_rules.py {function}": f"{OF_TABLES}/test_memory.py "
        "test_what_cannot_be_is_refused"
        for function in ("_check_adopted", "_check_launcher")
    },
    **{
        f"zerotools/jobs/memory_estimates/job_workload.py {function}": "tests/jobs/"
        "memory_estimates/test_training_estimate.py test_other_ranks_share_the_batch"
        for function in ("micro_batch_of", "with_ranks")
    },
    **{
        f"zerotools/jobs/slurm/submit_to_slurm.py {function}": "tests/jobs/slurm/"
        "test_submit_to_slurm.py test_gpus_are_those_of_each_node"
        for function in ("_gres", "_processors")
    },
}
"""Module and function, and the file and name of its test; or `harness.gpu` and its check."""


def asks(node: ast.AST, *, flags: bool) -> bool:
    """Whether an expression compares with a device, decides by ON_GPU, or uses a GPU of torch."""
    if flags and isinstance(node, ast.If | ast.IfExp | ast.BoolOp | ast.While):
        return _has_flag(node.test if not isinstance(node, ast.BoolOp) else node)
    if isinstance(node, ast.Compare | ast.MatchValue):
        named = {n.value for n in ast.walk(node) if isinstance(n, ast.Constant)}
        return DEVICE in named or ("cpu" in named and "device" in ast.unparse(node))
    if isinstance(node, ast.Attribute):
        return node.attr in OF_TENSORS or ast.unparse(node).startswith("torch.cuda.")
    if isinstance(node, ast.Call):
        return bool(node.args) and _is_device(node.args[0])
    return isinstance(node, ast.keyword) and node.arg == "device" and _is_device(node.value)


def _has_flag(node: ast.expr) -> bool:
    names = (n.id if isinstance(n, ast.Name) else getattr(n, "attr", "") for n in ast.walk(node))
    return not ON_GPU.isdisjoint(names)


def _is_device(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and str(node.value).partition(":")[0] == DEVICE


def found_in(node: ast.AST, name: str = "", *, flags: bool = True) -> Iterator[str]:
    """The functions below `node` that ask for CUDA."""
    for child in ast.iter_child_nodes(node):
        own = name
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            own = f"{name}.{child.name}".lstrip(".")
        if asks(child, flags=flags):
            yield name
        yield from found_in(child, own, flags=flags)


def all_found() -> set[str]:
    """Every such function of the product, with its module."""
    modules = {*ROOT.glob("zerotools/**/*.py"), *ROOT.glob("daemon/zerotoolsd/**/*.py")}
    modules -= {*ROOT.glob("zerotools/formats/**/*.py")}  # no device of theirs is the machine's
    texts = ((path, path.read_text("utf-8")) for path in modules)
    return {
        f"{path.relative_to(ROOT)} {name}"
        for path, text in texts
        if any(sign in text for sign in SIGNS)  # parsing all of them takes seconds
        for name in found_in(ast.parse(text), flags=path.is_relative_to(ROOT / "daemon"))
    }


def test_each_function_that_asks_for_cuda_is_in_the_table() -> None:
    assert all_found() == COVERED.keys()


def test_such_functions_are_found() -> None:
    source = """
class A:
    def b(self, d):
        return d.type == "cuda"
    def c(self, t):
        return t.is_cuda, t.device
def d():
    return torch.ones(1, device="cuda")
def e():
    return torch.cuda.device_count(), {"cuda": 1}
def f(x="cuda", on_gpu=True):
    return "cuda", f(on_gpu=on_gpu)
def g(on_gpu):
    return 1 if not on_gpu else 2
def h(machine):
    return machine.on_gpu and 1
def i(spec):
    return spec.device != "cpu", spec.tier == "cpu"
def j(spec):
    return spec.tier == "cpu", spec.name.upper("cuda_")
def k(device):
    match device.type:
        case "cuda":
            return 1
def l(tensor):
    return tensor.cuda()
def m(tensor):
    return tensor.to("cuda:1")
def n(on_gpus):
    while on_gpus:
        pass
"""
    assert "".join(sorted(set(found_in(ast.parse(source))))) == "A.bA.cdeghiklmn"


@pytest.mark.parametrize("place", COVERED.values())
def test_what_covers_it_exists(place: str) -> None:
    where, name = place.split(" ", 1)
    if where == GPU:
        from harness.gpu.looks import CHECKS

        assert name in CHECKS
        return
    tree = ast.parse((ROOT / where).read_text("utf-8"))
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}

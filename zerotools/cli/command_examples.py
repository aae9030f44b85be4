"""Examples at the end of each command's help; every line is a command that its options accept."""

from __future__ import annotations

from collections.abc import Mapping

EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "inspect": (
        "zerotools inspect output/checkpoint-2000",
        "zerotools inspect runs/tiny --tensors",
        "zerotools inspect zero3-run --tag global_step500 --json",
    ),
    "diff": (
        "zerotools diff zero3-run as-dcp",
        "zerotools diff zero3-run model --role param --tolerance cast",
        "zerotools diff run-a run-b --rename '^module\\.=' --tolerance abs=1e-6,rel=1e-3",
        "zerotools diff exported base-model --adapter adapter",
    ),
    "consolidate": (
        "zerotools consolidate output/checkpoint-2000 model",
        "zerotools consolidate zero3-run model --dtype bf16 --verify",
        "zerotools consolidate run.pt model --strip-prefix module.",
        "zerotools consolidate lora-run model --base llama-8b",
        "zerotools consolidate lora-run adapter --adapter-only",
        "zerotools consolidate zero3-run for-megatron --map-to megatron",
    ),
    "reshard": (
        "zerotools reshard runs/tiny for-three --world-size 3",
        "zerotools reshard zero2-run zero3-run --world-size 8 --stage 3",
    ),
    "convert": (
        "zerotools convert zero3-run as-dcp --to dcp",
        "zerotools convert runs/tiny universal --to universal --dry-run",
    ),
    "maps": (
        "zerotools maps list",
        "zerotools maps show llama --config model/config.json",
        "zerotools maps check llama zero3-run --config model/config.json",
    ),
    "verify": (
        "zerotools verify runs/tiny",
        "zerotools verify zero3-run --fast",
    ),
    "serve": (
        "zerotools serve runs/tiny",
        "zerotools serve zero3-run --dtype bf16 --listen 127.0.0.1:8080 --name tiny",
    ),
    "salvage": (
        "zerotools salvage zero3-run model --dry-run",
        "zerotools salvage zero3-run model --fill-from runs/tiny",
    ),
    "thin": (
        "zerotools thin zero3-run/global_step500",
        "zerotools thin output --keep-last 2 --drop-masters --yes",
        "zerotools thin output --older-than 30d --keep-every 1000 --yes",
    ),
    "gather": (
        "zerotools gather node1:/local/run node2:/local/run whole",
        "zerotools gather /local/run node2:/local/run whole --tag global_step500 --dry-run",
        "zerotools gather ssh://ada@node1:2222/local/run node2:run whole --fast",
    ),
    "init": (
        "zerotools init",
        "zerotools init --yes --model runs/tiny --data corpus -o job.toml",
    ),
    "estimate": (
        "zerotools estimate 7B --gpus 8 --gpu-memory 80GiB --host-memory 512GiB",
        "zerotools estimate runs/tiny --gpus 2 --sequence-length 2048 --batch 4",
        "zerotools estimate job.toml --json",
        "zerotools estimate model --deepspeed ds_config.json --batch 2 --gpus 4",
    ),
    "import": (
        "zerotools import --deepspeed ds_config.json",
        "zerotools import base.toml --accelerate default_config.yaml -o job.toml",
        "zerotools import --launch run.sh -o job.toml",
    ),
    "submit": (
        "zerotools submit --follow job.toml",
        "zerotools submit job.toml --priority 5",
        "zerotools submit job.toml --sweep train.learning_rate=1e-4,3e-4 --sweep train.seed=1,2",
        "zerotools submit second.toml --after first --begin 22:30",
        "zerotools submit first.toml second.toml",
        "zerotools submit job.toml --deepspeed ds_config.json --dry-run",
    ),
    "queue": (
        "zerotools queue",
        "zerotools queue --all --limit 20",
        "zerotools queue --all --named tiny",
        "zerotools queue --mine",
    ),
    "show": (
        "zerotools show",
        "zerotools show 7 --plot",
        "zerotools show tiny wide --plot -o loss.png",
    ),
    "explain": ("zerotools explain", "zerotools explain 7 --json"),
    "shares": ("zerotools shares", "zerotools shares --json"),
    "logs": ("zerotools logs -f", "zerotools logs 7 --tail 50 --rank all"),
    "cancel": ("zerotools cancel 7", "zerotools cancel @7", "zerotools cancel tiny wide --wait"),
    "priority": ("zerotools priority tiny 5", "zerotools priority 7 -3"),
    "hold": ("zerotools hold 7", "zerotools hold @7 tiny --wait"),
    "release": ("zerotools release 7",),
    "edit": (
        "zerotools edit 7",
        "zerotools edit tiny --set train.steps=80 --unset time_limit",
        "zerotools edit tiny --begin 22:30",
    ),
    "retry": (
        "zerotools retry tiny",
        "zerotools retry 7 --from-start",
        "zerotools retry tiny --from-start --output-dir runs/tiny-again",
    ),
    "adopt": (
        "zerotools adopt 81234",
        "zerotools adopt 81234 --time-limit 12h --checkpoint-dir runs/tiny",
    ),
    "wait": ("zerotools wait 7 8", "zerotools wait tiny wide --any --timeout 2h"),
    "clean": (
        "zerotools clean --older-than 30d --dry-run",
        "zerotools clean --outputs 12",
    ),
    "backup": ("zerotools backup /backups/queue-friday.db",),
    "restore": (
        "zerotools restore /backups/queue-friday.db",
        "zerotools restore queue-friday.db --release",
    ),
    "monitor": (
        "zerotools monitor",
        "zerotools monitor --once --json",
        "zerotools monitor --history 6h",
        "zerotools monitor --peaks",
    ),
    "top": ("zerotools top", "zerotools top --interval 5"),
    "web": ("zerotools web", "zerotools web --open", "zerotools web --end"),
    "drain": ("zerotools drain", "zerotools drain --why 'new driver at 18:00'"),
    "undrain": ("zerotools undrain",),
    "doctor": ("zerotools doctor", "zerotools doctor --python /opt/train/bin/python"),
    "chaos": ("zerotools chaos", "zerotools chaos --minutes 10 --directory /data --seed 7"),
    "help": ("zerotools help", "zerotools help install", "zerotools help numa --json"),
}


def epilog(name: str, *, is_on_jobs: bool) -> str | None:
    """Return the end of a command's help page in click's form, or None: the effect of a verb on
    each kind of job, and examples."""
    lines = EXAMPLES.get(name)
    if lines is None:
        return None
    words = ""
    if is_on_jobs:
        from zerotools.jobs import job_words  # commands on checkpoints do not load zerotools.jobs

        words = f"\b\n{job_words.help_of(name)}\n\n" if name in job_words.VERBS else ""
    return words + "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)

"""The whole job file as one frozen dataclass, `JobSpec`, with a description of each key.

The dataclasses are the schema. `key(...)` gives each field its description, its bounds and its
allowed values. The parser (`zerotools.jobs.jobfile.parse`) and `docs/reference/job-file.md` are
derived from them, so a key exists only if it is declared here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from zerotools.jobs.binding.bind import format_value
from zerotools.jobs.binding.declaration import key
from zerotools.jobs.binding.durations import seconds_of
from zerotools.jobs.jobfile_tables.checkpoint import CheckpointSpec
from zerotools.jobs.jobfile_tables.data import DataSpec
from zerotools.jobs.jobfile_tables.deepspeed import DeepSpeedSpec
from zerotools.jobs.jobfile_tables.dpo import DpoSpec
from zerotools.jobs.jobfile_tables.eval import EvalSpec
from zerotools.jobs.jobfile_tables.fp16 import Fp16Spec
from zerotools.jobs.jobfile_tables.limits import LimitsSpec
from zerotools.jobs.jobfile_tables.lora import LoraSpec
from zerotools.jobs.jobfile_tables.memory import MemorySpec
from zerotools.jobs.jobfile_tables.metrics import MetricsSpec
from zerotools.jobs.jobfile_tables.model import ModelSpec
from zerotools.jobs.jobfile_tables.notify import NotifySpec
from zerotools.jobs.jobfile_tables.offload import OffloadSpec
from zerotools.jobs.jobfile_tables.rendezvous import RendezvousSpec
from zerotools.jobs.jobfile_tables.script import ScriptSpec
from zerotools.jobs.jobfile_tables.slurm import SlurmSpec
from zerotools.jobs.jobfile_tables.stall import StallSpec
from zerotools.jobs.jobfile_tables.train import TrainSpec
from zerotools.jobs.jobfile_tables.zero import ZeroSpec
from zerotools.jobs.text.exec_limits import too_long

ENGINES = ("torch", "deepspeed", "script")
DEVICES = ("cuda", "cpu")
LOCAL, SLURM = "local", "slurm"
"""The values of `backend`."""
ALWAYS = "always"
NUMA_AUTO, NUMA_CORES, NUMA_OFF = "auto", "cores", "off"
"""The values of `numa`."""
RESERVED_ENV = frozenset(
    {
        "CUDA_DEVICE_ORDER",
        "CUDA_VISIBLE_DEVICES",
        "GROUP_RANK",
        "GROUP_WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "RANK",
        "WORLD_SIZE",
        "ZEROTOOLS_DATA_CACHE",
        "ZEROTOOLS_DATA_CACHE_BYTES",
        "ZEROTOOLS_MODEL",
        "ZEROTOOLS_NOTIFY",
        "ZEROTOOLS_OUTPUT_DIR",
        "ZEROTOOLS_PULSE",
        "ZEROTOOLS_RESUME_FROM",
        "ZEROTOOLS_RUN_DIR",
        "ZEROTOOLS_SAVED_STEP",
        "ZEROTOOLS_TOKEN",
    }
)
"""Environment variables that the daemon sets for each rank, so a job file must not set them."""

FP16_ON_CPU = "ZEROTOOLS_FP16_ON_CPU"
"""An environment variable.

If a job sets it to "1" in `env`, the job may train in fp16 on CPUs, for tests and recipes.
"""


MOST_RANKS = 1024
"""The upper bound for the number of ranks on a machine: no machine has as many GPUs, or CPU
cores for ranks.
"""


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """One training job. Every key has a valid value, and every path is absolute."""

    name: str | None = key(
        "A name for people to read; default: the job file's name without its extension.",
        default=None,
        imported=False,
    )
    engine: str = key(
        'The engine that trains the model: `"torch"`, `"deepspeed"` (configured by '
        'DeepSpeed\'s configuration), or `"script"`, your program.',
        default="torch",
        allowed=ENGINES,
        imported=False,
    )
    backend: str = key(
        'The machines that run the job: `"local"`, the machine of the daemon; `"slurm"`, the '
        "nodes of a cluster, with the options of `[slurm]`.",
        default=LOCAL,
        stored_default=LOCAL,
        allowed=(LOCAL, SLURM),
        imported=False,
    )
    python: str | None = key(
        "The Python interpreter of the ranks. It must have torch and transformers, or the "
        "packages that a script imports. Default: the interpreter of the daemon.",
        default=None,
        path=True,
        imported=False,
    )
    device: str = key(
        "The devices of the ranks.", default="cuda", allowed=DEVICES, accelerate="use_cpu"
    )
    gpus: int | tuple[int | str, ...] | SizeRange | None = key(
        'GPUs of a `device = "cuda"` job, one rank each: a number, a list of indices or '
        "UUIDs, or `{min = 2, max = 8}`: an [elastic job](../how-to/elastic-jobs.md), which "
        "takes the GPUs that are free. Default 1.",
        default=None,
        accelerate="num_processes",
    )
    ranks: int | SizeRange | None = key(
        'Ranks of a `device = "cpu"` job: a number, or `{min = 1, max = 4}`; default 1.',
        default=None,
        minimum=1,
        accelerate="num_processes",
    )
    seed: int = key(
        "The seed of initial weights, data order and dropout.",
        default=0,
        minimum=0,
        maximum=2**63 - 1,
        imported=False,
    )
    output_dir: str | None = key(
        "The directory of the checkpoints; default: a directory for this job in the daemon's "
        "state directory.",
        default=None,
        path=True,
        imported=False,
    )
    resume_from: str | None = key(
        "The checkpoint from which the run resumes: a job's checkpoint (`step-…`), a job's output "
        "directory (its newest intact checkpoint), or a checkpoint of another program with its "
        "optimizer state (DeepSpeed, FSDP, accelerate, the Hugging Face Trainer). A script finds "
        "the path in `ZEROTOOLS_RESUME_FROM`. A job's checkpoint may be [in an object "
        "store](../how-to/object-stores.md#checkpoints-of-a-job): `s3://bucket/run`.",
        default=None,
        path=True,
        url=True,
        imported=False,
    )
    resume_order: str | None = key(
        "The order of the parameters in the optimizer, if the optimizer state in `resume_from` "
        "numbers parameters instead of naming them (checkpoints of other programs). `model`: the "
        "order of the model. Otherwise the path of a file that lists their names in the order of "
        "the optimizer, one per line, with an empty line between param groups.",
        default=None,
        stored_default="model",
        path=True,
        words=("model",),
        imported=False,
    )
    max_restarts: int = key(
        "How many times the job is restarted after a crash. Only crashes in a row without "
        "progress count: progress resets the count to 0.",
        default=3,
        minimum=0,
        imported=False,
    )
    retry: str = key(
        'The crashes after which the job is restarted. `"always"`: every crash, up to '
        '`max_restarts`. `"auto"`: the same, but not after a crash that would happen again. '
        "Such crashes are: wrong arguments of the program (exit status 2), a program that cannot "
        "be run (126, 127), an error in its code at the start (SyntaxError, ImportError, "
        "NameError, TypeError, ...), and two attempts in a row with the same error at the same "
        "step.",
        default="auto",
        stored_default=ALWAYS,
        allowed=("auto", ALWAYS),
        imported=False,
    )
    time_limit: int | str | None = key(
        "How long the job may run, not counting time in the queue: seconds, or text such as "
        '`"2h"` or `"1d12h"`. Then it saves at its next step and stops (a script gets SIGTERM); '
        "`zerotools retry` continues it. A job with a limit may run on GPUs that are reserved for "
        "a larger job, if it ends in time.",
        default=None,
        imported=False,
    )
    numa: str = key(
        "On a machine with several memory nodes (NUMA): `auto` runs each rank on the "
        "processors of its GPU's node, and allocates its memory there while the node has free "
        "memory. `cores` also gives each rank separate cores of that node. `off` leaves both "
        "to the kernel. See [keep ranks next to their GPU](../how-to/numa.md).",
        default=NUMA_AUTO,
        stored_default=NUMA_OFF,
        allowed=(NUMA_AUTO, NUMA_CORES, NUMA_OFF),
        accelerate="enable_cpu_affinity",
    )
    env: Mapping[str, str] = key(
        "Environment variables of the ranks. Values are never shown.", factory=dict, imported=False
    )
    captured_env: Mapping[str, str] | None = key(
        "Environment variables of the shell that submitted the job; `zerotools submit` fills "
        "them in. Without this key the ranks get only PATH, HOME and LANG. `[env]` overrides "
        "it.",
        default=None,
        stored_default=None,
        imported=False,
    )
    script: ScriptSpec = key(
        'Your training program, for `engine = "script"`.',
        factory=lambda: ScriptSpec(command=()),
        imported=False,
    )
    model: ModelSpec = key("The model to train.", factory=ModelSpec, imported=False)
    data: DataSpec = key("The training data.", factory=DataSpec, imported=False)
    train: TrainSpec = key("The optimisation.", factory=lambda: TrainSpec(batch_size=1))
    fp16: Fp16Spec = key("How fp16 training scales its loss.", factory=Fp16Spec)
    zero: ZeroSpec = key(
        "The parts of the training state that are sharded over the ranks (ZeRO).", factory=ZeroSpec
    )
    lora: LoraSpec = key(
        "Adapters to train instead of the weights.", factory=LoraSpec, imported=False
    )
    dpo: DpoSpec = key(
        "How preferences are learned.", factory=DpoSpec, engine="torch", imported=False
    )
    eval: EvalSpec = key("How the model is evaluated.", factory=EvalSpec, imported=False)
    offload: OffloadSpec = key(
        "The parts of the training state that are kept in host memory or on disk.",
        factory=OffloadSpec,
        engine="torch",
    )
    checkpoint: CheckpointSpec = key(
        "When checkpoints are written.", factory=CheckpointSpec, imported=False
    )
    deepspeed: DeepSpeedSpec = key("DeepSpeed's own configuration.", factory=DeepSpeedSpec)
    metrics: MetricsSpec = key("The values that are recorded at every step.", factory=MetricsSpec)
    limits: LimitsSpec = key(
        "Limits on the job's use of the machine.", factory=LimitsSpec, imported=False
    )
    memory: MemorySpec = key(
        "Memory that the job will use, so that other jobs can share its GPUs and the host.",
        factory=MemorySpec,
        imported=False,
    )
    stall: StallSpec = key(
        "The reaction to ranks that make no progress.", factory=StallSpec, imported=False
    )
    rendezvous: RendezvousSpec = key(
        "Other machines that train the job together with this one.",
        factory=RendezvousSpec,
        imported=False,
    )
    slurm: SlurmSpec = key(
        'The resources that a job with `backend = "slurm"` requests from the cluster.',
        factory=SlurmSpec,
        imported=False,
    )
    notify: NotifySpec = key(
        "Notifications about changes of the job.", factory=NotifySpec, imported=False
    )
    given: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)
    """The tree from which the job was parsed; it is not a key.

    Keys that are not in this tree have their defaults.
    """

    @property
    def stage(self) -> int | None:
        """The ZeRO stage; None for the user's own program, because the program itself
        chooses it.
        """
        return None if self.engine == "script" else self.zero.stage

    @property
    def size_range(self) -> SizeRange | None:
        """The smallest and the largest world size of an elastic job; None for other jobs."""
        wanted = self.ranks if self.device == "cpu" else self.gpus
        return wanted if isinstance(wanted, SizeRange) else None

    @property
    def sizes(self) -> tuple[int, ...]:
        """The world sizes that the job may have, in ascending order.

        For an elastic job, these are the sizes in its range that divide its batch; empty if no size
        divides the batch.
        """
        wanted = self.size_range
        if wanted is None:
            return (self.world_size,)
        train, zero = self.train, self.zero
        return wanted.sizes(
            train.batch_size, train.micro_batch_size, zero.shard_size, zero.same_data_ranks
        )

    @property
    def all_ranks(self) -> int:
        """The number of ranks on all nodes together. Under Slurm, it is the number for the fewest
        nodes that the job may get.
        """
        return self.world_size * self.fewest_nodes

    @property
    def data_ranks(self) -> int:
        """The number of parts into which the sequences of a step are divided.

        A group of ranks that compute the same sequences together gets one part.
        """
        return max(1, self.all_ranks // self.zero.same_data_ranks)

    @property
    def fewest_nodes(self) -> int:
        """The smallest number of machines on which the job can be trained."""
        return self.slurm.node_counts[0] if self.backend == SLURM else self.rendezvous.nodes

    @property
    def world_size(self) -> int:
        """The number of ranks on this machine.

        For an elastic job, this is the minimum of its range.
        """
        wanted = self.ranks if self.device == "cpu" else self.gpus
        if wanted is None:
            return 1
        if isinstance(wanted, SizeRange):
            return max(1, wanted.min)
        return wanted if isinstance(wanted, int) else len(wanted)


def with_key(spec: JobSpec, table: str, **values: Any) -> JobSpec:
    """Return a copy of `spec` in which the keys in `values` of the table `table` are set, as if the
    job file had set them.
    """
    given = None
    if spec.given is not None:
        given = {**spec.given, table: {**spec.given.get(table, {}), **values}}
    changed: dict[str, Any] = {table: replace(getattr(spec, table), **values)}
    return replace(spec, **changed, given=given)


def check_ranks(spec: JobSpec) -> Iterator[str]:
    """Yield the problems with `gpus` and `ranks`."""
    if spec.device == "cpu" and spec.gpus is not None:
        yield (
            f'gpus = {format_value(spec.gpus)}: cannot be used in a device = "cpu" job; '
            "set ranks instead"
        )
    if spec.device == "cuda" and spec.ranks is not None:
        yield (
            f'ranks = {spec.ranks}: cannot be used in a device = "cuda" job; set gpus instead, or '
            'device = "cpu"'
        )
    if isinstance(spec.gpus, int) and spec.gpus < 1:
        yield f"gpus = {spec.gpus}: must be at least 1"
    if isinstance(spec.gpus, tuple):
        yield from _check_gpu_list(spec.gpus)


def _check_gpu_list(gpus: tuple[int | str, ...]) -> Iterator[str]:
    if not gpus:
        yield "gpus = []: must name at least one GPU"
    if len(set(gpus)) != len(gpus):
        yield f"gpus = {format_value(gpus)}: names a GPU twice"
    for gpu in gpus:
        if isinstance(gpu, int) and gpu < 0:
            yield f"gpus = {format_value(gpus)}: an index must be at least 0, not {gpu}"
        if isinstance(gpu, str) and not gpu.startswith("GPU-"):
            yield (
                f"gpus = {format_value(gpus)}: {format_value(gpu)} is not a UUID; a UUID starts "
                'with "GPU-"'
            )


def check_time_limit(spec: JobSpec) -> Iterator[str]:
    """Yield the problems with `time_limit`."""
    if spec.time_limit is not None:
        try:
            seconds_of(spec.time_limit)
        except ValueError as error:
            yield f"time_limit = {format_value(spec.time_limit)}: {error}"


_REFERENCE = re.compile(r"[1-9][0-9]*\Z|@|slurm:")


def is_reference(name: str) -> bool:
    """Return whether commands would take `name` for a number: `12`, `@7` or `slurm:4711`."""
    return _REFERENCE.match(name) is not None


def check_names(spec: JobSpec) -> Iterator[str]:
    """Yield the problems with `name`, `env` and `captured_env`."""
    if spec.name is not None and not (spec.name.isprintable() and 0 < len(spec.name) <= 200):
        yield f"name = {format_value(spec.name)}: must be 1 to 200 printable characters"
    if spec.name is not None and is_reference(spec.name):
        yield (
            f"name = {format_value(spec.name)}: commands would take it for the number of a job or "
            "an array; add a letter in front"
        )
    yield from _check_variables("env", spec.env)
    yield from _check_variables("captured_env", spec.captured_env or {})


def _check_variables(table: str, variables: Mapping[str, str]) -> Iterator[str]:
    for name, value in variables.items():
        if not name or "=" in name:
            yield (
                f"{table}.{format_value(name, bare=True)}: is not a name for an environment "
                "variable"
            )
        elif name in RESERVED_ENV:
            yield f"{table}.{name}: is set by the daemon for each rank; leave it out"
        elif (why := too_long(value, name)) is not None:
            yield f"{table}.{format_value(name, bare=True)}: is too long: {why}"


@dataclass(frozen=True, kw_only=True)
class SizeRange:
    """The smallest and the largest number of ranks of an elastic job."""

    min: int = key(
        "The smallest number of ranks: the job waits until it can have this many.", imported=False
    )
    max: int = key("The largest number of ranks.", imported=False)

    def __str__(self) -> str:
        """Return the range as it is written in a job file."""
        return f"{{min = {self.min}, max = {self.max}}}"

    def sizes(
        self, batch: int, micro: int | None, shard: int | None, together: int = 1
    ) -> tuple[int, ...]:
        """Return the possible world sizes in this range, in ascending order: those that divide the
        batch.

        `batch` is the number of sequences in a step, and `micro` the number in a forward pass.
        `shard` ranks share one copy of the weights, and `together` ranks compute the same
        sequences.
        """
        found = range(max(1, self.min), min(self.max, batch * together, MOST_RANKS) + 1)
        return tuple(
            size
            for size in found
            if not (size % together or size % (shard or 1))
            and not (batch % (size // together) or (batch * together // size) % (micro or 1))
        )

"""The tables of `zerotoolsd.toml`, each as a dataclass, except `[users]` and `[notify]`. All keys
have defaults.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from zerotools.core.counts_and_sizes import bytes_of
from zerotools.jobs.binding.bind import format_value
from zerotools.jobs.binding.declaration import key
from zerotools.jobs.binding.durations import seconds_of
from zerotools.jobs.priority_range import LEAST_PRIORITY, MOST_PRIORITY
from zerotools.sensors.cgroup_allowance import usable_cores
from zerotools.sensors.foreign_gpu_memory import USUAL_WORDS, usual_foreign_bytes
from zerotools.sensors.snapshot import Gpu


@dataclass(frozen=True, kw_only=True)
class ElasticConfig:
    """`[elastic]`: when a running job with a range of GPUs gets more GPUs; see [let a job take the
    GPUs that are free](../how-to/elastic-jobs.md).
    """

    grow: bool = key(
        "Running elastic jobs save and continue with more GPUs, or CPU ranks, if these are "
        "free and no queued job can use them. false: a job keeps the size with which it "
        "started.",
        default=True,
    )
    after_seconds: float = key(
        "An attempt keeps its size at least this long.", default=300.0, minimum=0
    )
    gain: float = key(
        "A job grows if the saved time is at least this many times the cost of the change.",
        default=5.0,
        minimum=1,
    )
    change_seconds: float = key(
        "Assumed cost of a change of size, until a change of this job has been measured.",
        default=60.0,
        minimum=0,
    )


LEAST_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class HistoryConfig:
    """`[history]`: memory and load of GPUs, host and jobs over time, for `monitor --history`; see
    [watch the machine](../how-to/watch-the-machine.md)."""

    enabled: bool = key(
        "Keep the history, in `history.sqlite3` of the state directory: a sample per second for an "
        "hour, per 10 s for a day, per minute for 30 days, per 10 minutes for a year, and the "
        "peaks of every attempt forever.",
        default=True,
    )
    seconds: float = key(
        "Time between two samples while jobs run; ten times as long while no job runs.",
        default=1.0,
        minimum=0.1,
    )
    most_bytes: int | str = key(
        "Largest size of the file, at least 1 MiB: bytes, or text such as "
        '`"64MiB"`. The oldest samples are removed.',
        default="64MiB",
    )


def wrong_history(config: HistoryConfig) -> Iterator[str]:
    """Yield a sentence for each error in `[history]`."""
    where = f"history.most_bytes = {format_value(config.most_bytes)}"
    try:
        if bytes_of(config.most_bytes) < LEAST_BYTES:
            yield f"{where}: must be at least 1MiB"
    except ValueError as error:
        yield f"{where}: {error}"


@dataclass(frozen=True, kw_only=True)
class PreemptionConfig:
    """`[preemption]`: whether running jobs yield to jobs of higher priority; see [let urgent jobs
    go first](../how-to/preemption.md)."""

    enabled: bool = key(
        "Running jobs save, stop and wait if a job of a higher priority needs their GPUs or "
        "memory. They continue later, and this does not count as a restart.",
        default=False,
    )
    among: str = key(
        '`"all"`: the jobs of every user. `"own"`: only jobs of the same user as the waiting job.',
        default="all",
        allowed=("all", "own"),
    )
    after_seconds: float = key(
        "An attempt runs at least this long before it may be stopped.", default=60.0, minimum=0
    )


NOTHING, WAIT, SAVE, STOP = "nothing", "wait", "save", "stop"


@dataclass(frozen=True, kw_only=True)
class PressureConfig:
    """`[pressure]`: what the daemon does before the memory of the host or of a shared GPU is used
    up; see [when memory runs out](../how-to/when-memory-runs-out.md).
    """

    most: str = key(
        'The strongest action of the daemon. `"nothing"`: it only watches. `"wait"`: no job '
        'starts; if memory of a GPU is short, no job starts on this GPU. `"save"`: the job of '
        "lowest value, or the one that holds more of the GPU than it declared, saves and stops. "
        'It continues later, and this does not count as a restart. `"stop"`: if saving would '
        "take too long, the job ends at once and continues from its last checkpoint.",
        default=WAIT,
        allowed=(NOTHING, WAIT, SAVE, STOP),
    )
    seconds: float = key(
        "Time between two checks of the host's memory while jobs run; for GPUs at least a second.",
        default=0.5,
        minimum=0.1,
    )


@dataclass(frozen=True, kw_only=True)
class WarmStartConfig:
    """`[warm_start]`: processes that import torch before a job of the built-in trainer needs it;
    see [start jobs without waiting for imports](../how-to/warm-start.md).
    """

    enabled: bool = key(
        "Keep one process per Python environment with torch and transformers imported, and "
        "fork the ranks of later jobs from it.",
        default=False,
    )
    servers: int = key(
        "Largest number of these processes. The least recently used one ends if another is needed.",
        default=2,
        minimum=1,
    )
    idle: int | str = key(
        'End a process that no job has used for this long: seconds, or text such as `"30m"`.',
        default="30m",
    )
    memory: int | str = key(
        'End a process that holds more memory than this: bytes, or text such as `"2GiB"`.',
        default="2GiB",
    )


def wrong_warm_start(config: WarmStartConfig) -> Iterator[str]:
    """Yield a sentence for each error in `[warm_start]`."""
    for name, value, read in (
        ("idle", config.idle, seconds_of),
        ("memory", config.memory, bytes_of),
    ):
        try:
            read(value)
        except ValueError as error:
            yield f"warm_start.{name} = {format_value(value)}: {error}"


@dataclass(frozen=True, kw_only=True)
class WebConfig:
    """`[web]`: the page for browsers, to which `zerotools web` gives a link; see [see the queue in
    a browser](../how-to/see-the-queue-in-a-browser.md).
    """

    enabled: bool = key(
        "Whether to serve the page. Its port opens when a user first requests a link.", default=True
    )
    port: int | None = key(
        "The port at 127.0.0.1. Not set: a free port from 8730 to 8793. If the daemon runs as "
        "root: a port from 954 to 988, which no other user can take while the daemon is stopped.",
        default=None,
        minimum=1,
        maximum=65535,
    )
    session: int | str = key(
        "A browser needs a new link if it sent no request for this long: seconds, or text "
        'such as `"12h"`.',
        default="12h",
    )


def wrong_web(config: WebConfig) -> Iterator[str]:
    """Yield a sentence for each error in `[web]`."""
    where = f"web.session = {format_value(config.session)}"
    try:
        if seconds_of(config.session) < 60:
            yield f"{where}: must be at least 60 s"
    except ValueError as error:
        yield f"{where}: {error}"


@dataclass(frozen=True, kw_only=True)
class LimitsConfig:
    """`[limits]`: how much of the machine jobs may use."""

    cpu_ranks: int = key(
        'Largest number of ranks of all running `device = "cpu"` jobs together.',
        factory=usable_cores,
        shown="the cores that the daemon may use",
        minimum=0,
    )
    foreign_memory_bytes: int | None = key(
        "A GPU is not used while other programs hold more memory on it than this, or while a "
        "finished job has left more than this. Programs that only draw on a screen, such as a "
        "desktop, do not count.",
        default=None,
        shown=USUAL_WORDS,
        minimum=0,
    )
    use_unmeasured_gpus: bool = key(
        "Also use GPUs for which the driver does not report memory or processes (integrated GPUs "
        "such as GB10, vGPU, WSL). The daemon cannot see whether other programs use such a GPU.",
        default=False,
    )
    snapshot_age_seconds: float = key(
        "No job starts on GPUs that were last seen longer ago than this.", default=30.0, above=0
    )
    cgroups: bool = key(
        "Put the processes of each attempt into a control group, which no process can leave, if "
        "the daemon may make one. Jobs with `[limits]` always have one.",
        default=True,
    )
    job_memory: int | str | None = key(
        "Limit on the host memory of a job that sets no `limits.memory`, and the largest value "
        'that a job may set: bytes, or text such as `"64GiB"`. Not set: no limit.',
        default=None,
    )
    host_memory: int | str | None = key(
        "Host memory that running jobs may declare together (`memory.host`): bytes, or text such "
        'as `"400GiB"`. Not set: nine tenths of the memory of the machine.',
        default=None,
    )
    job_processes: int | None = key(
        "Limit on the processes and threads of a job that sets no `limits.processes`, and the "
        "largest value that a job may set. Not set: no limit.",
        default=None,
        minimum=1,
    )
    log_bytes: int = key(
        "Bytes of one rank's log that are kept from its start; the last 64 KiB are kept too.",
        default=64 * 2**20,
        minimum=2**16,
    )

    def foreign_on(self, gpu: Gpu) -> int:
        """Return the memory of the GPU, in bytes, that programs other than jobs may use."""
        usual = usual_foreign_bytes(gpu)
        return usual if self.foreign_memory_bytes is None else self.foreign_memory_bytes


@dataclass(frozen=True, kw_only=True)
class GpusConfig:
    """`[gpus]`: how jobs share GPUs, and how this daemon shares them with other programs."""

    context_memory: int | str = key(
        "Memory of a GPU that is set aside for the CUDA context and the libraries of each job that "
        'declares `memory.per_gpu`: bytes, or text such as `"512MiB"`.',
        default="1400MiB",
    )
    end_over_declared: bool = key(
        "Cancel jobs that use more memory of a GPU than they declared; false: only report this "
        "in `queue` and in an event.",
        default=False,
    )
    idle_seconds: float = key(
        "A job is shown as idle in `queue` and in an event if the driver reported its GPUs as "
        "idle for this long; 0: never.",
        default=1800.0,
        minimum=0,
    )
    stop_idle: bool = key(
        "Also ask an idle job to save and stop for good; false: it continues.", default=False
    )
    exclude: tuple[int | str, ...] = key(
        "GPUs that jobs do not use: indexes as `nvidia-smi` shows them, UUIDs, or names of a model "
        '(`[0, "NVIDIA T400"]`). A job that already runs there continues.',
        default=(),
    )
    prefer: tuple[int | str, ...] = key(
        "GPUs that jobs get first, in this order, with entries as in `exclude`. A job that names "
        "its GPUs gets those.",
        default=(),
    )
    locks: str = key(
        "The directory of the GPUs' locks, which keep the daemons of several users apart: "
        "owned by root, mode 1777. Without it, only NVML shows the GPUs that others use, and "
        '`zerotools doctor` warns. `""`: no locks.',
        default="/run/zerotools/gpus",
    )


@dataclass(frozen=True, kw_only=True)
class SharesConfig:
    """`[shares]`: which user comes first when jobs of several users wait for GPUs."""

    fair: bool = key(
        "Among jobs of equal priority, the user with the least GPU use relative to the weight "
        "comes first; false: the oldest job starts first.",
        default=True,
    )
    half_life: int | str = key(
        'GPU time of this age counts half: seconds, or text such as `"7d"`.', default="7d"
    )
    weights: Mapping[str, float] = key(
        'The shares of users as weights: of a user (`"alice" = 2.0`, or uid `"1000"`), each member '
        'of a group (`"@lab" = 1.5`), or of all others (`"*" = 1.0`, which is the default). The '
        "entry of a user overrides those of groups.",
        factory=dict,
    )


@dataclass(frozen=True, kw_only=True)
class LaunchConfig:
    """`[launch]`: how the processes of a job are started."""

    by: str = key(
        '`"systemd"`: each attempt runs in a separate transient unit, without the limits of '
        'the daemon\'s unit. `"child"`: it is a child of the daemon and has these limits. '
        '`"auto"`: the value of the environment variable `ZEROTOOLS_LAUNCH`, which the system '
        "unit sets; without it, systemd if systemd started the daemon, and a child if that fails.",
        default="auto",
        allowed=("auto", "systemd", "child"),
    )


@dataclass(frozen=True, kw_only=True)
class StopConfig:
    """`[stop]`: how attempts end."""

    grace_seconds: float = key(
        "The time that a stopping job has to save before it is killed.",
        default=120.0,
        minimum=0,
    )
    straggler_seconds: float = key(
        "How long the other ranks may take to finish when one rank is done, and how long a "
        "program may take to end after `worker.finished()`.",
        default=600.0,
        minimum=0,
    )
    kill_seconds: float = key(
        "If a process still runs this long after SIGKILL, the daemon names it, and the GPUs "
        "of its job stay reserved until it ends.",
        default=30.0,
        above=0,
    )


@dataclass(frozen=True, kw_only=True)
class RetryConfig:
    """`[retry]`: how long a crashed job waits before it is started again."""

    first_seconds: float = key("The wait before the first restart.", default=1.0, minimum=0)
    factor: float = key("Each wait is this many times the one before.", default=4.0, minimum=1)
    most_seconds: float = key("The longest wait.", default=300.0, minimum=0)
    fence_seconds: float = key(
        "A GPU with an XID of a hardware fault is not used for this long, or until the "
        "machine is restarted.",
        default=3600.0,
        minimum=0,
    )
    at_once: int = key(
        "The number of restarted jobs that may load at the same time; others wait.",
        default=4,
        minimum=1,
    )


@dataclass(frozen=True, kw_only=True)
class WatchConfig:
    """`[watch]`: when a running job is reported as making no progress."""

    no_progress_seconds: float = key(
        "A running job is shown as making no progress when its ranks have not written to their "
        "logs, reported anything or taken more memory for this long. 0: never.",
        default=300.0,
        minimum=0,
    )
    end_stalled: bool = key(
        "End stalled attempts, according to `[stall]` in the job file; false: write the stacks of "
        "their ranks to the log and show the jobs as stalled.",
        default=True,
    )


@dataclass(frozen=True, kw_only=True)
class RetentionConfig:
    """`[retention]`: automatic removal of old data. By default nothing is removed.

    Each value is seconds, or text such as `"30d"`. Three things are never removed automatically:
    checkpoints, exports, and files that an unfinished job names.
    """

    records: int | str | None = key(
        "How long the record and the logs of an ended job are kept: seconds, or text such as "
        '`"90d"`. Then they are removed, as `zerotools clean` does. Not set: none are removed.',
        default=None,
    )
    logs: int | str | None = key(
        "How long the logs and the progress of an ended job are kept. Then they are removed, and "
        "the record stays. Not set: none are removed.",
        default=None,
    )
    events: int | str | None = key(
        "How long events are kept. Then they are removed. Not set: none are removed.", default=None
    )


@dataclass(frozen=True, kw_only=True)
class DataCacheConfig:
    """`[data_cache]`: tokenised data that restarted jobs and other jobs reuse."""

    directory: str | None = key(
        "The directory of the cache; default: `data-cache` in the state directory. It may be "
        "removed at any time.",
        default=None,
        path=True,
    )
    bytes: int = key(
        "Largest size of the cache: the least recently used entries are removed. 0: no cache, and "
        "each attempt tokenises its data.",
        default=64 * 2**30,
        minimum=0,
    )


@dataclass(frozen=True, kw_only=True)
class PriorityConfig:
    """`[priority]`: which priorities users may give to their jobs."""

    classes: Mapping[str, tuple[int, ...]] = key(
        'The lowest and the highest priority for a user (`"alice" = [-10, 5]`, or the uid '
        '`"1000"`), a group (`"@lab" = [-10, 10]`), or all others (`"*" = [-10, 0]`). The entry of '
        "a user overrides those of groups; of several groups, the widest range counts. Without "
        f"an entry, and for root and the daemon's user: {LEAST_PRIORITY} to {MOST_PRIORITY}.",
        factory=dict,
    )


@dataclass(frozen=True, kw_only=True)
class ApiConfig:
    """`[api]`: the API over TCP. It is off unless `listen` is set."""

    listen: str | None = key(
        'An address and a port, such as `"127.0.0.1:8732"`, for clients with a token. An '
        "address that other machines can reach needs TLS.",
        default=None,
    )
    tokens: str | None = key(
        "A file of mode 0600 with one `UID TOKEN` a line; default: the credential `api-tokens` "
        "that systemd gives the service.",
        default=None,
        path=True,
    )
    tls_certificate: str | None = key(
        "The certificate, and the certificates that signed it, in PEM.", default=None, path=True
    )
    tls_key: str | None = key(
        "The private key of the certificate, in PEM.", default=None, path=True
    )

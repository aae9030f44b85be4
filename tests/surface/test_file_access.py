"""Who opens files: the daemon's main loop looks at its own state directory alone.

What users name may lie on a file system that never answers. A look at it would stop the daemon, and
in a thread it would keep the daemon's lock beyond its death. Processes look at such paths
(`zerotoolsd.file_checks`). A module that touches files belongs into one of these tables.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2] / "daemon/zerotoolsd"

PROCESSES = {
    "trainer": "ranks",
    "children/checkpoint_finder": "the finder, which the supervisor starts",
    "children/pid_watcher": "a rank, as its user",
    "slurm/runner": "the processes of a job under Slurm, as its user",
    "slurm/watcher": "a rank, as its user",
    "supervisor": "supervisors, which work in their run directory",
    "file_checks": "the processes that look, and their side in the daemon",
    "users/run_as_user.py": "a program of its own, which becomes the user first",
    "children/export.py": "a command of its own",
    "monitoring/notifications/notify_command_process.py": "a command of its own",
    "children/thin.py": "a command of its own",
}
LOOKS = {
    "service/admission": "a survey, by a process that looks",
    "dispatch/remove_job_files.py": "the state directory; paths in jobs, by a child",
    "service/read_checkpoints_and_predictions.py": "a job's directory, by a process that looks",
}
OWN = {
    "users/open_as_user.py": "directories of the state directory, and those of users by descriptor",
    "users/served_users.py": "the installation, and state in the kernel of the daemon",
    "http/api/bearer_tokens.py": "tokens that the administrator names",
    "http/api/connection_limits.py": "/dev/null, a descriptor that is kept free",
    "http/api/listening_sockets.py": "the socket, and the files of TLS",
    "http/api/job_outputs.py": "logs in run directories, in a thread",
    "http/api/server.py": "the socket",
    "attempts": "run directories",
    "app": "the state directory; the installation, before there is a daemon",
    "config/daemon_config.py": "the daemon's configuration",
    "monitoring/history_file.py": "a file of the state directory",
    "dispatch/checkpoint_pins.py": "a directory of the state directory",
    "queue": "the queue's own files",
    "resources/leaked_gpu_memory.py": "/proc",
    "http/web": "the installation",
}
THREADS = {
    "users/account.py": "a user is looked up, in a thread that nobody waits for at the end",
    "http/api/import_job_file.py": "parses a text, without a look at any file that it names",
    "http/api/job_outputs.py": "logs in run directories",
    "dispatch/remove_ended_jobs.py": "chooses of 100,000 jobs, without a look at any file",
    "monitoring/notifications/webhooks.py": "looks up a host in a thread that is not waited for",
    "service/operations/curves_checkpoints_predictions.py": "what ranks reported there",
    "resources/snapshot_thread.py": "waits, with a deadline, for the process that asks NVML",
}
"""Who may start one: it must wait for nothing that can hang in the kernel."""

STARTS = {
    "slurm/runner": "srun and supervisors, under Slurm, as the job's user",
    "users/run_as_user.py": "becomes the user, then the program",
    "service/admission/interpreter_check.py": "the job's interpreter at submit, as its user",
    "attempts/backends/spawn_supervisor.py": "supervisors, as the job's user",
    "attempts/backends/start_transient_unit.py": "systemd-run, whose unit is the job's user's",
    "attempts/backends/fork_server.py": "fork servers, of the daemon's own user for its own jobs",
    "dispatch/upload_last_checkpoints.py": "uploads for jobs that are over, as the job's user",
    "file_checks/file_check_server.py": "processes that look, as the job's user",
    "monitoring/notifications/notify_command.py": "a program that a job names, as its user",
    "monitoring/notifications/send_to_destinations.py": "sendmail, as the daemon's own user",
    "monitoring/notifications/notify_command_process.py": "this program, and ends its children",
    "supervisor": "of the job's user, as all that it starts",
}
"""Who starts programs, and as whom: each is in docs/explanation/whose-rights.md."""

CLIENTS = ROOT.parents[1] / "zerotools/cli"
SHOWS_JOBS = {
    "commands/show.py": "the caller's own directory of torch, for jobs of the caller",
    "job_actions/job_reference.py": "the socket, and the caller's own jobs under Slurm",
    "job_views/process_owners.py": "/proc",
    "top/reading/disk_reader_process.py": "a process that looks, with a deadline",
}
"""Who opens files of the commands that show jobs: no path that a job names, unless in a process."""

FILE_CALLS = frozenset(
    {
        *("access", "exists", "glob", "is_dir", "is_file", "is_symlink", "iterdir", "lexists"),
        *("listdir", "lstat", "mkdir", "open", "read_bytes", "read_text", "readlink", "realpath"),
        *("resolve", "rglob", "rmdir", "rmtree", "scandir", "stat", "statvfs", "symlink_to"),
        *("unlink", "walk", "which", "write_bytes", "write_text"),
    }
)
START_CALLS = frozenset(
    {"Popen", "create_subprocess_exec", "create_subprocess_shell", "execv", "execve", "execvpe"}
    | {"fork", "forkpty", "posix_spawn", "posix_spawnp", "popen"}
)
THREAD_CALLS = frozenset({"to_thread", "run_in_executor", "Thread", "ThreadPoolExecutor"})


def callers(names: frozenset[str], root: Path = ROOT) -> list[str]:
    return [path.relative_to(root).as_posix() for path, called in calls(root) if names & called]


@cache
def calls(root: Path) -> list[tuple[Path, set[str]]]:
    """Each module below a folder, and the names of the functions that it calls."""
    return [
        (path, {_name(node) for node in ast.walk(ast.parse(path.read_text("utf-8")))} - {""})
        for path in sorted(root.rglob("*.py"))
    ]


def _name(node: ast.AST) -> str:
    if not isinstance(node, ast.Call):
        return ""
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def is_in(module: str, *places: str) -> bool:
    return any(module == place or module.startswith(f"{place}/") for place in places)


def test_who_touches_files_says_whose() -> None:
    known = (*PROCESSES, *LOOKS, *OWN)
    found = callers(FILE_CALLS)
    assert [module for module in found if not is_in(module, *known)] == []
    assert [place for place in (*LOOKS, *OWN) if not any(is_in(m, place) for m in found)] == []


def test_no_command_that_shows_jobs_opens_what_they_name() -> None:
    commands = ("queue", "show", "explain", "logs", "wait", "top", "cancel", "hold", "release")
    rooms = ("job_actions", "job_views", "top", *(f"commands/{name}.py" for name in commands))
    found = callers(FILE_CALLS, CLIENTS)
    assert [module for module in found if is_in(module, *rooms)] == sorted(SHOWS_JOBS)


def test_no_thread_waits_for_a_file_system_of_users() -> None:
    found = [module for module in callers(THREAD_CALLS) if not is_in(module, *PROCESSES)]
    assert found == sorted(THREADS)


def test_who_starts_programs_says_as_whom() -> None:
    found = callers(START_CALLS)
    assert [module for module in found if not is_in(module, "trainer", *STARTS)] == []
    assert [place for place in STARTS if not any(is_in(module, place) for module in found)] == []


def test_the_page_says_who_opens_and_starts_what() -> None:
    page = (ROOT.parents[1] / "docs/explanation/whose-rights.md").read_text("utf-8")
    rooms = {place.split("/")[0] for place in (*PROCESSES, *LOOKS, *OWN, *STARTS)}
    assert [room for room in sorted(rooms) if f"`{room}" not in page] == []
    assert "users/run_as_user.py" in page

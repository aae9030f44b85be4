"""Commands by the names that other tools give them, so that a guess is answered with ours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

COMMANDS: Mapping[str, str] = {
    **dict.fromkeys(("ps", "list", "ls", "jobs", "status", "squeue", "qstat"), "queue"),
    **dict.fromkeys(("kill", "stop", "rm", "remove", "delete", "scancel", "abort"), "cancel"),
    **dict.fromkeys(("merge", "export", "combine", "zero_to_fp32", "join"), "consolidate"),
    **dict.fromkeys(("run", "start", "train", "add", "launch", "sbatch", "enqueue"), "submit"),
    **dict.fromkeys(("log", "tail", "output"), "logs"),
    **dict.fromkeys(("info", "describe", "cat", "view"), "inspect"),
    **dict.fromkeys(("job", "plot"), "show"),
    **dict.fromkeys(("gpu", "gpus", "nvidia-smi", "smi", "memory", "watch"), "monitor"),
    **dict.fromkeys(("rescue", "repair", "recover", "fix", "mend"), "salvage"),
    **dict.fromkeys(("split", "repartition", "resize"), "reshard"),
    **dict.fromkeys(("transform", "ds_to_universal", "translate"), "convert"),
    **dict.fromkeys(("prune", "purge", "gc", "clear", "cleanup"), "clean"),
    **dict.fromkeys(("restart", "continue", "requeue", "again", "rerun", "resume"), "retry"),
    **dict.fromkeys(("stash", "suspend", "pause"), "hold"),
    **dict.fromkeys(("unhold", "unstash", "unsuspend", "unpause"), "release"),
    **dict.fromkeys(("nice", "renice"), "priority"),
    **dict.fromkeys(("migrate", "config"), "import"),
    **dict.fromkeys(("host", "http", "expose", "mount"), "serve"),
    **dict.fromkeys(("collect", "fetch", "pull", "scp", "rsync"), "gather"),
    **dict.fromkeys(("man", "manual", "docs", "doc", "topics"), "help"),
    **dict.fromkeys(("strip", "slim", "shrink", "drop"), "thin"),
}


def suggest_commands(word: str, known: Iterable[str]) -> list[str]:
    """Return the commands of `known` that `word` may mean, the likeliest first; two at most.

    A word that is near no command may be near the name of one in another program: `paus`, `mrge`.
    """
    names = list(known)
    other = COMMANDS.get(word.lower())
    import difflib  # 1 ms at each start

    near = difflib.get_close_matches(word, names, n=2, cutoff=0.75 if other else 0.6)
    if not near and other is None:
        near = [COMMANDS[each] for each in difflib.get_close_matches(word, COMMANDS, 1, 0.8)]
    return ([other] if other in names and other not in near else []) + near[: 1 if other else 2]

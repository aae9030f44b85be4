"""The output of Slurm's clients, as values.

The JSON of squeue has changed its shape between versions: a state is text up to 23.02 and a list of
texts from 23.11 on; numbers are plain, or `{"set": true, "number": 3}`. Anything but the number and
the state of a job may be missing (slurm.schedmd.com/job_state_codes.html has the states).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

SQUEUE_FORMAT = "%A\t%T\t%r\t%k\t%D\t%N\t%j"
PENDING = frozenset({"PENDING", "REQUEUED", "REQUEUE_FED", "SPECIAL_EXIT"})
GOING = frozenset(
    {"RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT"}
    | {"RESIZING", "EXPEDITING", "POWER_UP_NODE"}
)
HELD_AGAIN = frozenset({"REQUEUE_HOLD", "RESV_DEL_HOLD"})


@dataclass(frozen=True, kw_only=True)
class ControllerJob:
    """One job in the controller's list. `state` is one of Slurm's base states; `completing`: it is
    ending; `reason` is the reason why it waits; `comment` is the one it was submitted with."""

    number: str
    state: str
    completing: bool = False
    reason: str = ""
    comment: str = ""
    nodes: int | None = None
    node_list: str = ""
    name: str = ""
    preempted: bool = False

    @property
    def waits(self) -> bool:
        """True if it will start, as far as known."""
        return self.state in PENDING or self.state in HELD_AGAIN

    @property
    def goes(self) -> bool:
        """True if it runs, or is ending."""
        return self.state in GOING or self.completing

    @property
    def is_over(self) -> bool:
        """True if it will not run any more."""
        return not self.waits and not self.goes


def jobs_of_text(text: str) -> list[ControllerJob]:
    """Parse lines of `SQUEUE_FORMAT`."""
    found = []
    for line in text.splitlines():
        parts = line.split("\t", 6)
        if len(parts) < 7 or not parts[0].isdecimal():
            continue
        number, state, reason, comment, nodes, node_list, name = parts
        found.append(
            ControllerJob(
                number=number,
                state=state,
                completing=state == "COMPLETING",
                reason=_text(reason),
                comment=_text(comment),
                nodes=int(nodes) if nodes.isdecimal() else None,
                node_list=_text(node_list),
                name=name,
            )
        )
    return found


def jobs_of_json(text: str) -> list[ControllerJob]:
    """Parse `squeue --json`, of any version. Raises ValueError: it is not that."""
    tree = json.loads(text)
    jobs = tree.get("jobs") if isinstance(tree, dict) else None
    if not isinstance(jobs, list):
        raise ValueError("it has no jobs")
    return [found for each in jobs if (found := _of_json(each)) is not None]


def _of_json(tree: Any) -> ControllerJob | None:
    number = _number(tree.get("job_id")) if isinstance(tree, dict) else None
    if number is None:
        return None
    states = list(_words(tree.get("job_state")))
    flags = {"COMPLETING", "CONFIGURING", "SIGNALING", "STAGE_OUT", "RESIZING", "POWER_UP_NODE"}
    base = [each for each in states if each not in flags and each not in HELD_AGAIN]
    held = [each for each in states if each in HELD_AGAIN]
    return ControllerJob(
        number=str(number),
        state=(held or base or states or ["UNKNOWN"])[0],
        completing="COMPLETING" in states,
        reason=_text(tree.get("state_reason")),
        comment=_text(tree.get("comment")),
        nodes=_number(tree.get("node_count")),
        node_list=_text(tree.get("nodes")),
        name=_text(tree.get("name")),
    )


def jobs_of_sacct(text: str) -> list[ControllerJob]:
    """Parse lines of `sacct -X -n -P -o JobIDRaw,State,ExitCode,NodeList,JobName`."""
    found = []
    for line in text.splitlines():
        parts = line.split("|", 4)
        if len(parts) >= 4 and parts[0].isdecimal() and parts[1]:
            state, _, who = parts[1].partition(" ")  # CANCELLED by 1000
            found.append(
                ControllerJob(
                    number=parts[0],
                    state=state,
                    reason=who,
                    node_list=_text(parts[3]),
                    name=parts[4] if len(parts) > 4 else "",
                )
            )
    return found


def job_of_scontrol(text: str) -> ControllerJob | None:
    """Parse `scontrol --oneliner show job`."""
    found = dict(re.findall(r"(?:^|\s)(\w+)=(\S*)", text))
    if not found.get("JobId", "").isdecimal():
        return None
    state = found.get("JobState", "UNKNOWN")
    nodes = found.get("NumNodes", "").partition("-")[0]
    return ControllerJob(
        number=found["JobId"],
        state=state,
        completing=state == "COMPLETING",
        reason=_text(found.get("Reason")),
        comment=_text(found.get("Comment")),
        nodes=int(nodes) if nodes.isdecimal() else None,
        node_list=_text(found.get("NodeList")),
        name=found.get("JobName", ""),
        preempted=found.get("PreemptTime", "None") not in ("None", ""),
    )


def _words(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield from value.split(",")
    elif isinstance(value, list):
        yield from (each for each in value if isinstance(each, str))


def _number(value: Any) -> int | None:
    if isinstance(value, Mapping):
        value = value.get("number") if value.get("set", True) else None
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    return value if type(value) is int else None


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else ""
    return "" if text in ("(null)", "None", "N/A", "None assigned") else text

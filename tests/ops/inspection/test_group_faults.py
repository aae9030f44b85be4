from __future__ import annotations

from zerotools.core.checkpoint import Problem
from zerotools.ops.inspection.group_faults import MOST_NAMES, grouped_faults

CAUSE = "rank-1.pt is missing (the run had 2 ranks); copy it again"


def lost(name: str, cause: str = CAUSE) -> Problem:
    return Problem(f"{name} is incomplete: 8 of 16 elements are in no file ({cause})", tensor=name)


def test_tensors_of_a_faulty_file_are_one_sentence() -> None:
    file = Problem(CAUSE, file="rank-1.pt")
    alone = Problem("c has an unknown type", tensor="c")
    other = lost("d", "another cause")
    faults = [file, lost("a"), alone, lost("b"), other]
    own, consequences = grouped_faults(faults)
    assert own == [file, alone, other]
    assert consequences == "2 tensors incomplete because of that: a, b"
    assert grouped_faults([alone, other]) == ([alone, other], None)


def test_a_long_list_of_tensors_is_cut() -> None:
    faults = [Problem(CAUSE, file="rank-1.pt"), *(lost(f"t{n}") for n in range(MOST_NAMES + 3))]
    _, consequences = grouped_faults(faults)
    assert consequences is not None
    assert consequences.endswith("t7 and 3 more")

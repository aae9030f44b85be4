"""What is kept of an example that is too long."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from zerotoolsd.trainer.data.encoding.encoded_example import Kept, Limits, as_ids
from zerotoolsd.trainer.data.encoding.encoded_example import cut_to_limits as cut_arrays

LIMITS = st.none() | st.integers(2, 30)


def cut(source: list[int], target: list[int], *how: Any) -> tuple[list[int], list[int]]:
    found, said = cut_arrays(as_ids(source), as_ids(target), *how)
    return found.tolist(), said.tolist()


def test_the_prompt_gives_way_first_and_the_end_stays() -> None:
    source, target = list(range(10)), [*range(100, 106), 999]
    assert cut(source, target, Limits(), Kept()) == (source, target)
    last = Kept(kept_head=1, kept_tail=1, keeps_first=False)
    assert cut(source, target, Limits(whole=11), last) == ([0, 7, 8, 9], target)
    assert cut(source, target, Limits(whole=11), Kept(kept_tail=1)) == ([0, 1, 2, 3], target)
    assert cut(source, target, Limits(whole=5), last) == ([9], [100, 101, 102, 999])
    assert cut(source, target, Limits(whole=9, source=9, target=4), last) == (
        [0, 6, 7, 8, 9],
        [100, 101, 102, 999],
    )


@given(
    source=st.integers(0, 40),
    target=st.integers(1, 40),
    limits=st.builds(Limits, LIMITS, LIMITS, LIMITS),
    kept=st.builds(Kept, st.integers(0, 1), st.integers(0, 2), st.booleans()),
)
def test_no_limit_is_passed_and_nothing_is_cut_for_nothing(
    source: int, target: int, limits: Limits, kept: Kept
) -> None:
    asked, answer = list(range(source)), list(range(1000, 1000 + target))
    found, said = cut(asked, answer, limits, kept)
    assert len(found) <= (limits.source or source)
    assert len(said) <= (limits.target or target)
    assert len(found) + len(said) <= (limits.whole or source + target)
    assert bool(found) == bool(asked)
    if limits.whole is None or source + target <= limits.whole:
        assert len(found) == min(source, limits.source or source)
    end = answer[target - min(kept.kept_tail, target) :][: len(said)]
    assert said[len(said) - len(end) :] == end
    if len(found) > 1 and len(said) < min(target, limits.target or target):
        raise AssertionError("the response gave way before the prompt")

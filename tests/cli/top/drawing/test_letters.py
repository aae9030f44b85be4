from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from zerotools.cli.top.drawing.letters import in_letters
from zerotools.cli.top.drawing.styled_lines import plain


def test_marks_become_letters() -> None:
    assert in_letters([("▇▓▚╌ ━╌ 61° ✓ ▸ ▁█ ⣿ …", "x")]) == [("#%x- =- 61C + > _# * ~", "x")]
    assert in_letters([("größe 数据", "")]) == [("gr??e ????", "")]


@given(st.text(max_size=30))
def test_a_line_keeps_its_width(text: str) -> None:
    shown = plain(text)
    ((letters, _),) = in_letters([(shown, "")])
    assert letters.isascii()
    assert len(letters) == sum(cell_len(each) for each in shown)

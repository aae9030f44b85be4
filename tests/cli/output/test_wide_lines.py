"""Lines of Chinese text are cut by the columns that they take."""

from __future__ import annotations

from zerotools.cli.output.language import chinese_hint
from zerotools.cli.output.messages import wrapped
from zerotools.cli.output.wide_lines import columns_of


def test_a_line_of_chinese_is_cut_at_the_width_of_the_terminal() -> None:
    hint = chinese_hint("nothing answers at /x; is zerotoolsd running?")
    assert hint is not None
    lines = wrapped("提示:", [hint], 80)
    assert len(lines) == 2
    assert columns_of("提示: " + lines[0]) <= 80 > columns_of(lines[1])
    assert "".join(line.strip() for line in lines).replace(" ", "") == hint.replace(" ", "")
    narrow = wrapped("提示:", [hint], 40)
    assert max(map(columns_of, narrow)) <= 40
    assert not [line for line in narrow if line.strip()[0] in "，。；："]

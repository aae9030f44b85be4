"""Names of numbered parameters by the shapes of their state."""

from __future__ import annotations

from zerotools.formats.torch_optimizers import names_by_shape, state_fits

WEIGHTS = {"a": (4, 3), "b": (3,), "c": (5, 3)}
ADAM = [{"step": (), "exp_avg": shape, "exp_avg_sq": shape} for shape in ((3,), (5, 3), (4, 3))]


def test_a_shape_that_one_weight_has_names_a_number() -> None:
    assert names_by_shape([0, 1, 2], dict(enumerate(ADAM)), WEIGHTS) == {0: "b", 1: "c", 2: "a"}
    assert names_by_shape([0, 1], dict(enumerate(ADAM)), WEIGHTS) == {0: "b", 1: "c"}


def test_nothing_is_named_where_one_number_has_two_names_or_none() -> None:
    state = dict(enumerate(ADAM))
    assert names_by_shape([0, 1, 2], state, {**WEIGHTS, "d": (5, 3)}) == {}
    assert names_by_shape([0, 1, 2, 3], state, {**WEIGHTS, "d": (7,)}) == {}
    assert names_by_shape([0, 1, 2, 3], {**state, 3: ADAM[0]}, WEIGHTS) == {}


def test_a_factored_state_is_of_a_matrix() -> None:
    rows = {"step": (), "exp_avg_sq_row": (4,), "exp_avg_sq_col": (3,)}
    assert state_fits(rows, (4, 3))
    assert not state_fits(rows, (4,))
    assert not state_fits({"exp_avg_sq": (4,)}, (4, 3))
    assert state_fits({"row_var": (4, 1), "col_var": (1, 3)}, (4, 3))
    assert state_fits({"state1": (4, 3), "absmax1": (1,), "qmap1": (256,)}, (4, 3))
    assert names_by_shape([0], {0: rows}, WEIGHTS) == {0: "a"}

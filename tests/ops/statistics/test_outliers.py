"""Which tensors differ from those of the same kind in other layers."""

from __future__ import annotations

import numpy as np

from zerotools.core.checkpoint import Key
from zerotools.io.numeric.value_statistics import StatisticsSum, ValueStatistics
from zerotools.ops.statistics.outliers import outliers_of


def of(*values: float) -> ValueStatistics:
    total = StatisticsSum()
    total.add(np.array(values, np.float32))
    return total.finished()


def layers(*each: ValueStatistics, role: str = "param") -> dict[Key, ValueStatistics]:
    return {Key(f"h.{n}.w", role): found for n, found in enumerate(each)}


def test_a_layer_far_from_the_median_is_an_outlier() -> None:
    found = outliers_of(layers(of(1), of(1.1), of(9), of(0.9), of(1)))
    assert found == {
        Key("h.2.w", "param"): "root mean square 9, which is 9 times the median of 5 layers"
    }


def test_layers_that_differ_much_from_each_other_have_none() -> None:
    assert outliers_of(layers(of(1), of(2), of(4), of(8), of(16))) == {}


def test_few_layers_have_no_median() -> None:
    assert outliers_of(layers(of(1), of(1), of(100))) == {}


def test_a_layer_of_zeros_and_values_that_are_not_finite() -> None:
    nan = of(1, float("nan"), float("inf"))
    found = outliers_of(layers(of(1), of(0), of(1), of(1), nan))
    assert found == {
        Key("h.1.w", "param"): "all values are 0, and the median of 5 layers is 1",
        Key("h.4.w", "param"): "1 NaN and 1 infinite values",
    }


def test_outliers_are_in_the_order_of_their_layers() -> None:
    nan = of(float("nan"))
    found = outliers_of({Key(f"h.{n}.w", "param"): nan for n in (0, 1, 10, 11, 2)})
    assert [key.name for key in found] == [f"h.{n}.w" for n in (0, 1, 2, 10, 11)]


def test_roles_and_kinds_are_apart() -> None:
    moments = layers(*(of(0.001) for _ in range(5)), role="exp_avg_sq")
    assert outliers_of(layers(*(of(1) for _ in range(5))) | moments) == {}


def test_modules_without_a_number_are_not_compared() -> None:
    names = ("embed", "cube", "norm", "head", "gate")
    modules = {Key(f"{name}.weight", "param"): of(10.0**n) for n, name in enumerate(names)}
    assert outliers_of(modules) == {}

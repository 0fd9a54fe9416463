"""Rules for values, and the conditions under which a field has an effect."""

import math
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import purerl
from purerl.config import rules


def test_rules_hold_only_for_valid_values():
    lr = rules.or_auto(rules.at_least(0))
    assert lr.holds(np.array([0.0, -1.0, math.nan, rules.AUTO])).tolist() == [True, False, False, True]
    assert rules.up_to(2, rules.above(0)).holds(np.array([0.0, 1.0, 3.0])).tolist() == [False, True, False]
    assert not rules.finite().holds(math.inf)
    assert rules.one_of("a", "b").choices == ("a", "b")
    assert [rules.some_of("a", "b").holds(xs) for xs in ((), ("b",), ("b", "b"), ("c",))] == [True, True, False, False]
    assert [rules.each(rules.at_least(1)).holds(xs) for xs in ((8, 8), (0,), (8.0,))] == [True, False, False]


def test_condition_has_a_text_and_a_predicate():
    cfg = SimpleNamespace(optimizer="sgd", lag=2, clip=math.inf)
    need = rules.either(rules.when(optimizer=("adam", "adamw")), rules.is_above("lag", 1))
    assert need.text == "optimizer = 'adam' or 'adamw' or lag > 1"
    assert need.holds(cfg, None)
    assert not rules.is_finite("clip").holds(cfg, None)


def test_traced_value_may_hold_but_never_surely_holds():
    seen = []
    of = lambda x: [rules.may_hold(x, np.isfinite), rules.surely_holds(x, np.isfinite), rules.in_order(9.0, x, 10.0)]
    jax.jit(lambda x: seen.extend(of(x)) or x).trace(0.0)
    assert seen == [True, False, True]
    assert rules.surely_holds(0.0, np.isfinite)


def test_values_are_in_order_unless_two_numbers_descend():
    assert rules.in_order(1e-6, np.float32(1e-6), np.float32([0.1, 0.2]), 0.2)
    assert not rules.in_order(0.0, np.float32([0.1, 0.3]), 0.2)
    assert rules.in_order(1.0, "x", None, 2.0)
    for wrong in ({"lr": 0.1}, {"lr_min": 1e-2, "lr_max": 1e-3}):
        with pytest.raises(purerl.ConfigError, match=r"lr = .*: must lie between lr_min and lr_max"):
            purerl.make_train(purerl.PPOConfig(lr_schedule="kl_adaptive", **wrong))

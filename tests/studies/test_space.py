"""Swept values: draws, texts, and refused values."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

import purerl
from purerl import Range
from purerl.studies import space
from tests.helpers.studies import SHORT
from tests.helpers.tiny import CFG


def test_points_are_unique_and_draws_reproducible():
    points = purerl.sweep(CFG, [{"lr": 1e-3}, {"gamma": 0.9, "hidden": (8, 8)}, {"lr": 1e-3}])
    assert points.labels == ("lr = 0.001", "gamma = 0.9, hidden = 8x8")  # duplicates are removed
    values = {"lr": Range(1e-5, 1e-1, log=True), "num_epochs": Range(1, 4), "optimizer": ["adam", "sgd"]}
    for method in ("sobol", "random"):
        drawn = purerl.sweep(CFG, values, draws=64, method=method, seed=1)
        assert drawn.labels == purerl.sweep(CFG, values, draws=64, method=method, seed=1).labels
        assert drawn.labels != purerl.sweep(CFG, values, draws=64, method=method, seed=2).labels
        rates, epochs, optimizers = zip(*(point.values() for point in drawn.points), strict=True)
        assert 1e-5 <= min(rates) < 1e-4 < 1e-2 < max(rates) <= 1e-1
        assert set(epochs) == {1, 2, 3, 4}
        assert set(optimizers) == {"adam", "sgd"}
    decades = np.histogram(np.log10([p["lr"] for p in purerl.sweep(CFG, values, draws=64).points]), [-5, -4, -3, -2, -1])[0]
    assert decades.tolist() == [16, 16, 16, 16]  # Sobol points are spread evenly


def test_command_line_values_are_parsed():
    cfg = CFG.replace(rnd=purerl.RNDConfig(), env_params={"g": 10.0})
    texts = ["reward_clip=10,auto", "hidden=64x64,8", "num-steps=16,1e2", "normalize_obs=auto,false", "rnd-int-coef=0.5"]
    more = ["env_params.g=5,10", "env_kwargs.size=5,name", "gamma=0.9:0.99", "ent_coef=1e-4:1e-2:log", "arch=shared"]
    found = space.parse(cfg, [*texts, *more], "sweep")
    assert found == {
        "reward_clip": (10.0, "auto"),
        "hidden": ((64, 64), (8,)),
        "num_steps": (16, 100),
        "normalize_obs": ("auto", False),
        "rnd.int_coef": (0.5,),
        "env_params.g": (5.0, 10.0),
        "env_kwargs.size": (5, "name"),
        "gamma": Range(0.9, 0.99),
        "ent_coef": Range(1e-4, 1e-2, log=True),
        "arch": ("shared",),
    }
    changed = space.with_values(cfg, {"rnd.int_coef": 0.5, "env_params.g": 5.0, "env_kwargs.size": 5, "lr": 1.0})
    assert (changed.rnd.int_coef, changed.env_params, changed.env_kwargs, changed.lr) == (0.5, {"g": 5.0}, (("size", 5),), 1.0)


WRONG = {
    "no such field": ({"lrr": [1.0]}, {}, "lrr: no such field; did you mean 'lr'"),
    "another system's": ({"learning_rate": [1.0]}, {}, "`lr`"),
    "no values": ({"lr": []}, {}, "must be a list of values"),
    "one value": ({"lr": 1e-3}, {}, "must be a list of values"),
    "a range": ({"lr": Range(1e-4, 1e-3)}, {}, "a range needs draws"),
    "a range of words": ({"optimizer": Range(0, 1)}, {"draws": 4}, "is not a number"),
    "backwards": ({"lr": Range(1e-3, 1e-4)}, {"draws": 4}, "needs finite numbers low < high"),
    "log of nothing": ({"ent_coef": Range(0, 1, log=True)}, {"draws": 4}, "low > 0 with log"),
    "without rnd": ({"rnd.int_coef": [1.0]}, {}, "has no effect without rnd"),
    "a whole field": ({"env_params": [1.0]}, {}, "must name one parameter"),
    "draws": ({"lr": [1.0]}, {"draws": -1}, "must be an int of at least 0"),
    "a method": ({"lr": [1.0]}, {"method": "grid"}, "choose from 'sobol', 'random'"),
    "nothing": ({}, {}, "must be a dict from fields"),
    "points with draws": ([{"lr": 1.0}], {"draws": 2}, "with draws=0"),
    "a name that is none": ({3: [1.0]}, {}, "must be the name of a field"),
    "twice": ({"num-steps": [16, 32], "num_steps": [64]}, {}, "num_steps is given twice"),
    "a seed of draws": ({"lr": Range(1e-4, 1e-3)}, {"draws": 2, "seed": -1}, "seed = -1: must be an int from 0"),
}


@pytest.mark.parametrize("case", WRONG)
def test_invalid_sweeps_are_refused(case):
    values, options, says = WRONG[case]
    with pytest.raises(purerl.ConfigError) as refused:
        purerl.sweep(CFG, values, **options)
    assert says in str(refused.value)


WRONG_VALUES = {
    "a float": {"num_steps": [16, 8], "lr": [1e-3, -1.0]},
    "a choice": {"activation": ["tanh", "tahn"]},
    "a word": {"lr": ["a"]},
    "nothing": {"lr": [None, 1e-3]},
    "a range": {"clip_eps": Range(-1.0, 0.2)},
    "a range of words": {"lr": Range("a", "b")},
    "half a number": {"num_epochs": Range(0.5, 3, log=True)},
    "one number": {"lr": np.array(1e-3)},
    "a parameter": {"env_params.g": ["x"]},
}


@pytest.mark.parametrize("case", WRONG_VALUES)
def test_invalid_swept_values_are_refused_before_training(case):
    name = list(WRONG_VALUES[case])[-1]
    with pytest.raises(purerl.ConfigError, match=f"{name} = "):
        purerl.sweep(SHORT, WRONG_VALUES[case], draws=2)
    with pytest.raises(purerl.ConfigError, match=f"{name} = "):
        purerl.tune(SHORT, WRONG_VALUES[case], trials=2)


def test_sweep_is_printed_as_its_labels():
    assert str(purerl.sweep(SHORT, {"lr": [1e-3, 1e-4]})) == "2 configs for CartPole-v1: lr = 0.001; lr = 0.0001"


def test_labels_distinguish_close_values():
    made = purerl.sweep(SHORT, {"gamma": [0.9999991, 0.9999992]})
    assert made.labels == ("gamma = 0.9999991", "gamma = 0.9999992")


def test_sweep_refuses_a_batch_of_configs_as_its_base():
    with pytest.raises(purerl.ConfigError, match=r"lr = .*must be a single number"):
        purerl.sweep(CFG.replace(lr=np.float32([1e-3, 1e-1])), {"gamma": [0.9, 0.99]})


def test_equal_points_are_trained_once():
    points = [{"lr": 1e-3, "gamma": 0.9}, {"gamma": 0.9, "lr": 1e-3}, {"lr": 1e-3, "gamma": 0.8}]
    assert len(purerl.sweep(CFG, points).points) == 2


def test_different_ranges_have_different_texts():
    ends = [(0.9, 0.9999999), (0.9, 1.0), (0.9999980, 0.9999984), (0.9999980, 0.9999985)]
    assert len({str(Range(*pair)) for pair in ends}) == len(ends)
    assert str(Range(1e-5, 1, log=True)) == "1e-05:1:log"
    assert str(Range(np.float64(0.9999999), 1)) == "0.9999999:1"


def test_narrow_ranges_keep_more_digits():
    assert Range(0.999, 0.9999).digits == 6
    assert Range(1e-4, 1e-2, log=True).digits == 3
    assert Range(1000, 1004).digits == 6


def test_values_of_different_types_stay_apart():
    made = purerl.sweep(CFG, {"env_kwargs.x": [8, "8", 1, True, None, "None"]})
    assert made.labels[:2] == ("env_kwargs.x = 8", 'env_kwargs.x = "8"')
    assert [program.places for program in made.programs()] == [(i,) for i in range(6)]


def test_numbers_of_numpy_become_numbers_of_python():
    points = purerl.sweep(CFG, {"hidden": np.array([[64, 64], [32, 32]]), "lr": jnp.array([1e-3])}, draws=np.int64(0)).points
    assert [point["hidden"] for point in points] == [(64, 64), (32, 32)]
    assert {type(x) for point in points for x in (*point["hidden"], point["lr"])} == {int, float}
    widths = purerl.sweep(CFG, {"hidden": [(w, w) for w in 2 ** np.arange(3, 5)]}).points
    assert json.dumps(widths) == '[{"hidden": [8, 8]}, {"hidden": [16, 16]}]'


def test_value_listed_twice_on_the_command_line_is_refused():
    with pytest.raises(purerl.ConfigError, match="lists a value twice; the widths of two layers are written 64x64"):
        space.parse(CFG, ["hidden=64,64"], "sweep")

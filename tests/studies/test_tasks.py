"""Tasks: an environment with its arguments and parameters."""

import json

import numpy as np
import pytest

import purerl
from purerl.studies.listing import list_overviews
from purerl.studies.tasks import names_of, task_of
from tests.helpers.studies import SHORT
from tests.helpers.tiny import CFG


@pytest.mark.long
def test_swept_environment_parameters_are_separate_tasks(tmp_path):
    """Longer episodes give higher returns, which makes no config better."""
    made = purerl.sweep(SHORT, {"env_params.max_steps_in_episode": [5, 50]})
    evaluation = {"eval_every": 2, "eval_episodes": 2, "eval_max_steps": 50, "eval_env_params": {"gravity": 5.0}}
    made.fit(0, tmp_path / "s", num_seeds=2, **evaluation)
    names = [f"CartPole-v1 (env_params.max_steps_in_episode = {n})" for n in (5, 50)]
    found = purerl.compare([tmp_path / "s"])
    assert (list(found.entries), list(found.tasks)) == (["s"], names[::-1] if names[0] > names[1] else names)
    assert np.mean(found.scores("s", names[0])) <= 5 < np.mean(found.scores("s", names[1]))
    for task in purerl.compare([tmp_path / "s"], episodes="evaluation").tasks:
        assert task.startswith("CartPole-v1 (env_params.gravity = 5, env_params.max_steps_in_episode = ")
        assert task.endswith(", eval_max_steps = 50)")
    assert [row.task for row in list_overviews(tmp_path)] == names
    first, second = sorted((tmp_path / "s").glob("[01]-*"))
    with pytest.raises(purerl.ConfigError, match=r"has no run of CartPole-v1 \(.* = 50\), unlike other entries"):
        purerl.compare({"a": [first], "b": [second]})


def test_task_name_includes_all_arguments_of_the_environment():
    record = lambda **fields: {"config": json.loads(CFG.replace(**fields).to_json())}
    name = lambda **fields: task_of(record(**fields)).name
    assert name() == "CartPole-v1"
    assert name(env="DeepSea-bsuite", env_kwargs=(("size", 10),)) == "DeepSea-bsuite (env_kwargs.size = 10)"
    assert name(num_levels=7, env_params={"g": 9.8}) == name(num_levels=7, env_params={"g": np.float32(9.8)})
    assert name(num_levels=7, env_params={"g": 9.8}) == "CartPole-v1 (env_params.g = 9.8, num_levels = 7)"
    batch = record(env_params={"g": np.float32([1, 2])})
    assert [task_of(batch, i).name for i in (1, None)] == ["CartPole-v1 (env_params.g = 2)", "CartPole-v1 (env_params.g = 1, 2)"]
    evaluated = {"env_params": {"g": 3.0}, "max_steps": 40}
    assert task_of(record(), None, evaluated).name == "CartPole-v1 (env_params.g = 3, eval_max_steps = 40)"
    own = lambda **env: task_of(record() | {"objects": {"env": {"is": "my.Env", **env}}})
    drawn = record(randomize={"g": purerl.Scale(0.5, 2)})
    assert task_of(drawn).name == "CartPole-v1 (randomize.g.least = 0.5, randomize.g.most = 2)"
    factor = task_of(drawn, None, {"env_params": {"g": 3.0}})
    assert factor.name == "CartPole-v1 (randomize.g.factor = 3)"  # another task than that of the value 3
    short, long, other = (
        own(max_steps="5", actions="Discrete n=2"),
        own(max_steps="50", actions="Discrete n=2"),
        task_of(record()),
    )
    assert names_of([short, other]) == {short: "my.Env", other: "CartPole-v1"}
    assert list(names_of([short, long, short]).values()) == ["my.Env (max_steps = 5)", "my.Env (max_steps = 50)"]


@pytest.mark.long
def test_swept_environments_are_separate_tasks(tmp_path):
    made = purerl.sweep(SHORT, {"env": ["CartPole-v1", "Catch-bsuite"], "lr": [1e-3, 1e-2]})
    result = made.fit(0, tmp_path / "s")
    found = purerl.compare([tmp_path / "s"])
    assert found.tasks == ("CartPole-v1", "Catch-bsuite")
    assert list(found.entries) == ["s: lr = 0.001", "s: lr = 0.01"]
    scores = [found.scores(entry, task) for task in found.tasks for entry in found.entries]
    np.testing.assert_allclose(scores, result.returns, rtol=1e-6)

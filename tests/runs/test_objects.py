"""Objects passed by the user, which are compared when a run resumes."""

import json

import jax
import pytest
from flax import struct

import purerl
from purerl import cli, losses
from purerl.networks.actor_critic import actor_critic
from purerl.runs.storage.objects import qualified_name
from tests.helpers.interrupted import fitted, stopped
from tests.helpers.probes import Varied
from tests.helpers.programs import compiles
from tests.helpers.tiny import CFG


class Other(Varied):
    """Another environment with states of the same shapes."""

    limit = 3


@struct.dataclass
class Limit:
    max_steps_in_episode: int = 5


def own_loss(outputs, old, advantage, cfg):
    return losses.clipped_surrogate(outputs.policy.log_prob(old.action), old.log_prob, advantage, cfg.clip_eps)


@pytest.mark.parametrize(("arch", "built_by"), [("separate", "_separate"), ("shared", "_shared")])
def test_names_of_built_in_networks_in_saved_runs_stay_valid(arch, built_by):
    """A run with `network=actor_critic(...)` resumes only if these names are those in its record."""
    network = actor_critic(CFG.replace(arch=arch), jax.ShapeDtypeStruct((3,), "float32"), purerl.Discrete(2))
    assert qualified_name(network).startswith(f"purerl.networks.actor_critic.{built_by}.<locals>.")


@pytest.mark.long
def test_run_does_not_load_with_other_custom_objects(tmp_path, capsys):
    given = {"env": Varied(), "policy_loss": own_loss}
    purerl.fit(CFG.replace(total_timesteps=64), directory=tmp_path, **given)
    more = CFG.replace(total_timesteps=128, lr_schedule="linear")
    cases = [
        ({}, "env: tests.helpers.probes.Varied in the checkpoint, the default here; in Python, pass `env=`"),
        ({"env": Varied()}, r"policy_loss: .*\.own_loss in the checkpoint, the default here; in Python, pass `policy_loss=`"),
        ({**given, "env": Other()}, r"env: is tests\.helpers\.probes\.Varied in the checkpoint, is .*\.Other here"),
        ({**given, "env_params": Limit(4)}, r"env_params: the default in the checkpoint, .*Limit here; omit `env_params=`"),
        ({**given, "reward_shaper": lambda r, s: r}, r"reward_shaper: the default in the checkpoint"),
    ]
    for objects, says in cases:
        before = compiles()
        with pytest.raises(purerl.CheckpointMismatch, match=says):
            purerl.load(tmp_path, **objects)
        if "env" in objects:
            with pytest.raises(purerl.CheckpointMismatch, match=says):
                purerl.fit(more, directory=tmp_path, **objects)
            with pytest.raises(purerl.CheckpointMismatch, match=says):
                purerl.restore(tmp_path, purerl.make_train(CFG, **objects))
        assert compiles() == before
    assert cli.main(["eval", str(tmp_path)]) == 1
    assert "tests.helpers.probes.Varied in the checkpoint, the default here; in Python, pass `env=`" in capsys.readouterr().err
    assert purerl.load(tmp_path, **given).updates == 1


@pytest.mark.long
@pytest.mark.slow
def test_run_does_not_load_with_other_environment_parameters(tmp_path):
    purerl.fit(CFG.replace(total_timesteps=64), directory=tmp_path, env=Varied(), env_params=Limit(4))
    with pytest.raises(purerl.CheckpointMismatch, match=r"env_params: \.max_steps_in_episode 4 in the checkpoint, .* 3 here"):
        purerl.load(tmp_path, env=Varied(), env_params=Limit(3))
    assert purerl.load(tmp_path, env=Varied(), env_params=Limit(4)).updates == 1


@pytest.mark.long
def test_objects_of_a_script_match_those_of_its_imported_module(tmp_path, fresh_python):
    """A notebook may import a script as a module: objects that the script defined as `__main__` match those of the module."""
    (tmp_path / "mine.py").write_text(
        "import purerl, tests.helpers.probes\nclass Mine(tests.helpers.probes.Varied): pass\n"
        "if __name__ == '__main__':\n    from tests.helpers.tiny import CFG\n"
        f"    purerl.fit(CFG.replace(total_timesteps=64), directory={str(tmp_path / 'run')!r}, env=Mine())\n"
    )
    fresh_python(f"import runpy; runpy.run_path({str(tmp_path / 'mine.py')!r}, run_name='__main__')")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import purerl, mine"
    assert fresh_python(f"{code}\nprint(purerl.load({str(tmp_path / 'run')!r}, env=mine.Mine()).updates)") == "1\n"


@pytest.mark.slow
def test_reading_a_directory_never_imports_the_modules_it_names(tmp_path, fresh_python):
    """The record names a module as environment, network and loss; no reader imports that module."""
    purerl.fit(CFG.replace(total_timesteps=64), directory=tmp_path / "run", env=Varied())
    (tmp_path / "sentinel.py").write_text("raise SystemExit('imported')")
    from purerl.runs.storage import checkpoint

    path = tmp_path / "run" / "checkpoints" / "1" / "_CHECKPOINT_METADATA"
    metadata = json.loads(path.read_text())
    record = json.loads(metadata["custom_metadata"]["record"])
    record["objects"] = {name: {"is": "sentinel.Mine"} for name in ("env", "network", "policy_loss", "sentinel")}
    record["config"]["env"] = "sentinel:Mine"
    text = json.dumps(record)
    metadata["custom_metadata"] = {"record": text, "sha256": checkpoint._sha256(text.encode())}
    path.write_text(json.dumps(metadata))
    code = f"""
import sys; sys.path.insert(0, {str(tmp_path)!r})
import purerl, purerl.cli
from tests.helpers.probes import Varied
from tests.helpers.tiny import CFG
directory = {str(tmp_path / "run")!r}
for read in (
    lambda: purerl.load(directory),
    lambda: purerl.load(directory, env=Varied()),
    lambda: purerl.fit(CFG.replace(total_timesteps=128), directory=directory, env=Varied()),
    lambda: purerl.restore(directory, purerl.make_train(CFG, env=Varied())),
):
    try:
        read()
        print("read")
    except (purerl.CheckpointError, purerl.ConfigError) as error:
        print(type(error).__name__)
for command in (["eval", directory], ["plot", directory, "--out", directory + ".png"], ["render", directory]):
    print(purerl.cli.main(command))
print("sentinel" in sys.modules)
"""
    out = fresh_python(code).split()
    assert out[:4] == ["CheckpointMismatch"] * 4
    assert out[-1] == "False"


@pytest.mark.long
def test_resuming_with_other_package_versions_warns(tmp_path, monkeypatch):
    stopped(tmp_path, 3)
    monkeypatch.setattr("purerl.runs.storage.objects.PACKAGES", ("purerl",))
    monkeypatch.setattr("purerl.__version__", "x")
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.0")
    with pytest.warns(UserWarning, match=r"not be bit-identical: purerl .* before, 0\.0 now"):
        fitted(directory=tmp_path)

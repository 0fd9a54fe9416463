"""The examples of docstrings, README and reference are run; every public name has one."""

import doctest
import pathlib
import re
import shlex

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx

import purerl
from purerl.cli import command, main
from purerl.cli.run_options import Training, Tuning

ROOT = pathlib.Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text()
REFERENCE = (ROOT / "notebooks" / "reference.md").read_text()


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Make a folder with the run `runs/a` that examples read: two seeds of two updates."""
    home = tmp_path_factory.mktemp("docs")
    cfg = purerl.PPOConfig(env="CartPole-v1", total_timesteps=1024)
    purerl.fit(cfg, directory=home / "runs" / "a", num_seeds=2, eval_every=1)
    return home


SLOW = ("tune", "TuneResult", "versus")  # README.md, too, has an example of `tune`
NAMES = [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in purerl.__all__]


@pytest.mark.slow
@pytest.mark.each_landing("versus")
@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_has_an_example_that_runs(name, home, monkeypatch):
    monkeypatch.chdir(home)
    known = {"purerl": purerl, "jax": jax, "jnp": jnp, "np": np, "nn": nn, "nnx": nnx}
    test = doctest.DocTestParser().get_doctest(getattr(purerl, name).__doc__, known, name, None, None)
    assert test.examples
    said = []
    failed, _ = doctest.DocTestRunner(optionflags=doctest.IGNORE_EXCEPTION_DETAIL).run(test, out=said.append)
    assert not failed, "".join(said)


# Replacements that make the README's examples small.
SMALLER = {
    "total_timesteps=500_000": "total_timesteps=1024",
    "total_timesteps=100_000": "total_timesteps=1024",
    "jax.random.key(0), 16)": "jax.random.key(0), 2)",
    "logspace(-4, -2, 8)": "logspace(-4, -2, 2)",
    "num_seeds=8": "num_seeds=4",
    "trials=16": "trials=2, rungs=1, finalists=1, final_seeds=2",
    "eval_every=50": "eval_every=1",
}
TUNED = ["--trials", "2", "--rungs", "1", "--finalists", "1", "--final-seeds", "2"]
QUICK = ["--total-timesteps", "1024", "--num-envs", "4", "--num-steps", "128", "--num-minibatches", "4", "--hidden", "8"]


# The studies, made smaller, train for fewer steps than an episode of CartPole may take.
@pytest.mark.filterwarnings("ignore:an episode may take 500 steps:UserWarning")
@pytest.mark.slow
def test_readme_examples_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = "\n".join(re.findall(r"```python\n(.*?)```", README, re.DOTALL))
    for whole, small in SMALLER.items():
        assert whole in code
        code = code.replace(whole, small)
    known = {}
    exec(code, known)
    assert known["fine"].progress.updates == 2


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:an episode may take 500 steps:UserWarning")
@pytest.mark.slow
def test_commands_in_the_reference_succeed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"^    purerl (.*?)(?: +#.*)?$", REFERENCE, re.MULTILINE)
    assert len(commands) == 9
    for line in commands:
        # Episodes of CartPole end soon.
        words = shlex.split(line.replace("tune ppo --env Acrobot-v1", "tune ppo --env CartPole-v1"))
        trains = words[0] in ("ppo", "tune")
        if trains and "runs/b" in words:
            assert main([*[word.replace("runs/b", "runs/a") for word in words], *QUICK]) == 0
        more = TUNED if words[0] == "tune" else []
        assert main([*words, *(QUICK if trains else []), *more]) == 0
    made = {"runs", "comparison.md", "curves.png", "agent.gif", "policy.jaxexport"}
    assert {path.name for path in tmp_path.iterdir()} == made


MADE_BY = {  # commands that read the directory of another one
    "plot runs/a": "ppo --env CartPole-v1 --num-seeds 8 --directory runs/a",
    "ppo --config runs/t/best.toml": "tune ppo --env Acrobot-v1 --directory runs/t",
}


@pytest.mark.filterwarnings("ignore:an episode may take:UserWarning")
@pytest.mark.slow
def test_examples_of_the_help_texts_run(tmp_path, monkeypatch):
    """The examples of all algorithms differ in the algorithm's name alone."""
    texts = "".join(text.__doc__ for text in (command, Training, Tuning))
    commands = list(dict.fromkeys(re.findall(r"^ *- purerl (.*)$", texts, re.MULTILINE)))
    assert len(commands) == 10
    for line in commands:
        home = tmp_path / str(commands.index(MADE_BY.get(line, line)))
        home.mkdir(exist_ok=True)
        (home / "flags.toml").write_text("lr = 1e-3\n")
        monkeypatch.chdir(home)
        words = shlex.split(line.replace("Acrobot-v1", "CartPole-v1"))
        small = [] if words[0] == "plot" else QUICK[:4] + QUICK[6:] if "num_steps" in line else QUICK  # swept
        small = [*small, *TUNED, "--num-seeds", "1"] if words[0] == "tune" else small
        assert main([*words, *small]) == 0, line


def test_readme_is_short():
    assert len(README.splitlines()) < 150
    assert len(README.split()) < 1300


@pytest.mark.parametrize("page", ["README.md", "notebooks/README.md", "notebooks/reference.md", ".github/CONTRIBUTING.md"])
def test_documentation_links_resolve(page):
    text = (ROOT / page).read_text()
    for target, section in re.findall(r"\]\(((?!http)[^)#]+)(?:#([^)]+))?\)", text):
        file = (ROOT / page).parent / target
        assert file.exists(), target
        headings = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE) if section else []
        assert not section or section in [heading.lower().replace(" ", "-") for heading in headings]
    for target in re.findall(r"`((?:notebooks|purerl)/[^` ]*)`", text):
        assert (ROOT / target).exists(), target

"""What the package promises as a whole: its floors, its imports, its documentation."""

import ast
import pathlib
import sys

import purerl

ROOT = pathlib.Path(purerl.__file__).parent
MODULES = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in ROOT.rglob("*.py")}

# A module imports only from floors below its own, or from those listed before it on its own floor.
FLOORS = """
types errors migrations durable fields on_policy config
clock keys reductions shuffle devices presets metrics plan initializers advantages losses distributions statistics
signals normalize objects
wrappers memory layers networks optimizers nonfinite envs.auto_reset envs.gymnax envs envs.previous progress curves
streams rollout phases replay
policy evaluate
algorithms algorithms.rnd algorithms.ppo algorithms.ppg algorithms.daac algorithms.appo
train
batch checkpoint recorders evaluations rendering export directory plots
runs
fit
console
cli
"""
ORDER = FLOORS.split()


def imports_of(path):
    """Every purerl module that a file imports, at its top or inside a function."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "absolute imports only"
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name.removeprefix("purerl.") in MODULES else node.module for name in inner)


def test_every_module_stands_on_a_floor():
    assert set(MODULES) - {"__init__"} == set(ORDER)


def test_modules_import_only_from_below():
    for name in ORDER:
        for imported in imports_of(MODULES[name]):
            if imported.startswith("purerl."):
                below = imported.removeprefix("purerl.")
                assert ORDER.index(below) < ORDER.index(name), f"{name} imports {below}"


def test_heavy_packages_are_imported_where_they_are_used():
    allowed = {
        "gymnax": {"envs.gymnax"},
        "flax.linen": {"networks", "layers", "memory", "algorithms.rnd"},
        "rich": {"console"},
        "orbax": {"checkpoint"},
        "tensorboardX": {"recorders"},
        "wandb": {"recorders"},
        "matplotlib": {"plots"},
        "tyro": {"cli"},
        "optax": {"optimizers"},
    }
    for name, path in MODULES.items():
        for imported in imports_of(path):
            for package, homes in allowed.items():
                if imported == package or imported.startswith(package + "."):
                    assert name in homes, f"{name} imports {imported}"


def test_no_code_from_data_and_no_assert_for_a_users_mistake():
    for path in MODULES.values():
        for node in ast.walk(ast.parse(path.read_text())):
            assert not isinstance(node, ast.Assert), path
            if isinstance(node, ast.Name):
                assert node.id not in {"eval", "exec", "__import__"}, path
            if isinstance(node, ast.Import | ast.ImportFrom):
                assert not {alias.name for alias in node.names} & {"pickle", "cloudpickle", "dill"}, path


def test_every_public_thing_is_documented():
    for name in ORDER:
        tree = ast.parse(MODULES[name].read_text())
        assert ast.get_docstring(tree), name
        for node in tree.body:
            public = isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
            one_liner = public and isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno <= 3
            assert not public or one_liner or ast.get_docstring(node), f"{name}.{node.name}"


def test_typed():
    assert (ROOT / "py.typed").exists()


def test_import_touches_nothing(fresh_python):
    code = """
import os, random, sys, numpy as np, jax, flax.linen, optax
before = os.environ.copy(), random.getstate(), np.random.get_state()[1].tolist(), dict(jax.config.values)
import purerl, purerl.fit
after = os.environ.copy(), random.getstate(), np.random.get_state()[1].tolist(), dict(jax.config.values)
print(before == after, jax._src.xla_bridge.backends_are_initialized())
print([name for name in ("gymnax", "matplotlib", "orbax", "tyro", "scipy") if name in sys.modules])
"""
    assert fresh_python(code).split("\n")[:2] == ["True False", "[]"]


def test_import_takes_little_more_than_what_it_stands_on(fresh_python):
    code = """
import time
start = time.process_time()
import jax, flax.linen, optax
base = time.process_time()
import purerl
print((time.process_time() - start) / (base - start))
"""
    assert min(float(fresh_python(code)) for _ in range(3)) <= 1.2


def test_the_command_is_installed_under_its_name():
    project = (ROOT.parent / "pyproject.toml").read_text()
    assert 'purerl = "purerl.cli:main"' in project
    assert sys.version_info >= (3, 11)

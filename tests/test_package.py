"""The package as a whole: layers, imports, documentation, style."""

import ast
import graphlib
import pathlib
import re
import sys

import yaml

import purerl

ROOT = pathlib.Path(purerl.__file__).parent
MODULES = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in ROOT.rglob("*.py")}

# A package imports only from packages on lower layers.
LAYERS = """
core
config
envs networks acting
learning
algorithms checks
pure
train
runs
studies
cli
__main__
"""
LAYER_OF = {package: i for i, layer in enumerate(LAYERS.split("\n")) for package in layer.split()}


def imports_of(path):
    """Yield every purerl module that a file imports, at its top or inside a function."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "absolute imports only"
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name.removeprefix("purerl.") in MODULES else node.module for name in inner)


def package_of(module):
    return module.split(".")[0]


def imported_by(name):
    """Return the purerl modules that a module imports."""
    return {x.removeprefix("purerl.") for x in imports_of(MODULES[name]) if x.startswith("purerl.")}


def test_every_module_is_in_a_known_package():
    assert {package_of(name) for name in MODULES} - {"__init__"} == set(LAYER_OF)
    assert len(list(ROOT.glob("*.py"))) <= 7


def test_packages_import_only_from_lower_layers():
    for name in set(MODULES) - {"__init__"}:
        for other in imported_by(name):
            same, below = package_of(other) == package_of(name), LAYER_OF[package_of(other)] < LAYER_OF[package_of(name)]
            assert same or below, f"{name} imports {other}"


def test_imports_have_no_cycles():
    graphlib.TopologicalSorter({name: imported_by(name) for name in MODULES}).prepare()


TESTS = ROOT.parent / "tests"
APART = ("helpers", "integration", "benchmarks", "ideas")  # folders of tests without a package of their name


def test_test_files_mirror_the_modules():
    modules = {(package_of(name), name.split(".")[-1]) for name in MODULES}
    for path in TESTS.rglob("test_*.py"):
        package, *_ = path.relative_to(TESTS).parts
        module = path.stem.removeprefix("test_")
        assert package in APART or (package, module) in modules or (module, module) in modules or module == "package", path


WITHOUT_TESTS = (  # modules without a test file of their name
    # Data, registries and short modules, covered by the tests of their users.
    "cli.run_options",
    "config.curiosity",
    "core.environment",
    "core.types",
    "core.streams",
    # Parts that the named tests cover.
    "pure",  # test_train
    "runs.session",  # runs/test_fit, runs/test_directory
    "runs.storage.orbax_v1",  # runs/test_checkpoint
    "studies.listing",  # studies/test_sweep, runs/test_evaluations
    "envs.external.gymnasium_spaces",  # envs/test_converted_spaces
    "envs.outputs",  # envs/test_conformance
    "envs.random_rollout",  # envs/test_conformance
    # Modules whose tests need many parts at once.
    "cli.by_path",  # integration/test_ideas
    "envs.importing",  # integration/test_opengl
    "envs.suites.navix",  # envs/test_suites
    "envs.suites.pgx",  # envs/test_suites
)


def test_every_module_has_a_test_file_of_its_name():
    modules = {name for name, path in MODULES.items() if not path.stem.startswith("__")}
    beside = {name: TESTS / package_of(name if "." in name else "") / f"test_{MODULES[name].stem}.py" for name in modules}
    assert {name for name, path in beside.items() if not path.exists()} == set(WITHOUT_TESTS)


def test_modules_are_short():
    assert max(len(path.read_text().splitlines()) for path in MODULES.values()) <= 350


def test_functions_are_short():
    """The body of a function has at most 60 lines, without its docstring, comments and blank lines."""
    for path in MODULES.values():
        lines = path.read_text().splitlines()
        is_code = lambda number: (text := lines[number - 1].strip()) and not text.startswith("#")  # noqa: B023
        for node in (x for x in ast.walk(ast.parse(path.read_text())) if isinstance(x, ast.FunctionDef)):
            body = node.body[ast.get_docstring(node) is not None :]
            assert not body or sum(map(bool, map(is_code, range(body[0].lineno, node.end_lineno + 1)))) <= 60, node.name


def test_test_files_do_not_import_each_other():
    for path in TESTS.rglob("*.py"):
        found = re.findall(r"^ *(?:from|import) (tests\.[\w.]*test_\w+)", path.read_text(), re.MULTILINE)
        # A process that a test starts may import the file of the test.
        own = ".".join(path.relative_to(TESTS.parent).with_suffix("").parts)
        assert set(found) <= {own}, path


def test_heavy_packages_are_imported_only_by_the_listed_modules():
    allowed = {
        "gymnax": {"envs.suites.gymnax"},
        "flax.linen": {
            *(
                "networks.actor_critic",
                "networks.foreign",
                "networks.layers",
                "networks.recurrent",
                "networks.torsos",
            ),
            "algorithms.rnd",
        },
        "rich": {"runs.logging.console"},
        "orbax": {"runs.storage.orbax_v1"},
        "tensorboardX": {"runs.logging.recorders"},
        "wandb": {"runs.logging.recorders"},
        "matplotlib": {"runs.analysis.plots", "studies.comparison", "envs.suites.gymnax", "envs.suites.jumanji"},
        "tyro": {"cli.commands", "cli.flags", "cli.command"},
        "optax": {"learning.custom", "learning.optimizers"},
    }
    for name, path in MODULES.items():
        for imported in imports_of(path):
            for package, homes in allowed.items():
                if imported == package or imported.startswith(package + "."):
                    assert name in homes, f"{name} imports {imported}"


def test_library_uses_no_eval_pickle_or_assert():
    for path in MODULES.values():
        for node in ast.walk(ast.parse(path.read_text())):
            assert not isinstance(node, ast.Assert), path
            if isinstance(node, ast.Name):
                assert node.id not in {"eval", "exec", "__import__"}, path
            if isinstance(node, ast.Import | ast.ImportFrom):
                assert not {alias.name for alias in node.names} & {"pickle", "cloudpickle", "dill"}, path


def test_every_public_object_is_documented():
    for name in MODULES:
        tree = ast.parse(MODULES[name].read_text())
        assert ast.get_docstring(tree), name
        for node in tree.body:
            public = isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
            one_liner = public and isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno <= 3
            assert not public or one_liner or ast.get_docstring(node), f"{name}.{node.name}"


def test_docstrings_do_not_open_with_a_clause():
    openers = re.compile(r"(What|Whether|That|Which|Of|Those|These|So many|How many|As in|None)\b")
    for path in (path for folder in (ROOT, ROOT.parent / "tests") for path in folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                assert not openers.match(ast.get_docstring(node) or ""), (path, getattr(node, "name", "module"))


def test_dir_lists_only_public_names():
    assert dir(purerl) == sorted([*purerl.__all__, "__version__"])
    assert all(getattr(purerl, name).__doc__ for name in purerl.__all__)


def test_package_is_marked_as_typed():
    assert (ROOT / "py.typed").exists()


def test_import_has_no_side_effects(fresh_python):
    code = """
import os, random, sys, numpy as np, jax, flax.linen, optax
before = os.environ.copy(), random.getstate(), np.random.get_state()[1].tolist(), dict(jax.config.values)
import purerl, purerl.runs.fit
after = os.environ.copy(), random.getstate(), np.random.get_state()[1].tolist(), dict(jax.config.values)
print(before == after, jax._src.xla_bridge.backends_are_initialized())
print([name for name in ("gymnax", "matplotlib", "orbax", "tyro", "scipy") if name in sys.modules])
"""
    assert fresh_python(code).split("\n")[:2] == ["True False", "[]"]


def test_import_takes_little_longer_than_its_dependencies(fresh_python):
    code = """
import time
start = time.process_time()
import jax, flax.linen, optax
base = time.process_time()
import purerl
print((time.process_time() - start) / (base - start))
"""
    as_installed = {"PYTHONDONTWRITEBYTECODE": ""}  # with bytecode, as pip installs it
    assert min(float(fresh_python(code, **as_installed)) for _ in range(3)) <= 1.2


def test_command_is_installed_as_purerl():
    project = (ROOT.parent / "pyproject.toml").read_text()
    assert 'purerl = "purerl.cli:main"' in project
    assert sys.version_info >= (3, 11)


def test_workflows_call_the_test_commands():
    folder = ROOT.parent / ".github" / "workflows"
    for name, command in (("ci", ".ci/test"), ("slow", ".ci/run")):
        workflow = yaml.safe_load((folder / f"{name}.yml").read_text())
        (job,) = workflow["jobs"].values()
        assert [step["run"] for step in job["steps"] if "run" in step] == [command]
        assert workflow[True]  # YAML reads the key `on` as true
    forms = list((ROOT.parent / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
    assert all(yaml.safe_load(form.read_text())["body"] for form in forms)
    hooks = yaml.safe_load((ROOT.parent / ".pre-commit-config.yaml").read_text())["repos"]
    assert [repo["repo"] for repo in hooks] == ["local"]


def test_scripts_name_tests_that_exist():
    for script in (ROOT.parent / ".ci").iterdir():
        for path in re.findall(r"tests/[\w/]+\.py", script.read_text()):
            assert (ROOT.parent / path).exists(), path


def test_notebook_index_lists_every_notebook():
    folder = ROOT.parent / "notebooks"
    index = (folder / "README.md").read_text()
    assert sorted(re.findall(r"\((\w+\.ipynb)\)", index)) == sorted(path.name for path in folder.glob("*.ipynb"))
    for link in re.findall(r"\]\(([^)]+)\)", index):
        assert (folder / link).exists(), link


def test_module_and_class_names_are_unique():
    modules = [path.stem for path in MODULES.values() if path.stem != "__init__"]
    assert not {name for name in modules if modules.count(name) > 1}
    trees = [
        ast.parse(path.read_text()) for name, path in MODULES.items() if not name.startswith("cli")
    ]  # its classes are commands
    classes = [node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)]
    assert not {name for name in classes if classes.count(name) > 1}

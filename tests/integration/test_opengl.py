"""Suites that render with OpenGL train without it. A separate process hides the libraries of OpenGL."""

import pytest

WITHOUT_OPENGL = """
import ctypes, ctypes.util, os, sys

HIDDEN = ("EGL", "GL", "GLESv1_CM", "GLESv2", "GLX", "OSMesa", "OpenGL")
find, load = ctypes.util.find_library, ctypes.CDLL.__init__

def load_others(self, name, *args, **kwargs):
    if name and os.path.basename(str(name)).removeprefix("lib").split(".")[0] in HIDDEN:
        raise OSError(f"{name}: cannot open shared object file: No such file or directory")
    load(self, name, *args, **kwargs)

ctypes.util.find_library = lambda name: None if name in HIDDEN else find(name)
ctypes.CDLL.__init__ = load_others  # ctypes.cdll.LoadLibrary calls it too
"""

IMPORT_MUJOCO = """
from purerl.envs.importing import importing_mujoco
with importing_mujoco():
    import mujoco
mujoco.mj_step(model := mujoco.MjModel.from_xml_string("<mujoco/>"), mujoco.MjData(model))
print(os.environ.get("MUJOCO_GL"), hasattr(mujoco, "GLContext"))
"""

TRAIN_AND_DRAW = """
import jax, purerl

for env in ("gymnasium/HalfCheetah-v5", "playground/CartpoleBalance", "brax/inverted_pendulum"):
    sizes = {"num_envs": 2, "num_steps": 4, "num_minibatches": 1, "num_epochs": 1, "hidden": (4,), "total_timesteps": 8}
    train = purerl.make_train(purerl.PPOConfig(env=env, **sizes))
    key = jax.random.key(0)
    jax.jit(train)(key) if train.env.host else jax.eval_shape(train, key)
    try:
        train.env.host.start_recording() if train.env.host else train.env.draw([], [], "a.gif")
    except purerl.ConfigError as error:
        print(error)
print(os.environ.get("MUJOCO_GL"))
"""


@pytest.mark.parametrize("way", ["egl", pytest.param("osmesa", marks=pytest.mark.slow)])
def test_mujoco_imports_without_opengl_and_keeps_the_users_mujoco_gl(way, fresh_python):
    pytest.importorskip("mujoco")
    assert fresh_python(WITHOUT_OPENGL + IMPORT_MUJOCO, MUJOCO_GL=way, DISPLAY="").split() == [way, "False"]


@pytest.mark.slow
def test_suites_train_without_opengl_and_rendering_says_what_to_install(fresh_python, tmp_path):
    for package in ("mujoco_playground", "brax", "gymnasium.envs.mujoco"):
        pytest.importorskip(package)
    says = fresh_python(WITHOUT_OPENGL + TRAIN_AND_DRAW, cwd=tmp_path, MUJOCO_GL="", DISPLAY="")
    assert says.count("apt-get install libegl1 libgl1") == 3
    assert says.split()[-1] == "None"

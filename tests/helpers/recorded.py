"""Parameters of fourteen configs after three updates, recorded as a reference for changed code.

python -m tests.helpers.recorded [NAME ...]    records parameters of all or the named configs on this machine

`params.npz` has the parameters. `hashes.json` has their hashes for each jaxlib, kind of CPU and XLA flags, on which the bits
depend. Leaves are concatenated without their paths, so a new name of a parameter that keeps the order changes nothing.
"""

import hashlib
import json
import os
import pathlib
import re
import sys

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np

import purerl
from purerl import APPOConfig, DAACConfig, PPGConfig, PPOConfig, RNDConfig
from tests.helpers.probes import Rich, Varied, boxed

TOLERANCE = 1e-6  # between the parameters of machines whose bits differ
HERE = pathlib.Path(__file__).parent.parent / "data" / "recorded"
SIZES = {"total_timesteps": 192, "num_envs": 4, "num_steps": 16, "num_minibatches": 2, "hidden": (16, 16), "lr": 1e-3}
OF_02 = {"ent_coef": 0.01, "normalize_obs": False, "normalize_reward": False, "value_clip": "max"}  # for all actions
NORMALISED = {"normalize_obs": True, "normalize_reward": True, "normalize_value": True}
MEMORY = {"memory_size": 8, "sequence_length": 8}
PPO = PPOConfig(**SIZES, num_epochs=2)
RATES = np.array([1e-3, 3e-3], np.float32)

CASES = {  # config and environment; the configs set every field whose default could change
    "ppo": (PPO, Varied),
    "ppg": (PPGConfig(**SIZES, n_pi=2, e_aux=2, aux_columns=4, vf_coef=0.5, max_grad_norm=0.5), Varied),
    "daac": (DAACConfig(**SIZES, e_v=2, value_freq=2), Varied),
    "appo": (APPOConfig(**SIZES, num_epochs=2, replay=2, lag=1), Varied),
    "ring with lag": (APPOConfig(**SIZES, num_epochs=2, replay=3, lag=2, replay_order="random", max_uses=2), Varied),
    "gru": (PPO.replace(memory="gru", **MEMORY), Varied),
    "lstm": (PPO.replace(memory="lstm", arch="shared", memory_inputs=("action", "reward"), **MEMORY), Varied),
    "rnd": (PPO.replace(rnd=RNDConfig(features=8, hidden=(16,), init_steps=100)), Varied),
    "box": (PPO.replace(**OF_02), boxed(Varied)),
    "normalised": (PPO.replace(**NORMALISED, reward_clip=10.0), Varied),
    "rich": (PPO.replace(**NORMALISED, action_mask="legal", critic_obs="secret"), Rich),
    "kl adaptive": (PPO.replace(lr_schedule="kl_adaptive", kl_penalty="adaptive"), Varied),
    "adamw": (PPO.replace(optimizer="adamw", max_grad_norm=np.inf), Varied),
    "sweep": (jax.vmap(lambda lr: PPO.replace(lr=lr))(RATES), Varied),
}


def circumstances():
    """Return a text with the version of jaxlib, the processor and the XLA flags, on which the bits depend."""
    cpu = pathlib.Path("/proc/cpuinfo").read_text() if os.path.exists("/proc/cpuinfo") else ""
    found = {name: re.search(rf"^{name}\s*: (.*)$", cpu, re.MULTILINE) for name in ("model name", "flags")}
    model, features = (match[1] if match else "" for match in found.values())
    features = hashlib.sha256(features.encode()).hexdigest()[:8]
    flags = " ".join(sorted({flag for flag in os.environ.get("XLA_FLAGS", "").split() if "device_count" not in flag}))
    return f"jaxlib {jaxlib.__version__}, {model} {features}" + (f", {flags}" if flags else "")


def params(name):
    """Return the parameters of a config after three updates, concatenated: `[numbers]` float32."""
    cfg, env = CASES[name]
    run = lambda cfg, key: purerl.make_train(cfg, env=env())(key).state.params
    if np.ndim(cfg.lr):
        run = jax.vmap(run, in_axes=(jax.tree.map(lambda x: 0 if np.ndim(x) else None, cfg), None))
    # A config that is not an argument is a constant of the compiled program, as after a user's `make_train(cfg)`.
    found = jax.jit(run)(cfg, jax.random.key(0)) if np.ndim(cfg.lr) else jax.jit(lambda key: run(cfg, key))(jax.random.key(0))
    return np.concatenate([np.asarray(x, np.float32).ravel() for x in jax.tree.leaves(found)])


def digest(numbers):
    return hashlib.sha256(numbers.tobytes()).hexdigest()


def recorded():
    """Return a dict from circumstances to the hash of each case, and a dict from case to parameters."""
    path = HERE / "hashes.json"
    hashes = json.loads(path.read_text()) if path.exists() else {}
    if not (HERE / "params.npz").exists():
        return hashes, {}
    with np.load(HERE / "params.npz", allow_pickle=False) as file:
        return hashes, {name: file[name] for name in file.files}


def main(names):
    hashes, numbers = recorded()
    mine = hashes.setdefault(circumstances(), {})
    for name in names or CASES:
        found = params(name)
        if numbers.get(name) is None or not np.allclose(found, numbers[name], rtol=TOLERANCE, atol=TOLERANCE):
            numbers[name] = found
            for others in hashes.values():
                others.pop(name, None)  # hashes of other machines belong to the old parameters
        mine[name] = digest(found)
    HERE.mkdir(exist_ok=True)
    (HERE / "hashes.json").write_text(json.dumps(hashes, indent=1) + "\n")
    np.savez_compressed(HERE / "params.npz", **{name: numbers[name] for name in CASES})


if __name__ == "__main__":
    jnp.zeros(())  # start the backend of JAX first
    main(sys.argv[1:])

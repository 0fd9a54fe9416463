"""Count or time purejaxrl's programs in the virtual environment that `programs.py` describes; print one JSON line.

    python programs_purejaxrl.py PATH TARGET '{"memory": false, "env": ..., ...}'

TARGET is a device to compile for, or `time` to time runs on this machine.

purejaxrl needs repairs to run on current packages. `gymnax.wrappers.purerl` replaces its `wrappers.py`, which imports brax and
navix. In `ppo_rnn.py`, the GRU cell is constructed with its size, `nn.GRUCell(features=128)`, and the initial carry is zeros.
"""

import json
import pathlib
import sys

import gymnax.wrappers.purerl
import jax
import jax.numpy as jnp
from programs_counting import compiled_for, counts
from speed_timing import timed

UPDATES = 7
FIXED = {"LR": 2.5e-4, "UPDATE_EPOCHS": 4, "GAMMA": 0.99, "GAE_LAMBDA": 0.95, "CLIP_EPS": 0.2, "ENT_COEF": 0.01}
FIXED |= {"VF_COEF": 0.5, "MAX_GRAD_NORM": 0.5, "ACTIVATION": "tanh", "ANNEAL_LR": True, "DEBUG": False}


def main(path, target, work):
    work = json.loads(work)
    source = (pathlib.Path(path) / "purejaxrl" / ("ppo_rnn.py" if work["memory"] else "ppo.py")).read_text()
    source = source.replace("nn.GRUCell()", "nn.GRUCell(features=128)")
    sys.modules["wrappers"] = gymnax.wrappers.purerl
    module = {"__name__": "purejaxrl_program"}
    exec(compile(source, "purejaxrl", "exec"), module)
    if work["memory"]:
        module["ScannedRNN"].initialize_carry = staticmethod(lambda batch, size: jnp.zeros((batch, size)))
    sizes = {"NUM_ENVS": work["num_envs"], "NUM_STEPS": work["num_steps"], "NUM_MINIBATCHES": work["num_minibatches"]}
    steps = work["total_timesteps"] if target == "time" else work["num_envs"] * work["num_steps"] * UPDATES
    train = module["make_train"](FIXED | sizes | {"ENV_NAME": work["env"], "TOTAL_TIMESTEPS": steps})
    if target == "time":
        seeds = work["seeds"]
        keys = jax.random.split(jax.random.PRNGKey(0), seeds)
        run, given = (jax.vmap(train), keys) if seeds > 1 else (train, keys[0])
        print(json.dumps(timed(run, given, seeds * steps, work.get("repeats", 3), work.get("turns", False))))
    else:
        compiled = compiled_for(target, train, jax.eval_shape(lambda: jax.random.PRNGKey(0)))
        print(json.dumps(counts(compiled, every=UPDATES)))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""GPU measurements: speed beside purejaxrl, learning, smoke tests, and a profile. `gpu.md` shows the results.

    python3 -m venv .venv && .venv/bin/pip install '.[cuda,suites]'
    .venv/bin/python -m tests.benchmarks.gpu --purejaxrl purejaxrl --peer .venv-purejaxrl/bin/python [PART ...]

A PART is a part, such as `learning`, or one row of a part, such as `learning:brax/ant`. The default parts take ten minutes.
`programs.py` has the commands that install purejaxrl; without it, only purerl is measured. Each program is a process. As many
programs as the host has cores compile side by side, then run in turn. Each result is saved at once. The parts are:

    speed     environment steps per second of whole calls of `train`; their ratio to purejaxrl's; memory; the bits of two calls
    rates     the same for environments with slow resets, without a peer
    learning  returns of eight seeds in one `vmap`, from 128 episodes for each seed; for Craftax, the curve of one seed
    presets   the curve of one seed for each preset with published settings that was not run elsewhere; only if named
    smoke     a test that all parameters are finite after one update of each algorithm
    profile   the kernels of an update of B that take the most time
    start     seconds of the first update in a new process, and in the next one with its compiled programs: in all, tracing,
              lowering, XLA with autotuning
    fused     microseconds for the networks and gradients of a minibatch, by XLA and by several fused kernels; only if named

The learning of brax/ant is measured beside brax's own PPO. The PPO of Craftax_Baselines is a script without a package, and is not
run.

For a machine without access to package registries, `--wheels DIRECTORY` downloads the wheels of all packages of this environment
and, into DIRECTORY/purejaxrl, those of purejaxrl's. There, `pip install --no-index --no-deps DIRECTORY/*.whl` installs them.

`--small` runs small versions of the parts in a few minutes on a CPU, to test this script. Results of one device and commit are
added to those in the file.
"""

import argparse
import collections
import glob
import importlib.metadata
import itertools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

from purerl.runs.storage.files import atomic_write
from tests.benchmarks.programs import GRU, IMAGES, LARGE, SMALL

HERE = pathlib.Path(__file__).parent
PATH = HERE / "gpu.json"
CRAFTAX = {"num_steps": 64, "num_minibatches": 8, "lr": 2e-4, "hidden": (512, 512, 512), "lr_schedule": "linear"}
DM_CONTROL = {"num_envs": 2048, "num_steps": 30, "num_minibatches": 32, "num_epochs": 8, "lr": 1e-3, "gamma": 0.995}
DM_CONTROL |= {"ent_coef": 0.01, "normalize_obs": True, "normalize_reward": True, "hidden": (128, 128), "activation": "swish"}
SPEED = {  # hyperparameters, seeds, environment steps of each seed
    "A": (SMALL, 1, 200_000),
    "B": (LARGE, 1, 10_000_000),
    "B, 65,536 environments": (LARGE | {"num_envs": 65_536}, 1, 60_000_000),
    "C, MLP": (IMAGES | {"torso": "mlp"}, 1, 5_000_000),
    "C, convolutions": (IMAGES | {"torso": "cnn"}, 1, 5_000_000),
    "D, 16 seeds": (SMALL, 16, 100_000),
    "D, 256 seeds": (SMALL, 256, 50_000),
    "D, 2048 seeds": (SMALL, 2048, 25_000),
    "GRU": (LARGE | GRU, 1, 655_360),
    "GRU, 4 x 128": (SMALL | GRU, 1, 20_480),
}
for name in ("A", "B", "B, 65,536 environments", "C, MLP", "D, 256 seeds", "D, 2048 seeds"):
    changes, seeds, steps = SPEED[name]
    SPEED[f"{name}, fused"] = (changes | {"kernels": "fused"}, seeds, steps)
RATES = {
    "Craftax, 1024 environments": ("craftax/Craftax-Symbolic-v1", CRAFTAX | {"num_envs": 1024}, 1, 1_000_000),
    "Craftax, 4096 environments": ("craftax/Craftax-Symbolic-v1", CRAFTAX | {"num_envs": 4096}, 1, 2_000_000),
}
LEARNING = {  # preset or environment, hyperparameters, seeds, environment steps of each seed
    "playground/CartpoleBalance": (DM_CONTROL, 8, 4_000_000),
    "craftax/Craftax-Symbolic-v1": (CRAFTAX | {"num_envs": 1024}, 1, 30_000_000),
    "brax/ant": ({}, 8, 30_000_000),
    "playground/CheetahRun": (DM_CONTROL, 8, 6_000_000),
}
FUSED = (
    "xla",
    *(f"{rows} rows, {programs} programs, {warps} warps" for rows in (16, 32) for programs in (128, 264) for warps in (4, 8)),
)
OF_PUREJAXRL = ("gymnax==0.0.9", "distrax", "tfp-nightly")
ANT_OF_BRAX = {"num_evals": 5, "reward_scaling": 10, "episode_length": 1000, "normalize_observations": True, "unroll_length": 5}
ANT_OF_BRAX |= {"num_minibatches": 32, "num_updates_per_batch": 4, "discounting": 0.97, "learning_rate": 3e-4}
ANT_OF_BRAX |= {"entropy_cost": 1e-2, "num_envs": 4096, "batch_size": 2048}
# Run in a process of its own: an update of the default config, with the seconds that JAX reports for its parts.
START = """
import json, time
begin = time.perf_counter()
import jax
import purerl
spent = {}
add = lambda event, seconds, **_: spent.update({event: spent.get(event, 0.0) + seconds})
jax.monitoring.register_event_duration_secs_listener(add)
imported = time.perf_counter()
purerl.fit(purerl.PPOConfig(total_timesteps=512), progress=False)
names = {"tracing": "jaxpr_trace", "lowering": "jaxpr_to_mlir_module", "XLA": "backend_compile"}
parts = {name: sum(x for event, x in spent.items() if part in event) for name, part in names.items()}
print(json.dumps({"import": imported - begin, "first update": time.perf_counter() - imported, **parts}))
"""
ON_TWO_CORES = ("CartpoleBalance", "CartpoleSwingup")  # tasks of Playground whose presets were run on two cores
SMOKE = ("ppo", "ppg", "daac", "appo", "rnd", "lstm", "min_gru", "bfloat16", "fused")


def timed_in_turn(run, given, env_steps, repeats=2):
    """Compile `run(given)`, wait for a line of input, and time the runs; return the last result and the measurements."""
    import jax
    import numpy as np

    begin = time.perf_counter()
    compiled = jax.jit(run).lower(given).compile()
    compiling, results, speeds = time.perf_counter() - begin, [], []
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(repeats):
        begin = time.perf_counter()
        results.append(jax.block_until_ready(compiled(given)))
        speeds.append(env_steps / (time.perf_counter() - begin))
    raw = lambda x: jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x
    bits = lambda x, y: np.asarray(raw(x)).tobytes() == np.asarray(raw(y)).tobytes()
    same = all(map(bits, jax.tree.leaves(results[0]), jax.tree.leaves(results[-1])))
    memory = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0) / 1e6
    return results[-1], {"compile": compiling, "speeds": speeds, "megabytes": memory, "same_bits": same}


def speed(cfg, seeds):
    """Measure whole calls of `train`; several seeds run in one `vmap`."""
    import jax

    import purerl

    train, keys = purerl.make_train(cfg), jax.random.split(jax.random.key(0), seeds)
    run, given = (jax.vmap(train), keys) if seeds > 1 else (train, keys[0])
    return timed_in_turn(run, given, seeds * train.plan.env_steps)[1]


def learning(cfg, seeds):
    """Train seeds in one `vmap`; return measurements, the curve of mean returns, and for several seeds scores of 128 episodes."""
    import jax
    import numpy as np

    import purerl

    train, keys = purerl.make_train(cfg), jax.random.split(jax.random.key(1), seeds)
    result, found = timed_in_turn(jax.vmap(train), keys, seeds * train.plan.env_steps, repeats=1)
    returns = purerl.summarize(result.metrics)["episode_return"]  # [seeds, records]
    rows = [int(i) for i in np.linspace(0, returns.shape[1] - 1, 16)]
    curve = {int((i + 1) * train.plan.env_steps / returns.shape[1]): np.nanmean(returns[:, i]).item() for i in rows}
    if seeds > 1:
        play = lambda state, key: train.evaluate(state, key, 128, deterministic=True).returns.mean()
        found["scores"] = jax.jit(jax.vmap(play))(result.state, keys).tolist()
    return found | {"curve": curve, "steps": train.plan.env_steps}


def smoke(name):
    """Return True if all parameters are finite after an update of an algorithm."""
    import jax
    import jax.numpy as jnp

    import purerl

    others = {"ppg": purerl.PPGConfig, "daac": purerl.DAACConfig, "appo": purerl.APPOConfig}
    changes = {"rnd": {"rnd": purerl.RNDConfig()}, "lstm": {"memory": "lstm"}, "min_gru": {"memory": "min_gru"}}
    changes |= {"fused": {"kernels": "fused"}, "bfloat16": {"compute_dtype": "bfloat16"}, "ppg": {"n_pi": 1, "e_aux": 1}}
    train = purerl.make_train(others.get(name, purerl.PPOConfig)(num_envs=64, num_steps=8, **changes.get(name, {})))
    update = jax.jit(train.update).lower(jax.eval_shape(train.init, jax.random.key(0))).compile()
    print("ready", flush=True)
    sys.stdin.readline()
    state, _ = update(jax.jit(train.init)(jax.random.key(0)))
    return all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves(state.params))


def fused(name):
    """Time the outputs and gradients of two networks; return microseconds for each size, number of batch rows and of seeds.

    The widest network is that of ant, which configs refuse with fused kernels.
    """
    import jax
    import jax.numpy as jnp

    from purerl.networks import fused_kernels
    from purerl.networks.fused import apply_dense_layers, apply_fused_layers, pack_layers
    from tests.helpers.layers import group_of

    interpret = jax.default_backend() == "cpu"
    if name != "xla":
        numbers = [int(x) for x in name.split() if x.isdigit()]
        fused_kernels.ROWS, fused_kernels.PROGRAMS, fused_kernels.WARPS = numbers
    key = jax.random.key(0)
    layer = lambda x: {"kernel": jax.random.normal(jax.random.fold_in(key, x[1]), x) / 8, "bias": jnp.zeros(x[1])}

    def by_xla(networks, x):
        heads = [apply_dense_layers(hidden, x, jnp.tanh) @ head["kernel"] + head["bias"][None] for *hidden, head in networks]
        return sum(jnp.square(y).sum() for y in heads)

    def by_kernels(networks, x):
        return jnp.square(apply_fused_layers(pack_layers([group_of(x) for x in networks]), x, jnp.tanh, interpret)).sum()

    gradient, calls = jax.value_and_grad(by_xla if name == "xla" else by_kernels), {}
    batches = ((32, 1), (16, 2)) if interpret else ((128, 1), (2048, 1), (65_536, 1), (128, 2048))
    measured = [((4, 64, 64, 2), *batch) for batch in batches]
    measured += [(sizes, *batch) for sizes in ((16, 128, 128, 8), (87, 256, 256, 8)) for batch in batches if batch[1] == 1]
    for sizes, rows, seeds in measured:
        layers = list(map(layer, itertools.pairwise(sizes)))
        many = jax.tree.map(lambda x: jnp.broadcast_to(x, (seeds, *x.shape)), [layers, layers])  # noqa: B023
        given = many, jax.random.normal(key, (seeds, rows, sizes[0]))
        what = f"{'-'.join(map(str, sizes))}, {rows} rows, {seeds} seeds"
        try:
            calls[what] = jax.jit(jax.vmap(gradient)).lower(*given).compile(), given
        except Exception as error:  # the compiler may refuse a network that configs refuse, too
            if max(sizes) <= 128:
                raise
            print(f"{what}: {error}", file=sys.stderr)
    print("ready", flush=True)
    sys.stdin.readline()
    found = {}
    for what, (call, given) in calls.items():
        jax.block_until_ready(call(*given))
        begin = time.perf_counter()
        for _ in range(50):
            last = call(*given)
        jax.block_until_ready(last)
        found[what] = (time.perf_counter() - begin) / 50 * 1e6
    return found


def start():
    """Return the seconds of the first update in two processes, one after the other, which share a cache of programs."""
    print("ready", flush=True)
    sys.stdin.readline()
    with tempfile.TemporaryDirectory() as cache:
        run = lambda: subprocess.check_output([sys.executable, "-c", START], env=os.environ | {"PURERL_CACHE": cache}, text=True)
        return {which: json.loads(run().splitlines()[-1]) for which in ("first start", "second start")}


def ant_of_brax(steps, small):
    """Train ant by brax's own PPO with its published settings; return the seconds with compilation, and the mean returns."""
    import jax
    import jax.numpy as jnp
    from brax import envs
    from brax.training.agents.ppo import train as ppo

    # brax 0.14 calls this function, which newer versions of JAX have no more.
    jax.device_put_replicated = lambda tree, devices: jax.tree.map(lambda x: jnp.stack([jnp.asarray(x)] * len(devices)), tree)
    print("ready", flush=True)
    sys.stdin.readline()
    begin, curve = time.perf_counter(), {}
    progress = lambda step, metrics: curve.update({int(step): float(metrics["eval/episode_reward"])})
    sizes = {"num_envs": 8, "batch_size": 8, "num_minibatches": 1, "num_evals": 1, "num_eval_envs": 2, "episode_length": 4}
    settings = ANT_OF_BRAX | (sizes if small else {})
    env = envs.get_environment("ant", backend="positional")
    ppo.train(environment=env, num_timesteps=80 if small else steps, seed=1, progress_fn=progress, **settings)
    return {"seconds": time.perf_counter() - begin, "curve": curve}


def profile(cfg):
    """Trace three updates; return the milliseconds and the number of kernels of an update, and its slowest kernels."""
    import jax
    from jax.profiler import ProfileData

    import purerl

    train = purerl.make_train(cfg)
    update = jax.jit(train.update)
    state, _ = jax.block_until_ready(update(jax.jit(train.init)(jax.random.key(0))))
    print("ready", flush=True)
    sys.stdin.readline()
    with tempfile.TemporaryDirectory() as directory:
        with jax.profiler.trace(directory):
            for _ in range(3):
                state, _ = update(state)
            jax.block_until_ready(state)
        data = ProfileData.from_file(glob.glob(f"{directory}/**/*.xplane.pb", recursive=True)[0])
    spent = collections.defaultdict(lambda: [0.0, 0.0])
    lines = [line for plane in data.planes if "GPU" in plane.name for line in plane.lines if "Stream" in line.name]
    for event in (event for line in lines for event in line.events):
        spent[event.name][0] += event.duration_ns / 3e6
        spent[event.name][1] += 1 / 3
    rows = sorted(spent.items(), key=lambda row: -row[1][0])
    return {"milliseconds": sum(x for _, (x, _) in rows), "kernels": sum(n for _, (_, n) in rows), "most": rows[:30]}


def config(part, name, small):
    """Return the config and the number of seeds of a program."""
    import purerl
    from purerl.config.presets import presets

    if part == "speed" or part == "profile":
        changes, seeds, steps = SPEED[name]
        cfg = purerl.PPOConfig()
    elif part == "rates":
        env, changes, seeds, steps = RATES[name]
        cfg = purerl.preset(env)
    elif part == "presets":
        cfg = purerl.preset(name)
        changes, seeds, steps = {}, 1, cfg.total_timesteps
    else:
        changes, seeds, steps = LEARNING[name]
        cfg = purerl.preset(name) if name in presets() else purerl.PPOConfig(env=name)
    if small:
        sizes = {"num_envs": 8, "num_steps": 4, "num_minibatches": 2, "total_timesteps": 64}
        return cfg.replace(**changes | sizes), min(seeds, 2)
    return cfg.replace(**changes, total_timesteps=steps), seeds


def one(part, name, small):
    """Run one program in this process, and return its result."""
    if part == "start":
        return start()
    if part == "of brax":
        return ant_of_brax(LEARNING[name][2], small)
    if part in ("smoke", "fused"):
        return (smoke if part == "smoke" else fused)(name)
    cfg, seeds = config(part, name, small)
    return profile(cfg) if part == "profile" else (learning if part in ("learning", "presets") else speed)(cfg, seeds)


def published():
    """Return the names of presets with published settings that were not run on two cores or a GPU."""
    from purerl.config.presets import presets

    run = {"brax/ant", "brax/inverted_pendulum", "brax/reacher", "pgx/minatar-breakout"}
    run |= {f"playground/{name}" for name in ON_TWO_CORES}
    suites = ("brax/", "craftax/Craftax-Symbolic", "pgx/", "playground/")
    return [name for name in presets() if name.startswith(suites) and name not in run]


def commands(parts, small, purejaxrl, peer):
    """Return a dict from `(part, name, library)` to the command of a program. Programs of one row are neighbours."""
    made = {}
    named = {"speed": SPEED, "rates": RATES, "learning": LEARNING, "smoke": SMOKE, "profile": ("B",), "fused": FUSED}
    named |= {"presets": published(), "start": ("fit",)}
    chosen = [part.partition(":") for part in parts]
    for part, name in [(kind, name) for kind, _, only in chosen for name in ([only] if only else named[kind])]:
        made[part, name, "purerl"] = [sys.executable, "-m", "tests.benchmarks.gpu", "--one", json.dumps([part, name, small])]
        if (part, name) == ("learning", "brax/ant"):
            made[part, name, "brax"] = [
                sys.executable,
                "-m",
                "tests.benchmarks.gpu",
                "--one",
                json.dumps(["of brax", name, small]),
            ]
        alone = part != "speed" or SPEED[name][0].get("torso") == "cnn" or "kernels" in SPEED[name][0]
        if purejaxrl and not small and not alone:  # purejaxrl has no convolutions, and the rows with fused kernels have its rows
            changes, seeds, steps = SPEED[name]
            work = {key: changes[key] for key in ("env", "num_envs", "num_steps", "num_minibatches")} | {"repeats": 2}
            work |= {"memory": "memory" in changes, "seeds": seeds, "total_timesteps": steps, "turns": True}
            made[part, name, "purejaxrl"] = [peer, str(HERE / "programs_purejaxrl.py"), purejaxrl, "time", json.dumps(work)]
    return made


def run_in_turn(made, width, keep, logs):
    """Run programs in groups of `width`: compile side by side, then run in turn; call `keep(key, result)` after each."""
    keys = list(made)
    for start in range(0, len(keys), width):
        group = {}
        for key in keys[start : start + width]:
            environment = os.environ | {"PURERL_CACHE": "off", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
            with open(logs / ("_".join(key).replace("/", "_").replace(" ", "_") + ".log"), "w") as log:
                pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log, "text": True}
                group[key] = subprocess.Popen(made[key], env=environment, **pipes)
        waiting = threading.Timer(300, lambda group=group: [process.kill() for process in group.values()])
        waiting.start()
        for process in group.values():
            while (line := process.stdout.readline()) and line.strip() != "ready":
                pass
        waiting.cancel()
        for key, process in group.items():
            with process:  # closes the pipes
                output = "" if process.poll() is not None else process.communicate("go\n")[0]
            keep(key, json.loads(output.splitlines()[-1]) if process.returncode == 0 else None)


def about():
    """Return the device, the versions, the date and the commit that are measured."""
    code = "import jax, flax, sys; print(jax.devices()[0].device_kind, jax.__version__, flax.__version__, sep='|')"
    device, *versions = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip().split("|")
    git = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(git, capture_output=True, text=True, cwd=HERE).stdout.strip() or os.environ.get("COMMIT", "")
    versions = {"python": sys.version.split()[0], **dict(zip(("jax", "flax"), versions, strict=True))}
    return {"device": device, "versions": versions, "date": time.strftime("%Y-%m-%d"), "commit": commit}


def download(directory):
    """Download the wheels of all installed packages except purerl, and those that purejaxrl needs in their place."""
    installed = {x.metadata["Name"]: x.version for x in importlib.metadata.distributions()}
    pinned = [f"{name}=={version}" for name, version in installed.items() if name not in ("purerl", "pip")]
    for packages, folder in ((pinned, directory), (OF_PUREJAXRL, f"{directory}/purejaxrl")):
        subprocess.check_call([sys.executable, "-m", "pip", "download", "--no-deps", "-d", folder, *packages])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", default=["speed", "rates", "smoke", "profile", "learning"])
    parser.add_argument("--purejaxrl", metavar="PATH")
    parser.add_argument("--peer", metavar="PYTHON")
    parser.add_argument("--out", default=str(PATH))
    parser.add_argument("--width", type=int, default=os.cpu_count())
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--wheels", metavar="DIRECTORY", help="download wheels, and measure nothing")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.wheels:
        return download(args.wheels)
    if args.one:
        print(json.dumps(one(*json.loads(args.one))))
        return 0
    out, begin, found = pathlib.Path(args.out), time.time(), about()
    if out == PATH and (args.small or found["device"] == "cpu"):
        parser.error("gpu.json has measurements of a GPU; use --out FILE")
    before = json.loads(out.read_text()) if out.exists() else {}
    found = before if all(before.get(name) == found[name] for name in ("device", "commit", "versions")) else found

    def keep(key, result):
        part, name, library = key
        row = found.setdefault(part, {}).setdefault(name, {})
        row[library] = result
        peer = found[part].get(name.removesuffix(", fused"), row).get("purejaxrl")
        if part == "speed" and result and peer and row["purerl"]:
            row["ratio"] = max(row["purerl"]["speeds"]) / max(peer["speeds"])
        print(f"{time.time() - begin:.0f} s", key, json.dumps(result)[:600], flush=True)
        try:
            atomic_write(out, (json.dumps(found, indent=1) + "\n").encode())
        except OSError as error:  # such as a full disk: the next result may be saved again
            print(f"{out} was not written: {error}", flush=True)

    logs = pathlib.Path(tempfile.mkdtemp()) if args.small else out.parent
    run_in_turn(commands(args.parts, args.small, args.purejaxrl, args.peer), args.width, keep, logs)
    return int(not all(row["purerl"] for row in found.get("smoke", {}).values()))


if __name__ == "__main__":
    sys.exit(main())

"""Tables of the README, of the pages of this folder, and of `migration.md`, made from JSON files of this folder and `names.csv`.

python -m tests.benchmarks.tables
"""

import json
import pathlib
import re

import numpy as np

from purerl.config.aliases import rows as names
from purerl.runs.analysis.statistics import interval, iqm
from tests.benchmarks.peers_tasks import TASKS, reached
from tests.benchmarks.references import REFERENCES

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent.parent
PAGES = (ROOT / "README.md", *sorted(HERE.glob("*.md")), ROOT / "notebooks" / "migration.md")


def render():
    """Rewrite the tables of all pages."""
    for page in PAGES:
        page.write_text(rendered(page.read_text()))


def rendered(text):
    """Return the text of a page with new tables."""
    for name in re.findall(r"<!-- table (.+?) -->\n", text):
        before, rest = text.split(f"<!-- table {name} -->\n")
        text = f"{before}<!-- table {name} -->\n{table(name)}\n<!-- end -->" + rest.split("<!-- end -->", 1)[1]
    return text


def table(name):
    """Return the table with a name: `study NAME`, `names SYSTEM`, or a key of `TABLES`."""
    kind, _, which = name.partition(" ")
    if kind == "study":
        return study_table(kept("studies")[which])
    return names_table(which) if kind == "names" else TABLES[name](kept(FILES.get(name, name)))


def kept(name):
    return json.loads((HERE / f"{name}.json").read_text())


def learning_table(results):
    """Make a row for each environment: its scores, the reference scores, and whether the interval reaches the reference."""
    lines = ["| environment | steps | IQM | 95 % interval | all seeds | gymnax | optimum | peer | reached |"]
    lines.append("|---|--:|--:|--:|--:|--:|--:|--:|---|")
    count = 0
    for name, reference in REFERENCES.items():
        if name not in results["purerl"]:
            continue
        score, peer = reference.score, _best_peer(results, name)
        row, digits = results["purerl"][name], 2 if score is not None and abs(score) < 2 else 1
        high = interval(np.array(row["scores"]))[1]
        says = lambda x, digits=digits: "" if x is None else f"{x:.{digits}f}".rstrip("0").rstrip(".")
        with_peer = says(iqm(np.array(peer))) if peer else ""
        compared = score if score is not None else iqm(np.array(peer)) if peer else None
        reached = "" if compared is None else "yes" if round(high, digits) >= compared else "no"
        cells = [*_learnt(name, row, digits), says(reference.published), says(reference.optimum), with_peer, reached]
        lines.append("| " + " | ".join(cells) + " |")
        count += reached == "yes"
    return "\n".join([*lines, "", f"{count} of {len(REFERENCES)} environments reach what they are compared with."])


def choices_table(choices):
    """List the candidates for presets, with the best candidate of each environment first."""
    lines = ["| environment | candidate | steps | mean | each tuning seed |", "|---|---|--:|--:|---|"]
    for env, rows in choices.items():
        for name, row in sorted(rows.items(), key=lambda item: -np.mean(item[1]["scores"])):
            digits = 2 if np.abs(row["scores"]).max() < 2 else 1
            each = ", ".join(f"{x:.{digits}f}" for x in row["scores"])
            steps, mean = int(row["config"]["total_timesteps"]), np.mean(row["scores"])
            cells = [env, name or "where the search began", f"{steps:,}", f"{mean:.{digits}f}", each]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def variants_table(results):
    """Make a row for each result without a reference: other algorithms and precisions on CartPole."""
    lines = ["| | steps | IQM | 95 % interval | all seeds |", "|---|--:|--:|--:|--:|"]
    for name, row in results["purerl"].items():
        if name not in REFERENCES:
            lines.append("| " + " | ".join(_learnt(name, row, 1)) + " |")
    return "\n".join(lines)


def _learnt(name, row, digits):
    scores = np.array(row["scores"])
    middle, low, high, least, most = (f"{x:.{digits}f}" for x in (iqm(scores), *interval(scores), scores.min(), scores.max()))
    return [name, f"{int(row['config']['total_timesteps']):,}", middle, f"{low} to {high}", f"{least} to {most}"]


def _best_peer(results, name):
    """Return the scores of the peer's best variant; None if there is no peer."""
    peers = [row["scores"] for peer in ("rejax", "purejaxrl") for row in results[peer].get(name, {}).values()]
    return max(peers, key=lambda scores: iqm(np.array(scores))) if peers else None


def speed_table(speed):
    lines = ["| workload | purerl, steps/s | peer | its steps/s | ratio | range | ratio of compile times |"]
    lines.append("|---|--:|---|--:|--:|--:|--:|")
    for name, row in speed.items():
        ours, peers = (row[program]["speed"]["median"] for program in ("purerl", row["peer"]))
        span = f"{row['ratios']['low']:.2f} to {row['ratios']['high']:.2f}"
        cells = [name, f"{ours / 1e3:,.0f} k", row["peer"], f"{peers / 1e3:,.0f} k", f"{row['ratio']:.2f}", span]
        lines.append("| " + " | ".join([*cells, f"{row['compile_ratio']:.2f}"]) + " |")
    return "\n".join(lines)


def compiling_table(rows):
    """List the seconds that both programs take to compile A, for each choice of outputs."""
    lines = ["| beside the trained agent they give | purerl | rejax | ratio | range |", "|---|--:|--:|--:|--:|"]
    for name, row in rows.items():
        span = f"{row['ratios']['low']:.2f} to {row['ratios']['high']:.2f}"
        seconds = (f"{row[program]['median']:.2f} s" for program in ("purerl", "rejax"))
        lines.append("| " + " | ".join([name, *seconds, f"{row['ratio']:.2f}", span]) + " |")
    return "\n".join(lines)


def programs_table(programs, target="h100"):
    """List the kernels, waits and bytes of an update on one device, and those of purejaxrl."""
    lines = ["| | kernels | purejaxrl's | ratio | waits | scratch memory | purejaxrl's | moved | loops: times x kernels |"]
    lines.append("|---|--:|--:|--:|--:|--:|--:|--:|---|")
    megabytes = lambda row: f"{row['memory'] / 1e6:.1f} MB"
    for name, targets in programs.items():
        if " on " in name or target not in targets:  # a new workload is counted for one device after the other
            continue
        ours, peer = targets[target]["purerl"], targets[target].get("purejaxrl")
        theirs = (f"{peer['kernels']:,}", f"{ours['kernels'] / peer['kernels']:.2f}", megabytes(peer)) if peer else ("", "", "")
        loops = ", ".join(f"{loop['times']} x {loop['kernels']:,}" for loop in ours["loops"])
        cells = [name, f"{ours['kernels']:,}", *theirs[:2], str(ours["waits"]), megabytes(ours), theirs[2]]
        lines.append("| " + " | ".join([*cells, f"{ours['moved'] / 1e9:.1f} GB", loops]) + " |")
    return "\n".join(lines)


def kernels_table(programs, times):
    """List in order the kernels of an iteration of A's loop whose body runs `times` times."""
    lines = ["| | kernel | result | from |", "|--:|---|---|---|"]
    for number, (name, result, source) in enumerate(programs["A"]["h100"]["lists"][str(times)], 1):
        lines.append(f"| {number} | `{name}` | `{result}` | `{source.removeprefix('jit(update)/') or '-'}` |")
    return "\n".join(lines)


def devices_table(programs, target="h100"):
    """Compare an update on several devices with an update on one device, for equally many environments per device."""
    compared, besides, says = {
        "h100": ("memory", "memory with hiding", "memory, exchanges hidden"),
        "v5e": ("memory in all", "memory", "outside the core"),
    }[target]
    lines = [
        "| | kernels | one device's | ratio | scratch memory | one device's | ratio | exchanges | of bytes | of other kinds |"
    ]
    lines = [f"{lines[0]} {says} |", "|---|" + 10 * "--:|"]
    for name, targets in programs.items():
        if " on " in name:
            row, one = targets[target]["purerl"], programs[name.partition(" on ")[0]][target]["purerl"]
            kernels = (f"{row['kernels']:,}", f"{one['kernels']:,}", f"{row['kernels'] / one['kernels']:.3f}")
            megabytes = [f"{x / 1e6:.1f} MB" for x in (row[compared], one[compared], row[besides])]
            memory = (*megabytes[:2], f"{row[compared] / one[compared]:.3f}")
            exchanges = (f"{row['exchanges']:,}", f"{row['exchanged'] / 1e6:.1f} MB", str(row.get("others", 0)))
            lines.append("| " + " | ".join([name, *kernels, *memory, *exchanges, megabytes[2]]) + " |")
    return "\n".join(lines)


# Bytes per second of an H100: memory, NVLink in one direction, and the network of a DGX H100, 400 Gb/s for each GPU
# (NVIDIA's data sheets of the H100 SXM and the DGX H100).
MEMORY, NVLINK, NETWORK, NVLINK_DEVICES = 3.35e12, 450e9, 50e9, 8


def scaling_table(programs):
    """Estimate from bytes alone the time that links add to an update of B with 2048 environments per device."""
    row = programs["B on 8 devices"]["h100"]["purerl"]
    lines = ["| devices | memory, at 3.35 TB/s | links | share of one device's speed |", "|--:|--:|--:|--:|"]
    for count in (1, 8, 64, 256):
        own = row["moved"] / MEMORY
        # A ring sends 2 (count - 1) / count of the bytes over each link; the slowest link counts.
        passed = 2 * (count - 1) / count * row["exchanged"] / (NVLINK if count <= NVLINK_DEVICES else NETWORK)
        cells = (f"{count}", f"{1e3 * own:.2f} ms", f"{1e3 * passed:.2f} ms", f"{own / (own + passed):.2f}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def overhead_table(workloads):
    lines = ["| workload | `fit`, share of the speed of `jax.jit(train)` | range |", "|---|--:|--:|"]
    lines += [f"| {name} | {row['ratio']:.3f} | {row['low']:.3f} to {row['high']:.3f} |" for name, row in workloads.items()]
    return "\n".join(lines)


def costs_table(costs):
    lines = ["| | steps/s | share of PPO's | range | compile time |", "|---|--:|--:|--:|--:|"]
    for name, row in costs.items():
        speed = float(np.median([other[1] for _, other in row["pairs"]]))
        span = f"{row['low']:.2f} to {row['high']:.2f}"
        lines.append(f"| {name} | {speed / 1e3:,.0f} k | {row['speed']:.2f} | {span} | {row['compile']:.2f} |")
    return "\n".join(lines)


def faults_table(faults):
    lines = ["| fault | times | lost |", "|---|--:|--:|"]
    add = lambda says, times, lost: lines.append(f"| {says} | {times} | {lost} |")
    for name, what in (
        ("kills", "SIGKILL"),
        ("kills of a batch", "SIGKILL of a batch of configs, with evaluations and best states"),
        ("kills of a job of two processes", "SIGKILL of one or both of two processes that train one agent"),
    ):
        if kills := faults.get(name):
            during = kills["while a checkpoint was being written"]
            add(f"{what}, {during} of them while a checkpoint was being written", kills["kills"], kills["lost"])
    for name, what in (("kills of a sweep", "SIGKILL of a sweep"), ("kills of a study", "SIGKILL while tuning")):
        if kills := faults.get(name):
            add(what, kills["kills"], kills["lost"])
    if crashes := faults.get("crashes"):
        calls = crashes["calls that touch the file system"]
        add(f"death at one of the {calls} calls that touch the file system", crashes["crashes"], crashes["lost"])
    if disks := faults.get("full disks"):
        add(f"a disk that fills at one of {disks['writes']} writes, `raise` and `warn`", disks["filled"], disks["lost"])
    if flips := faults.get("flips"):
        told = f"{flips['told']} told, {flips['no difference']} without a difference"
        bad = sum(flips[name] for name in ("other numbers", "raw errors", "lost states"))
        add(f"a bit flipped in any file of a run: {told}", flips["bits flipped"], bad)
    return "\n".join(lines)


def long_table(rows):
    lines = ["| test | minutes | last passed | commit |", "|---|--:|---|---|"]
    lines += [f"| `{name}` | {row['minutes']} | {row['passed']} | {row['commit']} |" for name, row in rows.items()]
    return "\n".join(lines)


def suites_table(rows):
    lines = ["| environment | version | problems | seconds | last checked | commit |", "|---|---|--:|--:|---|---|"]
    for name, row in rows.items():
        cells = [f"`{name}`", row["suite"], str(len(row["problems"])), str(row["seconds"]), row["passed"], row["commit"]]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def environments_table(rows):
    """Count the checked environments of each suite, and list the problems that were found."""
    lines = ["| suite | environments checked | without problems | last checked | others |", "|---|--:|--:|---|---|"]
    for suite in sorted({row["suite"] for row in rows.values()}):
        own = {name.partition("/")[2]: row for name, row in rows.items() if row["suite"] == suite}
        without_id = lambda problem: re.sub(r"^env = '[^']*': ", "", problem)
        wrong = {name: without_id(row["problems"][0]) for name, row in own.items() if row["problems"]}
        texts = {text: [name for name, found in wrong.items() if found == text] for text in wrong.values()}
        others = "; ".join(f"{', '.join(names)}: {text}" for text, names in texts.items())
        date = max(row["passed"] for row in own.values())
        lines.append(f"| {suite} | {len(own)} | {len(own) - len(wrong)} | {date} | {others} |")
    return "\n".join(lines)


def sweeps_table(rows):
    """Compare 96 runs as one compiled program with the same runs one after the other."""
    row = rows["speed"]
    middle, low, high = row["ratio"]
    lines = ["| | seconds | memory |", "|---|--:|--:|"]
    lines.append(
        f"| {row['runs']} runs of {row['steps']:,} steps as one program on {row['devices']} devices | "
        f"{row['seconds']['together']:.1f} | {row['bytes of a device'] / 1e6:.1f} MB a device |"
    )
    apart, memory = row["seconds"]["apart"], row["bytes of one run"] / 1e6
    lines.append(f"| one after the other, by one compiled program | {apart:.1f} | {memory:.2f} MB |")
    lines.append(f"| ratio, median of five pairs in turn | {middle:.2f} ({low:.2f} to {high:.2f}) | |")
    return "\n".join(lines)


def tuning_table(rows):
    """List searches beside the presets of that time. A search is as good if its interval overlaps the preset's or is above it."""
    lines = [
        "| search | trials | of which to the end | million steps | minutes | seeds 0 - 7: IQM (95 %) | preset | as good |",
        "|---|--:|--:|--:|--:|--:|--:|---|",
    ]
    for name, row in rows.items():
        cells = [name, str(row["trials"]), str(row["completed"]), f"{row['env_steps'] / 1e6:.0f}", f"{row['minutes']:.0f}"]
        high, low = interval(np.array(row["scores"]))[1], interval(np.array(row["preset"]))[0]
        cells += [_with_interval(row["scores"]), _with_interval(row["preset"]), "yes" if high >= low else "no"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def peers_table(peers):
    """List the scores of purerl and of other libraries, and the median steps and seconds of their seeds to a threshold."""
    lines = ["| task, steps | program | settings | IQM (95 %) | threshold | seeds at it | steps to it | seconds to it |"]
    lines.append("|---|---|---|--:|--:|--:|--:|--:|")
    for env, programs in peers.items():
        for name, row in programs.items():
            steps, seconds = reached(row, env)
            often = np.isfinite(np.median(steps))
            there = [f"{TASKS[env].threshold:g}", f"{np.isfinite(steps).sum()} of {len(steps)}"]
            there += [f"{np.median(steps):,.0f}", f"{np.median(seconds):.1f}"] if often else ["never", ""]
            task = f"{env}, {TASKS[env].steps:,}"
            lines.append("| " + " | ".join([task, name, row["whose"], _with_interval(row["scores"]), *there]) + " |")
    return "\n".join(lines)


def host_scores_table(rows):
    """Compare purerl's scores on CartPole of gymnasium and of gymnax."""
    lines = ["| environment | IQM (95 %) | seconds of a run, without compiling |", "|---|--:|--:|"]
    for name in ("gymnasium/CartPole-v1", "CartPole-v1"):
        row = rows["scores"][name]
        lines.append(f"| {name} | {_with_interval(row['scores'])} | {row['seconds']:.1f} |")
    return "\n".join(lines)


def host_speed_table(rows):
    """List the training steps per second on CartPole of purerl in gymnasium and gymnax, and of Stable-Baselines3."""
    lines = ["| | steps/s, median of three |", "|---|--:|"]
    lines += [f"| {name} | {np.median(x) / 1e3:.1f} k |" for name, x in rows["speed"]["steps a second"].items()]
    middle, low, high = rows["speed"]["ratio"]
    return "\n".join([*lines, f"| ratio of the first to the last | {middle:.2f} ({low:.2f} to {high:.2f}) |"])


def host_mujoco_table(rows):
    """Compare returns and seconds on HalfCheetah with those of Stable-Baselines3."""
    lines = ["| | mean return of each seed | mean | seconds of a run |", "|---|--:|--:|--:|"]
    for name in ("purerl", "Stable-Baselines3"):
        row = rows["mujoco"][name]
        each, seconds = ", ".join(f"{x:.0f}" for x in row["scores"]), np.median(row["seconds"])
        lines.append(f"| {name} | {each} | {np.mean(row['scores']):.0f} | {seconds:.0f} |")
    return "\n".join(lines)


def study_table(rows):
    lines = ["| | steps | IQM | 95 % interval | all seeds |", "|---|--:|--:|--:|--:|"]
    timed = all("seconds of a run" in row for row in rows.values())
    if timed:
        lines = [line + more for line, more in zip(lines, (" seconds of a run | return a second |", "--:|--:|"), strict=True)]
    for label, row in rows.items():
        scores = np.array(row["scores"])
        digits = 0 if np.abs(scores).max() > 100 else 1 if np.abs(scores).max() > 2 else 2
        says = [f"{x:.{digits}f}" for x in (iqm(scores), *interval(scores), *sorted(scores))]
        between = f"{says[1]} to {says[2]}" if len(scores) > 1 else ""
        cells = [label, f"{int(row['config']['total_timesteps']):,}", says[0], between, ", ".join(says[3:])]
        cells += [f"{row['seconds of a run']:.1f}", f"{iqm(scores) / row['seconds of a run']:.3g}"] if timed else []
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def memories_table(rows):
    """List parameters, steps per second and bytes of an update of each memory."""
    lines = ["| | parameters | steps/s | share of no memory | MB of an update |", "|---|--:|--:|--:|--:|"]
    steps = {name: row["steps"] for name, row in rows["costs"].items() if name != "circumstances"}
    for name, rate in steps.items():
        row = rows["costs"][name]
        cells = f"{row['parameters']:,}", f"{rate / 1e3:.0f} k", f"{rate / steps['no memory']:.2f}", f"{row['bytes'] / 1e6:.1f}"
        lines.append("| " + " | ".join([name, *cells]) + " |")
    return "\n".join(lines)


def value_clip_table(studies):
    """Make a row for each environment: scores with and without a value clip, and both with scaled rewards."""
    columns = ("max", "none", "max, scaled rewards", "none, scaled rewards")
    lines = ["| | " + " | ".join(columns) + " |", "|---|--:|--:|--:|--:|"]
    rows = studies["value clip"]
    for env in dict.fromkeys(label.split(",")[0] for label in rows):
        scores = (rows.get(f"{env}, {column}") for column in columns)
        lines.append(f"| {env} | " + " | ".join(_with_interval(row["scores"], 2) if row else "" for row in scores) + " |")
    return "\n".join(lines)


def names_table(system):
    """List the names of settings in another library (system), beside purerl's names."""
    lines = [f"| {system} | purerl | |", "|---|---|---|"]
    for row in names():
        if row["system"] == system:
            ours = row["purerl"].replace("cfg.", "")
            lines.append(f"| `{row['name']}` | {f'`{ours}`' if ours else ''} | {row['note']} |")
    return "\n".join(lines)


def glance_table(results):
    """Make a row for each environment of `GLANCE`: purerl's score, and the score that gymnax publishes."""
    lines = ["| | steps | purerl: IQM (95 %) | gymnax's own agent |", "|---|--:|--:|--:|"]
    for name in GLANCE:
        row = results["purerl"][name]
        steps = f"{int(row['config']['total_timesteps']):,}"
        lines.append(f"| {name} | {steps} | {_with_interval(row['scores'])} | {REFERENCES[name].published} |")
    return "\n".join(lines)


def _with_interval(scores, digits=1):
    return "{:.{n}f} ({:.{n}f} to {:.{n}f})".format(iqm(np.array(scores)), *interval(np.array(scores)), n=digits)


def speed_glance_table(speed):
    """Make a row for each workload timed on two cores and on a GPU: purerl's speed on each, with its ratio to a peer's speed."""
    gpu = kept("gpu")["speed"]
    lines = ["| | two CPU cores | x rejax | H200 | x purejaxrl |", "|---|--:|--:|--:|--:|"]
    for what, (on_cores, on_gpu) in SPEED_GLANCE.items():
        cores, cards = speed[on_cores], gpu[on_gpu]
        speeds = cores["purerl"]["speed"]["median"] / 1e3, max(cards["purerl"]["speeds"]) / 1e3
        lines.append(f"| {what} | {speeds[0]:,.0f} k | {cores['ratio']:.2f} | {speeds[1]:,.0f} k | {cards['ratio']:.2f} |")
    return "\n".join(lines)


def gpu_table(gpu):
    """Make a row for each workload: the fastest run of each program, and the ratio of their speeds."""
    lines = ["| | purerl, steps/s | purejaxrl | ratio | memory, MB | purejaxrl's | compiling, s | purejaxrl's |"]
    lines.append("|---|--:|--:|--:|--:|--:|--:|--:|")
    for name, row in gpu["speed"].items():
        both = [row.get(program) or {} for program in ("purerl", "purejaxrl")]
        speeds = [f"{max(x['speeds']) / 1e3:,.0f} k" if x else "" for x in both]
        ratio = f"{row['ratio']:.2f}" if row.get("ratio") else ""
        others = [f"{x[kind]:,.0f}" if x.get(kind) else "" for kind in ("megabytes", "compile") for x in both]
        lines.append("| " + " | ".join([name, *speeds, ratio, *others]) + " |")
    return "\n".join(lines)


def fused_table(fused):
    """Make a row for each workload: kernels of an update and of a minibatch, and bytes per batch row, by XLA and fused."""
    lines = [
        "| | kernels | fused | of a minibatch | fused | bytes of a row | fused | ratio |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for name, row in fused["minibatches"].items():
        if name != "commit":
            xla, one = row["xla"], row["fused"]
            numbers = [f"{form[what]:,.0f}" for what in ("kernels", "of a minibatch", "bytes of a row") for form in (xla, one)]
            lines.append(f"| {name} | {' | '.join(numbers)} | {one['bytes of a row'] / xla['bytes of a row']:.2f} |")
    return "\n".join(lines)


def registers_table(fused):
    """Make a row for each form of the fused kernels: the registers of a thread, and the spilled bytes."""
    lines = ["| sizes, dtype, precision | forward | backward | bytes spilled |", "|---|--:|--:|--:|"]
    for name, row in fused["registers"].items():
        if name != "commit":
            used = [row[kernel]["registers"] for kernel in ("forward", "backward")]
            lines.append(f"| {name} | {used[0]} | {used[1]} | {sum(kernel['spilled'] for kernel in row.values())} |")
    return "\n".join(lines)


def resets_table(rows):
    """Make a row for each environment with slow resets: counts of an update on an H100."""
    lines = ["| | kernels | waits | scratch memory | moved | loops: times x kernels |", "|---|--:|--:|--:|--:|---|"]
    for name, row in rows.items():
        loops = ", ".join(f"{loop['times']} x {loop['kernels']:,}" for loop in row["loops"])
        sizes = f"{row['memory'] / 1e6:,.0f} MB | {row['moved'] / 1e9:,.0f} GB"
        lines.append(f"| {name} | {row['kernels']:,} | {row['waits']} | {sizes} | {loops} |")
    return "\n".join(lines)


def gpu_learning_table(gpu):
    """Make a row for each environment with seeds trained on a GPU in one `vmap`: scores of 128 episodes for each seed."""
    lines = ["| | seeds | steps of each | IQM (95 %) | steps/s of all | compiling, s |", "|---|--:|--:|--:|--:|--:|"]
    for name, row in gpu["learning"].items():
        found = row["purerl"]
        if "scores" in found:
            speeds = f"{found['speeds'][0] / 1e3:,.0f} k | {found['compile']:.0f}"
            scores = _with_interval(found["scores"], digits=0)
            lines.append(f"| {name} | {len(found['scores'])} | {found['steps']:,} | {scores} | {speeds} |")
    return "\n".join(lines)


# Rows of the tables that the README shows at a glance.
GLANCE = ("CartPole-v1", "Acrobot-v1", "Pendulum-v1", "Breakout-MinAtar")
SPEED_GLANCE = {
    "CartPole, 4 environments x 128 steps": ("A", "A"),
    "CartPole, 2048 environments x 32 steps": ("B", "B"),
    "16 seeds of the first row, in one `vmap`": ("D in one vmap", "D, 16 seeds"),
}
TABLES = {
    "glance": glance_table,
    "gpu": gpu_table,
    "gpu at db4f90f": gpu_table,
    "gpu learning": gpu_learning_table,
    "resets": resets_table,
    "speed glance": speed_glance_table,
    "value clip": value_clip_table,
    "learning": learning_table,
    "choices": choices_table,
    "variants": variants_table,
    "speed": speed_table,
    "compiling": compiling_table,
    "overhead": overhead_table,
    "memories": memories_table,
    "costs": costs_table,
    "faults": faults_table,
    "long": long_table,
    "environments": environments_table,
    "suites": suites_table,
    "sweeps": sweeps_table,
    "host scores": host_scores_table,
    "host speed": host_speed_table,
    "host mujoco": host_mujoco_table,
    "tuning": tuning_table,
    "peers": peers_table,
    "programs": programs_table,
    "kernels of a step": lambda programs: kernels_table(programs, 128),
    "kernels of a minibatch": lambda programs: kernels_table(programs, 16),
    "devices": devices_table,
    "devices on a TPU": lambda programs: devices_table(programs, "v5e"),
    "scaling": scaling_table,
    "programs on a TPU": lambda programs: programs_table(programs, "v5e"),
    "fused": fused_table,
    "registers": registers_table,
}
OF_PROGRAMS = ("programs on a TPU", "devices", "devices on a TPU", "scaling", "kernels of a step", "kernels of a minibatch")
FILES = dict.fromkeys(OF_PROGRAMS, "programs")
FILES |= dict.fromkeys(("host scores", "host speed", "host mujoco"), "host")
FILES |= {"gpu learning": "gpu", "gpu at db4f90f": "gpu_db4f90f", "registers": "fused"}
FILES |= dict.fromkeys(("glance", "learning", "variants"), "results") | {"speed glance": "speed", "value clip": "studies"}

if __name__ == "__main__":
    render()

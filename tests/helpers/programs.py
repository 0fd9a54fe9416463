"""Sizes of traced programs (jaxprs), and counts of compilations."""

import jax

compiled = []
jax.monitoring.register_event_duration_secs_listener(lambda name, *_, **__: compiled.append(name))


def equations(jaxpr):
    """Count the equations of a jaxpr, including those inside its loops and branches."""
    inner = [value for equation in jaxpr.eqns for value in jax.tree.leaves(list(equation.params.values()), is_leaf=is_program)]
    return len(jaxpr.eqns) + sum(equations(getattr(value, "jaxpr", value)) for value in inner if is_program(value))


def is_program(x):
    return hasattr(x, "eqns") or hasattr(getattr(x, "jaxpr", None), "eqns")


def branches(function, *args, platform="cpu"):
    """Count the `cond` and `while` equations of a function on a platform, except the conditions on the platform itself."""

    def count(jaxpr):
        found = 0
        for equation in jaxpr.eqns:
            platforms = equation.params.get("branches_platforms")
            found += equation.primitive.name in ("cond", "while") and platforms is None
            inner = jax.tree.leaves(list(equation.params.values()), is_leaf=is_program)
            if platforms is not None:
                inner = [equation.params["branches"][platforms.index(("cpu",) if platform == "cpu" else None)]]
            found += sum(count(getattr(value, "jaxpr", value)) for value in inner if is_program(value))
        return found

    return count(jax.make_jaxpr(function)(*args).jaxpr)


def compiles():
    return sum("backend_compile" in name for name in compiled)


def on_accelerator(*args, cpu, default, tpu=None):
    """Stand in for `jax.lax.platform_dependent`, and call the accelerator's variant on every platform."""
    return default(*args)

"""The persistent compilation cache: later processes load programs from disk instead of compiling them again.

The cache is JAX's own, with one directory per version of jaxlib and kind of processor. The environment variable `PURERL_CACHE`
names another parent directory; the value `off` disables the cache. If the user has configured JAX's cache, that cache is used
instead. After a run, JAX's previous settings are restored.
"""

import contextlib
import hashlib
import os
import pathlib
import platform
import stat
from collections.abc import Iterator

import filelock
import jax
import jaxlib.version
import platformdirs
from jax.experimental.compilation_cache import compilation_cache as jax_cache

VARIABLE = "PURERL_CACHE"
MAX_BYTES = 2**30  # beyond this size, JAX evicts the least recently used programs


def cache_directory() -> pathlib.Path | None:
    """Return the directory of compiled programs; None if the cache is switched off."""
    chosen = os.environ.get(VARIABLE, "")
    if chosen.lower() in ("off", "0", "no", "none", "false"):
        return None
    home = pathlib.Path(chosen).expanduser() if chosen else pathlib.Path(platformdirs.user_cache_dir("purerl", appauthor=False))
    return home / f"jaxlib-{jaxlib.version.__version__}-{platform.machine()}-{kind_of_processor()}"


@contextlib.contextmanager
def compile_cache() -> Iterator[None]:
    """Read and write compiled programs in the cache directory until the block ends.

    If the user has configured or disabled JAX's cache, nothing changes. A directory that cannot be created, belongs to another
    user or can be written to by others is not used, because JAX executes the programs in it. JAX never caches programs that call
    back to the host. If JAX cannot read a program, it warns and compiles the program; if JAX cannot write one, it only warns.
    """
    directory = cache_directory()
    now = jax.config.values
    own = now["jax_compilation_cache_dir"] or not now["jax_enable_compilation_cache"]
    if directory is None or own or not _is_private(directory):
        yield
        return
    values = {
        "jax_compilation_cache_dir": str(directory),
        "jax_compilation_cache_max_size": MAX_BYTES,
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {name: now[name] for name in values}
    _remove_unfinished(directory)
    _set(values)
    try:
        yield
    finally:
        _set(before)


def cached_programs() -> list[pathlib.Path]:
    """Return the files of the cached programs for this version of jaxlib and this processor."""
    directory = cache_directory()
    return sorted(directory.glob("*-cache")) if directory else []


def _remove_unfinished(directory: pathlib.Path) -> None:
    """Remove half-written programs, which lack their second file (`-atime`): with such a program, JAX caches no others."""
    with contextlib.suppress(OSError, filelock.Timeout), filelock.FileLock(directory / ".lockfile", timeout=1):  # JAX's own lock
        for program in directory.glob("*-cache"):
            if not program.with_name(program.name.removesuffix("cache") + "atime").exists():
                program.unlink()


def _set(values: dict[str, object]) -> None:
    for name, value in values.items():
        jax.config.update(name, value)
    jax_cache.reset_cache()  # otherwise JAX keeps the cache that it opened with earlier settings


def _is_private(directory: pathlib.Path) -> bool:
    """Create a missing directory; return True if this user owns it and nobody else can write to it (not checked on Windows)."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = directory.stat()
    except OSError:
        return False
    if not hasattr(os, "getuid"):
        return True
    return found.st_uid == os.getuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and os.access(directory, os.W_OK)


def kind_of_processor() -> str:
    """Return a hash of the processor's model and features: a program can use instructions that another processor lacks."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
        kind = "".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))
    except OSError:
        kind = platform.processor()
    return hashlib.sha256(kind.encode()).hexdigest()[:8]

"""The persistent compilation cache of `fit` and the command."""

import errno
import os
import warnings

import jax
import jax.numpy as jnp
import pytest
from jax._src.lru_cache import LRUCache
from jax.experimental.compilation_cache import compilation_cache as jax_cache

import purerl
from purerl.cli import main
from purerl.runs.compile_cache import cache_directory, cached_programs, compile_cache
from tests.helpers.tiny import CFG


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Run JAX without a user's cache, and put purerl's in a new directory."""
    own = jax.config.jax_compilation_cache_dir
    monkeypatch.setenv("PURERL_CACHE", str(tmp_path / "cache"))
    settings(None)
    yield tmp_path / "cache"
    settings(own)


def settings(directory):
    jax.config.update("jax_compilation_cache_dir", directory)
    jax_cache.reset_cache()


def compiles(n):
    """Compile a program that no other test has."""
    jax.jit(lambda x: jnp.sin(x) * n)(jnp.float32(1)).block_until_ready()


@pytest.mark.slow
def test_programs_are_cached_only_inside_the_context(home):
    before = {name: getattr(jax.config, name) for name in ("jax_compilation_cache_dir", "jax_compilation_cache_max_size")}
    jax.clear_caches()  # cached programs of other tests are not compiled again
    with compile_cache():
        compiles(1234)
        assert cache_directory().parent == home
        assert cache_directory().stat().st_mode & 0o077 == 0
        kept = len(cached_programs())
        assert kept > 0
        jax.clear_caches()
        compiles(1234)
        assert len(cached_programs()) == kept
    compiles(1235)
    assert len(cached_programs()) == kept
    assert before == {name: getattr(jax.config, name) for name in before}


@pytest.mark.long
@pytest.mark.slow
def test_fit_caches_its_programs_and_reproduces_its_numbers(home):
    first = purerl.fit(CFG)
    kept = cached_programs()
    assert kept
    jax.clear_caches()
    second = purerl.fit(CFG)
    assert cached_programs() == kept
    assert all((x == y).all() for x, y in zip(*map(jax.tree.leaves, (first.state.params, second.state.params)), strict=True))
    assert jax.config.jax_compilation_cache_dir is None


@pytest.mark.parametrize("why", ["off", "own", "jax", "writable by others", "a file"])
def test_disabled_or_unusable_cache_stays_empty(home, tmp_path, monkeypatch, why):
    if why == "off":
        monkeypatch.setenv("PURERL_CACHE", "off")
    if why == "own":
        settings(str(tmp_path / "own"))
    if why == "jax":
        jax.config.update("jax_enable_compilation_cache", False)
    if why == "writable by others":
        cache_directory().mkdir(parents=True)
        cache_directory().chmod(0o777)
    if why == "a file":
        home.write_text("")
    try:
        with compile_cache():
            compiles(hash(why) % 1000)
    finally:
        jax.config.update("jax_enable_compilation_cache", True)
    monkeypatch.setenv("PURERL_CACHE", str(home))
    assert cached_programs() == []


@pytest.mark.slow
def test_partially_written_program_is_rewritten(home):
    jax.clear_caches()
    with compile_cache():
        compiles(4321)
    whole = cached_programs()
    program = whole[-1]
    program.write_bytes(program.read_bytes()[:100])
    program.with_name(program.name.removesuffix("cache") + "atime").unlink()
    jax.clear_caches()
    with compile_cache(), warnings.catch_warnings(action="error"):
        compiles(4321)
        compiles(4322)
    assert set(cached_programs()) > set(whole)
    assert program.stat().st_size > 100


def test_unwritable_cache_is_ignored(home, monkeypatch):
    def full(self, key, value):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(LRUCache, "put", full)
    with pytest.warns(UserWarning, match="Error writing persistent compilation cache entry"), compile_cache():
        compiles(4323)
    assert cached_programs() == []


def test_cache_command_reports_and_clears_the_cache(home, capsys, monkeypatch):
    with compile_cache():
        compiles(77)
    assert main(["cache"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(str(cache_directory()))
    assert f"{len(cached_programs())} programs" in said
    assert main(["cache", "--clear"]) == 0
    assert "0 programs" in capsys.readouterr().out
    assert [name for name in os.listdir(cache_directory()) if name.endswith(("cache", "atime"))] == []
    monkeypatch.setenv("PURERL_CACHE", "off")
    assert main(["cache"]) == 0
    assert "off" in capsys.readouterr().out

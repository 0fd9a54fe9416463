"""Penalties on weights as extra losses: L2, and the spectral norm by a power iteration."""

import jax
import jax.numpy as jnp


def matrices(params):
    return [x for x in jax.tree.leaves(params) if x.ndim == 2]


def l2(params, outputs, batch, cfg):
    norm = sum(jnp.square(w).sum() for w in matrices(params["policy"]))
    return 1e-3 * norm, {"norm": norm}


def spectral(params, outputs, batch, cfg):
    """Penalise squared spectral norms that differ from 1 (Yoshida & Miyato 2017, arXiv:1705.10941)."""

    def largest(w):
        u = w @ jnp.ones(w.shape[1])
        v = jax.lax.stop_gradient(u @ w / (jnp.linalg.norm(u @ w) + 1e-8))
        return jnp.square(w @ v).sum()

    norms = jnp.stack([largest(w) for w in matrices(params["policy"])])
    return 1e-2 * jnp.square(norms - 1).sum(), {"largest": norms.max()}

"""Configs that several test files share."""

import purerl
from tests.helpers.tiny import CFG

NORMALISED = {"normalize_obs": True, "normalize_reward": True, "normalize_value": True}
RICH = {"action_mask": "legal", "critic_obs": "secret", "info": ("illegal",)}
SCHEDULED = {"lr_schedule": "kl_adaptive", "kl_penalty": "adaptive", "clip_schedule": "linear", "ent_schedule": "linear"}
UPDATED = {"target_kl": 0.05, "grad_clip": "per_network", "optimizer": "adamw", "minibatches": "env"}
EVERYTHING = CFG.replace(
    **NORMALISED, **RICH, **SCHEDULED, **UPDATED, compute_dtype="bfloat16", warmup_steps=64, learning_starts=128
)
MEMORY = {"memory_size": 8, "sequence_length": 8}
SIZES = {name: getattr(CFG, name) for name in ("total_timesteps", "num_envs", "num_steps", "num_minibatches", "hidden")}
PPG = purerl.PPGConfig(**SIZES, n_pi=2, e_aux=1, aux_columns=4)
APPO = purerl.APPOConfig(**SIZES, num_epochs=2, replay=2, lag=1)
CONFIGS = {
    "ppo": CFG,
    "gru": CFG.replace(memory="gru", **MEMORY),
    "lstm, shared": CFG.replace(memory="lstm", arch="shared", **MEMORY),
    "minimal GRU": CFG.replace(memory="min_gru", **MEMORY),
    "lru": CFG.replace(memory="lru", **MEMORY),
    "ppg": PPG,
    "daac": purerl.DAACConfig(**SIZES, e_v=2),
    "appo": APPO,
    "appo with memory": APPO.replace(memory="gru", **MEMORY),
    "rnd": CFG.replace(rnd=purerl.RNDConfig(features=8, hidden=(16,), init_steps=100)),
    "kl adaptive": CFG.replace(lr_schedule="kl_adaptive", target_kl=0.01),
    "clipped by group": CFG.replace(grad_clip="per_network", critic_lr_scale=2.0),
}

"""Settings of PPO, `[trainer.ppo]`. Checking a configuration does not need torch."""

from pydantic import Field

from harnessgym.config import Config, validate
from harnessgym.errors import ConfigError
from harnessgym.run_config.run import RunConfig
from trainers.update_settings import settings_of


class CriticSettings(Config):
    """How the value function learns."""

    lr: float = Field(1e-3, gt=0)
    """Learning rate; fits the shipped policy. Critics of pretrained models want about 1e-5."""
    clip: float = Field(0.5, ge=0)
    """How far a value may move from its value before the first update on the batch until its gradient stops;
    0: without limit. Only matters with several updates per batch."""
    max_grad_norm: float = Field(1.0, gt=0)
    """Gradients with a larger norm are scaled down to this norm."""
    warmup: int = Field(0, ge=0)
    """Number of steps at the start of the run in which only the critic learns; they make versions with equal
    weights."""


class PpoSettings(Config):
    """Advantages, and the updates on a batch."""

    gamma: float = Field(1.0, gt=0, le=1)
    """Discount of a reward per sampled token before it."""
    lam: float = Field(0.95, ge=0, le=1)
    """GAE's λ: 1 uses the returns (no bias), 0 trusts the critic after one token (least variance)."""
    channel: str = "reward"
    """Channel of the calls' rewards, which count besides the rollout's."""
    whiten: bool = True
    """Whether advantages are scaled to mean 0 and standard deviation 1 over the tokens of the batch."""
    critic: CriticSettings = CriticSettings()
    """The value function."""


def ppo_settings_of(config: RunConfig, where: str = "[trainer.update]") -> PpoSettings:
    """The PPO settings of a run. Raises `ConfigError` if other settings do not fit, with the reason."""
    trainer = config.trainer
    settings = validate(PpoSettings, dict(trainer.ppo), "[trainer.ppo]")
    if trainer.advantage != "grpo" or trainer.advantage_settings:
        raise ConfigError(
            "algorithm = 'ppo' computes advantages by GAE from its critic, so trainer.advantage = "
            f"{trainer.advantage!r} would not be used: leave trainer.advantage and "
            "trainer.advantage_settings out, or choose algorithm = 'grpo'."
        )
    if trainer.stream:
        raise ConfigError(
            "PPO needs the whole batch before it trains: its critic values all of it, and advantages are "
            "whitened over it. Set trainer.stream = false, and leave trainer.periodic out."
        )
    if config.filter.zero_signal == "refill":
        raise ConfigError(
            "algorithm = 'ppo' trains on groups of equal rewards too, because their advantages come from the "
            "critic: set filter.zero_signal = 'leave_out', which leaves none of them out here."
        )
    if config.filter.steps_kept < 1 or config.replay.success_pool:
        raise ConfigError(
            "filter.steps_kept and replay.success_pool need groups whose rollouts are compared with each "
            "other; PPO compares each with its critic. Leave both out, or choose algorithm = 'grpo'."
        )
    if trainer.update.get("baseline", "none") != "none":
        raise ConfigError(
            "trainer.update.baseline subtracts a baseline from rewards, and PPO already subtracts its "
            "critic's values: leave trainer.update.baseline out, or choose algorithm = 'grpo'."
        )
    if settings.critic.warmup >= trainer.steps:
        raise ConfigError(
            f"[trainer.ppo]: with critic.warmup = {settings.critic.warmup} the policy is never trained, "
            f"because trainer.steps is {trainer.steps}: lower critic.warmup, or raise trainer.steps."
        )
    settings_of(config, where)
    return settings

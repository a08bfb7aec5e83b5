"""The runners, and which one computes a policy."""

from trainers.engine.runner import ModelRunner
from trainers.policies.native import NativePolicy
from trainers.policy import Policy


def make_runner(policy: Policy, rows: int, length: int | None) -> ModelRunner:
    """The runner of a policy, with a cache of `rows` sequences of at most `length` tokens, or of as many as
    the model takes.
    """
    length = min(length or policy.context, policy.context)
    if isinstance(policy, NativePolicy):
        from trainers.engine.runners.native import NativeRunner

        return NativeRunner(policy, rows, length)
    # Importing transformers takes seconds.
    from trainers.engine.runners.transformers import TransformersRunner
    from trainers.policies.transformers import TransformersPolicy

    assert isinstance(policy, TransformersPolicy)
    return TransformersRunner(policy, rows, length)

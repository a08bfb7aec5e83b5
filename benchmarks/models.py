"""A training step of a model of transformers, beside the native policy's and TRL's on the same rows.

    python -m benchmarks.models [--seeds 0] [--steps 2] [--fresh]

The arms and figures are those of `python -m benchmarks.train`, without checkpointing and without rows of mixed
lengths. Targets: at most 1.25 times the native policy's step, 1.3 times TRL's speed where nothing is shared,
and 3 times where 8 rollouts share a prompt of 512 tokens.
"""

import sys

from benchmarks import train


def main() -> None:
    """Run these arms; options given come last, and win."""
    arms = f"{train.NATIVE}; {train.OURS_TRANSFORMERS}; trl"
    sys.argv[1:1] = ["--arms", arms, "--cases", "shared,equal", "--out", "benchmarks/out/models.json"]
    train.main()


if __name__ == "__main__":
    main()

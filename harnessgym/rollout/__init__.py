"""Plans rollouts, runs each through four stages and records the outcome."""

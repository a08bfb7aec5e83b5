"""Whatever holds weights: the policy, the embedded engine, trainers."""

"""Pure decisions: task selection, admission, consumption, call routing and the bound on staleness."""

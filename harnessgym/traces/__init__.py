"""What is made of recorded rollouts. The records themselves, and the schema, are in `harnessgym.store`.

- `forest`, `trajectories`: the forest of sampled tokens, and the flat training rows made from it.
- `orchestration`, `graph`: agents, events and edges, derived from what passes the proxy.
- `token_accounting`, `verification`: what became of every sampled token; recomputes every invariant.
- `export` and `exports`, `import_` and `imports`: other formats.
- `contracts`, `replay`, `transcript`: what a rollout must not do; recorded requests again; texts for people.

SQL belongs in `harnessgym.store`. `tests/layout.toml` lists the modules here whose queries have not moved
yet.
"""

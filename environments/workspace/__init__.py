"""Workspace: any task as a gymnasium environment whose actions are commands and edits in a sandbox.

`action` is the grammar of actions, `observation` what is seen after one, `episode` one task in one sandbox,
`station` what the episodes of a process share, `env` the `gymnasium.Env`. The ids that `environments`
registers differ in their default tasks.
"""

"""Workspace: any task as a gymnasium environment whose actions are commands and edits in a sandbox.

`action` has the grammar of actions, `observation` what an agent sees after one, `episode` one task in one
sandbox, `backend_pool` what the episodes of a process share, and `env` the `gymnasium.Env`. The ids that
`environments` registers differ in their default tasks.
"""

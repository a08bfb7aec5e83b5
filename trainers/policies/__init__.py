"""The kinds of policies; `loading.load_policy` chooses one."""

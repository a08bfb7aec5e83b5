"""`harnessgym traces`: shows, verifies and exports recorded traces. One file per command."""

import typer

from harnessgym.cli.traces import diff, export, import_, replay, rollout_list, show, sql, tokens, tree, verify

_HELP = (
    "Look at recorded traces, check them, take them elsewhere.\n\n"
    "SOURCE is a run folder, a database file or a database URL; ROLLOUT an id, how one begins, or `latest`. "
    "Every command "
    "takes `--json`, which prints JSON on stdout and nothing else. Colours are for terminals only.\n\n"
    "Exit status: 0 done; 1 done, and the answer is no (verify found something, two rollouts differ, a "
    "replay is not the "
    "record); 2 an error."
)

app = typer.Typer(help=_HELP, no_args_is_help=True)
for _module in (rollout_list, show, tree, tokens, diff, verify, export, import_, replay, sql):
    _module.register(app)

"""`harnessgym traces tree`."""

from typing import Annotated

import typer

from harnessgym.cli.traces.source import AsJson, Rollout, Source

_EPILOG = """Under each agent stand its branches: runs of calls that continue each other, with their tokens.
An inferred spawn says by what evidence and how sure. `--events` adds what happened between the calls, in
order of time.

Examples:

`harnessgym traces tree runs/wrap latest`

`harnessgym traces tree runs/wrap latest --events`

JSON: {rollout: {...}, agents: [{id, name, role, parent_agent_id, evidence, spawn: {event_id, tool, evidence,
confidence} or null, calls, sampled_tokens, prompt_tokens, branches: [{calls: [number], sampled_tokens,
side}]}], events: [{id, kind, t, agent_id, target_agent_id, call_id, attributes, evidence, confidence, source,
span_id}], edges: [{kind, source, target, evidence, confidence}]}; `events` and `edges` are there with
--events only. Calls that are no agent's stand under an agent whose id is null.

Exit status: 0 done; 2 an error."""


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command("tree", epilog=_EPILOG)
    def command(
        source: Source,
        rollout: Rollout,
        events: Annotated[
            bool, typer.Option("--events", help="Show what happened between the calls.")
        ] = False,
        as_json: AsJson = False,
    ) -> None:
        """Draw a rollout's agents: who started whom, with which calls, branches and tokens."""
        from harnessgym.cli.traces.agent_tree import drawn, tree_json
        from harnessgym.cli.traces.printed import console, print_json
        from harnessgym.cli.traces.source import traced

        with traced(source, rollout) as traced_rollout:
            graph = traced_rollout.graph
        if as_json:
            print_json(tree_json(graph, events=events))
        else:
            console().print(drawn(graph, events=events))

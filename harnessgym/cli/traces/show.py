"""`harnessgym traces show`."""

from typing import Annotated

import typer

from harnessgym.cli.traces.source import AsJson, Policy, Source

_EPILOG = """Each call is a heading (number, agent, protocol, tokens, policy versions, how it ended), what its
request added, and what was answered. A call that could not continue the one before says why. Side calls are
dim.

Examples:

`harnessgym traces show runs/wrap latest`

`harnessgym traces show runs/quickstart 0660c4 --calls`

JSON: {rollout: {id, harness, status, stop_reason, verdict, ...}, rewards: [{unit, target, channel, value,
source, detail}], agents: [{id, name, parent_agent_id, evidence, ...}], calls: [{number, id, agent, agent_id,
kind, side_call, status, protocol, continues, prompt_tokens, sampled_tokens, versions, break_class,
break_detail, finish_reason, error, new: [message], answer: message, answer_source, missing}]}; a message is
{role, content, reasoning, tool_calls, tool_call_id, name, images}. With --calls the calls have no messages.

Exit status: 0 done; 2 an error."""


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command("show", epilog=_EPILOG)
    def command(
        source: Source,
        rollout: Annotated[
            str | None,
            typer.Argument(help="Rollout id, how it begins, or `latest`; without it rollouts are listed."),
        ] = None,
        full: Annotated[bool, typer.Option("--full", help="Cut nothing.")] = False,
        calls: Annotated[
            bool, typer.Option("--calls", help="A table of the calls and what they continue, without texts.")
        ] = False,
        limit: Annotated[int, typer.Option(help="Rollouts to list, where none is given.")] = 30,
        policy: Policy = None,
        as_json: AsJson = False,
    ) -> None:
        """Read a rollout as a conversation: who said what, in which call, with which tokens and policy
        versions.
        """
        if rollout is None:
            from harnessgym.cli.traces.rollout_list import print_newest

            print_newest(source, limit, as_json)
        elif calls:
            from harnessgym.cli.traces.call_table import print_calls

            print_calls(source, rollout, as_json)
        else:
            from harnessgym.cli.traces.conversation import print_conversation

            print_conversation(source, rollout, policy, full=full, as_json=as_json)

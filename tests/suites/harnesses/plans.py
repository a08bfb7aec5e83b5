"""What the scripted policy does with each harness's own tools: write a file, start a sub-agent, err, and
answer.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tests.suites.harnesses.actor import Move, Part, Use
from tests.suites.harnesses.line import WORD, Tear

INSTRUCTION = "[[main]] Create the file hello.txt with the text hello, then say so."
_ASK = "[[sub]] Tell me the name of the current folder."
_WRITE = "echo hello > hello.txt"
_LOOK = 'basename "$PWD"'
_TEXT = "The quick brown fox jumps over the lazy dog."
_BROKEN = '{"name": "write", "arguments": {"path": }}'
_BEGIN = Move("I begin.")
_DONE = Move("I wrote hello.txt.", thought="Everything is there.")
_PAUSE = Move("Half of the steps are done. Next, I will do the others.")
_FOUND = Move("The folder is called workspace.", thought="I know it.")


@dataclass(frozen=True, slots=True)
class Tools:
    """A harness's tools as the policy needs them."""

    shell: str
    command: str = "command"
    """Name of the shell's argument."""
    spawn: str = ""
    """The tool that starts a sub-agent; none if empty."""
    ask: Mapping[str, Any] | None = None
    """Its arguments."""
    waits: tuple[Use, ...] = ()
    """What the agent calls to get the sub-agent's answer, where starting one does not wait."""
    ends: Use | None = None
    """The tool with which a sub-agent ends."""
    start: Use | None = None
    """What the agent calls first of all, where the agent with the shell is another one."""
    forgives: bool = True
    """Whether the harness goes on after a call of a tool that it does not offer."""
    pauses: bool = False
    """Whether it stops half-way through a long run to say that it will go on, and is told to."""
    finish: str = ""
    """Shell command that ends the main agent; without one an answer does."""

    def run(self, command: str) -> Use:
        """A call of the shell."""
        return Use((self.shell,), {self.command: command})

    def task(self, begin: Move = _BEGIN) -> dict[str, Part]:
        """Write the file, ask a sub-agent where there is one, answer."""
        main = [*self._begin(), replace(begin, uses=(self.run(_WRITE),))]
        if self.spawn:
            main.append(
                Move("", (Use((self.spawn,), self.ask or {}),), thought="Somebody else can find that out.")
            )
            main += [Move("", (wait,)) for wait in self.waits]
        sub = [Move("", (self.run(_LOOK),)), self._end(_FOUND)]
        return {"main": [*main, self._finish()], "sub": sub}

    def torn(self, tear: Tear) -> dict[str, Part]:
        """The same; in its first answer is the word at which the line tears it."""
        light = f"I light a{WORD}, and it is bright."
        return self.task(Move("I begin.", thought=light) if tear == "thought" else Move(light))

    def faults(self) -> dict[str, Part]:
        """Markup that does not parse, a tool there is not, arguments that are wrong; then the task."""
        bad = Use((self.shell,), {"nonsense": 1})
        unknown = Use(("no_such_tool",), {"x": "y"}, anyway=True)
        main = [
            *self._begin(),
            Move("Let me try.", (self.run("true"),), broken=_BROKEN),
            Move("", (bad,)),
            Move("Again.", (self.run("true"),)),
            *([Move("", (unknown,))] if self.forgives else []),
            Move("I begin.", (self.run(_WRITE),)),
        ]
        return {"main": [*main, self._finish()]}

    def long(self, turns: int = 8, lines: int = 160) -> dict[str, Part]:
        """Many steps with much output; the file comes last."""
        steps = [
            Move(f"Step {n}.", (self.run(f"yes '{n}. {_TEXT}' | head -n {lines}"),)) for n in range(1, turns)
        ]
        if self.pauses:
            steps.insert(turns // 2, _PAUSE)
        return {"main": [*self._begin(), *steps, Move("", (self.run(_WRITE),)), self._finish()]}

    def _begin(self) -> list[Move]:
        return [Move("", (self.start,), thought="That is for somebody else.")] if self.start else []

    def _finish(self) -> Move:
        return Move("I am done.", (self.run(self.finish),)) if self.finish else _DONE

    def _end(self, move: Move) -> Move:
        return Move(move.text, (self.ends,), thought=move.thought) if self.ends else move


def _asking(**more: str | bool) -> dict[str, Any]:
    return {"description": "Find the folder", "prompt": _ASK, **more}


TOOLS = {
    "qwen_code": Tools("run_shell_command", spawn="agent", ask=_asking(subagent_type="general-purpose")),
    "pi": Tools("bash"),
    "opencode": Tools("bash", spawn="task", ask=_asking(subagent_type="general")),
    "claude_code": Tools(
        "Bash", spawn="Agent", ask=_asking(subagent_type="general-purpose", run_in_background=False)
    ),
    "mini_swe_agent": Tools("bash", finish="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"),
    "deepagents": Tools("execute", spawn="task", ask={"description": _ASK, "subagent_type": "researcher"}),
    "openai_agents": Tools("shell", start=Use(("transfer_to_coder",), {}), forgives=False),
    "codex": Tools(
        "exec_command",
        command="cmd",
        spawn="multi_agent_v1__spawn_agent",
        ask={"message": _ASK},
        waits=(
            Use(
                ("multi_agent_v1__wait_agent",),
                {"targets": ["{found}"]},
                find=r'"agent_id":\s*"([0-9a-f-]+)"',
            ),
        ),
    ),
    "gemini_cli": Tools(
        "run_shell_command",
        spawn="invoke_agent",
        ask={"agent_name": "generalist", "prompt": _ASK},
        ends=Use(("complete_task",), {"result": {"response": "The folder is called workspace."}}),
        pauses=True,
    ),
}

"""claude-agent-sdk with the CLI that it brings. Prints the answers as one line of JSON, by case."""

import asyncio
import json
import os
import sys
from pathlib import Path

from claude_agent_sdk import ClaudeAgentOptions, ResultMessage, query


async def play(case):
    """One case."""
    os.environ.update(case["env"])
    options = ClaudeAgentOptions(permission_mode="bypassPermissions", model="policy", cwd=os.getcwd())
    async for message in query(prompt=case["prompt"], options=options):
        if isinstance(message, ResultMessage):
            answer = message.result
    return answer


async def main():
    """All cases."""
    cases = json.loads(Path(sys.argv[1]).read_text())
    print(json.dumps({case["name"]: await play(case) for case in cases}))


asyncio.run(main())

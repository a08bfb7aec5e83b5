"""Rollouts whose right rewards are known: small tasks, and an agent that solves even ones and gets odd ones
wrong.

It writes its answer after its last model call alone: a rollout whose calls, sandbox or grader failed, and
that got a reward all the same, is told by the reward.
"""

from pathlib import Path

TURNS = 2
"""Model calls of every rollout."""
_TASK = """\
artifacts = ["answer.py"]
instruction = "Write answer.py, which prints {number}."

[limits]
wall_s = 60
memory_mb = 256
disk_mb = 16

[setup]
run = [["sh", "-c", "echo {number} > number.txt"]]

[[tests]]
kind = "io"
command = ["python3", "answer.py"]
match = "exact"
cases = [{{ stdout = "{number}\\n" }}]
"""
_AGENT = """\
import json, os, time, urllib.request


def call(text):
    body = json.dumps({"model": "policy", "messages": [{"role": "user", "content": text}]}).encode()
    headers = {"content-type": "application/json", "authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    return json.load(urllib.request.urlopen(request, timeout=50))["choices"][0]["message"]["content"]


number = int(open("number.txt").read())
call(f"What is {number}?")
time.sleep(0.3)
call(f"Is {number} even?")
with open("answer.py", "w") as file:
    file.write(f"print({number + number % 2})\\n")
"""


def write_tasks(folder: Path, count: int) -> dict[str, float]:
    """Native tasks in `folder`; what the agent gets for each, by its id."""
    rewards = {}
    for number in range(count):
        name = f"print-{number:02d}"
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "task.toml").write_text(_TASK.format(number=number))
        rewards[f"{folder.name}/{name}"] = float(number % 2 == 0)
    return rewards


def write_agent(path: Path) -> None:
    """The agent's program."""
    path.write_text(_AGENT)

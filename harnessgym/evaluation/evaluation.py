"""An evaluation: several policies, each in its own campaign, all with the same tasks and seeds.

Its folder holds `evaluation.json` (the settings and the versions they name), a campaign folder per policy,
and at the end `eval.json`. After an interruption the same evaluation in the same folder resumes.
"""

import asyncio
import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from harnessgym.batch_rollout.batch_rollout import (
    FREE,
    PURPOSE,
    BatchProgress,
    BatchRollout,
    Observer,
    harness_of,
)
from harnessgym.batch_rollout.settings import CampaignSettings, chosen_tasks, digest_of
from harnessgym.config import Config
from harnessgym.errors import ConfigError, HarnessGymError, PolicyError
from harnessgym.evaluation.comparison import PASS_REWARD, Comparison, PolicyScore, compare, score
from harnessgym.evaluation.policies import NamedPolicy, find_policy, own_engine
from harnessgym.run_folder import RunFolder, write_json
from harnessgym.run_identity import run_of
from harnessgym.store import TraceStore, rollout_states
from harnessgym.store.backend import url_of_file
from harnessgym.store.rollout_states import RolloutState
from harnessgym.supervisor.preparation import claim_folder
from harnessgym.wrapping.own_proxy import find_upstream

Watch = Callable[[], AbstractContextManager[Observer]]
_BATCH = 32
"""Smallest batch size of an evaluation's own engine, in sequences."""


class EvaluationSettings(Config):
    """What to evaluate, and how."""

    policies: tuple[str, ...] = Field(min_length=1)
    """Policies by name, see `harnessgym.evaluation.policies`. Each is compared with the first."""
    campaign: CampaignSettings
    """The campaign that all policies run. Its folder is the evaluation's; its upstream is ignored."""


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The result of one policy."""

    policy: NamedPolicy
    folder: Path
    score: PolicyScore
    comparison: Comparison | None
    """Comparison with the first policy; None for the first itself."""


class Evaluation:
    """One evaluation in one folder.

    ```python
    settings = EvaluationSettings(policies=("runs/a@0", "runs/a"), campaign=...)
    comparison = asyncio.run(Evaluation(settings).run(print, watch))
    ```
    """

    def __init__(self, settings: EvaluationSettings) -> None:
        """Raises `ConfigError` for settings that cannot run and for a folder of another evaluation."""
        self.settings = settings
        self.folder = RunFolder(settings.campaign.folder.resolve())
        self.tasks, self.remarks = chosen_tasks(settings.campaign)
        """The tasks to run, and remarks about the set."""
        harness_of(settings.campaign)
        self._claim: int | None = None
        self.policies = self._claimed()

    async def run(self, say: Callable[[str], None], watch: Watch) -> list[Evaluated]:
        """Run all policies one after another. Writes their results, releases the folder and returns them.

        `say` gets messages, and `watch` makes the observer of each campaign's progress. Raises
        `HarnessGymError` if it cannot continue, or if no rollout of a policy could be graded.
        """
        try:
            return await self._run_all(say, watch)
        finally:
            if self._claim is not None:
                os.close(self._claim)
                self._claim = None

    async def _run_all(self, say: Callable[[str], None], watch: Watch) -> list[Evaluated]:
        # All exports come first: a run that is still training removes old versions while others are
        # evaluated.
        for number, policy in enumerate(self.policies):
            if policy.kind == "version" and not (self.folder_of(number) / "summary.json").is_file():
                await _exported(policy, self.folder_of(number) / "model")
        policy_states: list[list[RolloutState]] = []
        for number, policy in enumerate(self.policies):
            folder = self.folder_of(number)
            if not (folder / "summary.json").is_file():
                say(f"Policy {number + 1} of {len(self.policies)}: {policy.title}")
                await self._run(policy, folder, watch)
            policy_states.append(_states(folder))
        done = [
            Evaluated(
                policy,
                self.folder_of(number),
                score(states, self.samples),
                compare(policy_states[0], states) if number else None,
            )
            for number, (policy, states) in enumerate(zip(self.policies, policy_states, strict=True))
        ]
        write_json(self.folder.root / "eval.json", self._report(done))
        for each in done:
            if not each.score.graded:
                causes = ", ".join(f"{count} {cause}" for cause, count in each.score.causes.items())
                raise HarnessGymError(
                    f"No rollout of {each.policy.title} could be graded ({causes}). See {each.folder}."
                )
        return done

    @property
    def samples(self) -> int:
        """Rollouts of each task by each policy."""
        return self.settings.campaign.samples

    def folder_of(self, number: int) -> Path:
        """The folder of a policy's campaign."""
        return self.folder.root / f"{number + 1}-{self.policies[number].slug}"

    async def _run(self, policy: NamedPolicy, folder: Path, watch: Watch) -> None:
        """Run one policy's campaign to its end."""
        shared = self.settings.campaign
        settings = shared.model_copy(update={"folder": folder, "upstream": policy.title})
        if policy.kind == "upstream":
            with watch() as observe:
                await BatchRollout(settings).run(observe)
            return
        model = Path(policy.where) if policy.kind == "model" else await _exported(policy, folder / "model")
        async with own_engine(self.folder, model, max(_BATCH, shared.at_once), shared.max_length) as engine:
            upstream = await asyncio.to_thread(
                find_upstream, engine.url, model, shared.max_length, shared.parser
            )
            with watch() as observe:

                def look(progress: BatchProgress) -> None:
                    engine.revive()
                    observe(progress)

                await BatchRollout(settings, upstream).run(look)

    def _claimed(self) -> list[NamedPolicy]:
        """Claim the folder and return the policies.

        They are looked up once and recorded, so that "the newest version" of a run means the same after a
        resume. Raises `ConfigError` if the folder holds another evaluation or another process runs it.
        """
        asked = self.settings.campaign.model_dump(mode="json", exclude=set(FREE)) | {
            "tasks_digest": digest_of(self.tasks)
        }
        asked |= {"policies": list(self.settings.policies)}
        root = self.folder.root
        path = self.folder.root / "evaluation.json"
        if any(root.glob("*/traces.db")) and path.exists():
            recorded = json.loads(path.read_text())
            if differences := _differences(recorded, asked):
                raise ConfigError(
                    f"{root} holds another evaluation: {differences}. Give another --folder, or remove that "
                    "one first."
                )
            self._claim = claim_folder(self.folder)
            return [_unchanged(each) for each in recorded["found"]]
        if not path.exists() and root.exists() and any(root.iterdir()):
            raise ConfigError(f"{root} already has other content. Give another --folder.")
        policies = [find_policy(named) for named in self.settings.policies]
        for policy in policies:
            # Upstreams are looked up before the folder is claimed, so that a typo leaves no folder behind.
            if policy.kind == "upstream":
                find_upstream(policy.where, self.settings.campaign.policy, self.settings.campaign.max_length)
        self._claim = claim_folder(self.folder)
        for stale in root.glob("*/model"):  # of an evaluation that never began
            shutil.rmtree(stale)
        write_json(path, asked | {"found": [_stamped(policy) for policy in policies]})
        return policies

    def _report(self, done: Sequence[Evaluated]) -> dict[str, Any]:
        """The content of `eval.json`."""
        shared = self.settings.campaign
        named = ("tasks", "split", "harness", "sandbox", "samples", "temperature", "max_tokens", "seed")
        return {
            **{name: shared.model_dump(mode="json")[name] for name in named},
            "tasks_run": len(self.tasks),
            "passes_from": PASS_REWARD,
            "policies": [
                {
                    "policy": each.policy.named,
                    "version": each.policy.version,
                    "folder": each.folder.name,
                    **each.score.as_json(),
                }
                for each in done
            ],
            "comparisons": [
                {"policy": each.policy.named, "with": done[0].policy.named, **each.comparison.as_json()}
                for each in done
                if each.comparison is not None
            ],
        }


def _differences(recorded: dict[str, Any], asked: dict[str, Any]) -> str:
    names = sorted({*asked, *recorded} - {"found"})
    return "; ".join(
        f"{name} was {recorded.get(name)!r} and is {asked.get(name)!r}"
        for name in names
        if asked.get(name) != recorded.get(name)
    )


async def _exported(policy: NamedPolicy, out: Path) -> Path:
    """The model folder of a run's version, exported once. Done in a child process, because it needs torch."""
    if out.is_dir():
        return out
    words = ["weights", "export", f"{policy.where}@{policy.version}", str(out)]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "harnessgym",
        *words,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise PolicyError(output.decode(errors="replace").strip().removeprefix("harnessgym: "))
    return out


def _states(folder: Path) -> list[RolloutState]:
    """The final states of a finished campaign's rollouts."""
    with TraceStore.open(url_of_file(folder / "traces.db")) as store:
        run = store.read(lambda conn: run_of(conn, RunFolder(folder)))
        assert run is not None
        return store.read(lambda conn: rollout_states.slots(conn, run.id, PURPOSE))


def _stamped(policy: NamedPolicy) -> dict[str, Any]:
    """A policy for `evaluation.json`, with file sizes and times that show if its weights were replaced."""
    return policy.model_dump(mode="json") | {"files": _files(policy)}


def _unchanged(recorded: dict[str, Any]) -> NamedPolicy:
    """The recorded policy. Raises `ConfigError` if its model folder now has other weights."""
    policy = NamedPolicy.model_validate({name: value for name, value in recorded.items() if name != "files"})
    if _files(policy) != recorded["files"]:
        raise ConfigError(
            f"The weights at {policy.where} are not those that this evaluation began with. Give another "
            "--folder to start a new one."
        )
    return policy


def _files(policy: NamedPolicy) -> dict[str, list[int]]:
    """Size and modification time of a model folder's weight files, by name."""
    if policy.kind != "model":
        return {}
    file_stats = ((file.name, file.stat()) for file in sorted(Path(policy.where).glob("*.safetensors")))
    return {name: [stat.st_size, stat.st_mtime_ns] for name, stat in file_stats}

"""The registry of all plugins: names to `"module:attribute"` strings, loaded on demand.

A full `module:attribute` is accepted wherever a name is, so a plugin needs no registration. Its module must
be installed or in a folder given to `look_in`.
"""

import importlib
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from harnessgym.errors import ConfigError

Kind = Literal[
    "task_set", "harness", "sandbox", "algorithm", "advantage", "grader", "dialect", "parser", "renderer",
    "upstream",
    "reward", "service", "settings", "export", "import", "language", "body_reader", "check",
    "task_format", "task_writer", "sink", "loss", "correction", "selector",
]  # fmt: skip

REGISTRY: dict[Kind, dict[str, str]] = {
    "task_set": {
        "human_eval": "environments.code.human_eval:HumanEvalTasks",
        "lookup": "environments.lookup:LookupTasks",
        "one_liners": "environments.one_liners:OneLiners",
        "setup": "environments.setup_tasks:SetupTasks",
        "reasoning": "environments.code.reasoning:ReasoningTasks",
        "shell": "environments.shell_tasks:ShellTasks",
        "swe": "environments.swe:SweTasks",
    },
    "task_format": {
        "harbor": "harnessgym.tasks.harbor:Harbor",
        "harbor_shared": "harnessgym.tasks.harbor:HarborShared",
        "io_judge": "harnessgym.tasks.io_judge:IoJudge",
        "native": "harnessgym.tasks.native:Native",
        "r2e": "harnessgym.tasks.r2e:R2e",
        "swe_bench": "harnessgym.tasks.swe_bench:SweBench",
        "swe_bench_repo": "harnessgym.tasks.swe_bench_repo:SweBenchRepo",
        "swe_rebench": "harnessgym.tasks.swe_rebench:SweRebench",
        "terminal_bench": "harnessgym.tasks.terminal_bench:TerminalBench",
    },
    "sink": {
        "tensorboard": "harnessgym.metrics.sinks.tensorboard:TensorBoard",
        "trackio": "harnessgym.metrics.sinks.trackio:Trackio",
        "wandb": "harnessgym.metrics.sinks.wandb:Wandb",
    },
    "task_writer": {
        "harbor": "harnessgym.tasks.harbor_writing:HarborWriter",
        "native": "harnessgym.tasks.native_writing:NativeWriter",
        "swe_bench": "harnessgym.tasks.swe_bench_writing:SweBenchWriter",
    },
    "harness": {
        "claude_code": "harnessgym.harnesses.claude_code:ClaudeCode",
        "codex": "harnessgym.harnesses.codex:Codex",
        "command": "harnessgym.harnesses.command:CommandHarness",
        "deepagents": "harnessgym.harnesses.agent_file:DeepAgents",
        "gemini_cli": "harnessgym.harnesses.gemini_cli:GeminiCli",
        "mini_swe_agent": "harnessgym.harnesses.mini_swe_agent:MiniSweAgent",
        "openai_agents": "harnessgym.harnesses.agent_file:OpenAIAgents",
        "opencode": "harnessgym.harnesses.opencode:OpenCode",
        "pi": "harnessgym.harnesses.pi:Pi",
        "qwen_code": "harnessgym.harnesses.qwen_code:QwenCode",
    },
    "sandbox": {
        "process": "harnessgym.sandboxes.process:ProcessBackend",
        "bubblewrap": "harnessgym.sandboxes.bubblewrap:Bubblewrap",
        "docker": "harnessgym.sandboxes.docker:Docker",
    },
    "algorithm": {"grpo": "trainers.grpo:train", "ppo": "trainers.ppo:train"},
    "advantage": {
        "dr_grpo": "trainers.advantages.group_relative:dr_grpo",
        "gdpo": "trainers.advantages.gdpo:Gdpo",
        "grpo": "trainers.advantages.group_relative:grpo",
        "hgpo": "trainers.advantages.hgpo:Hgpo",
        "igpo": "trainers.advantages.igpo:Igpo",
        "m_grpo": "trainers.advantages.m_grpo:MGrpo",
        "mc_grpo": "trainers.advantages.group_relative:McGrpo",
        "reward": "trainers.advantages.group_relative:reward",
        "rloo": "trainers.advantages.group_relative:rloo",
        "ui_s1": "trainers.advantages.ui_s1:UiS1",
    },
    "loss": {
        "cispo": "trainers.losses.settings:Cispo",
        "dapo": "trainers.losses.settings:Dapo",
        "decoupled_ppo": "trainers.losses.settings:DecoupledPpo",
        "dppo_tv": "trainers.losses.settings:DppoTv",
        "gspo": "trainers.losses.settings:Gspo",
        "minpro": "trainers.losses.settings:MinPro",
        "ppo": "trainers.losses.settings:PpoLoss",
        "reinforce": "trainers.losses.settings:Reinforce",
    },
    "correction": {
        "geometric": "trainers.corrections.settings:Geometric",
        "icepop": "trainers.corrections.settings:IcePop",
        "mis": "trainers.corrections.settings:Mis",
        "opsm": "trainers.corrections.settings:Opsm",
        "tis": "trainers.corrections.settings:Tis",
    },
    "selector": {
        "dapo": "harnessgym.scheduling.selectors.uniform:Uniform",
        "dars": "harnessgym.scheduling.selectors.dars:Dars",
        "dart": "harnessgym.scheduling.selectors.dart:Dart",
        "gdro": "harnessgym.scheduling.selectors.gdro:Gdro",
        "insight": "harnessgym.scheduling.selectors.insight:Insight",
        "uniform": "harnessgym.scheduling.selectors.uniform:Uniform",
        "vade": "harnessgym.scheduling.selectors.vade:Vade",
        "xrpo": "harnessgym.scheduling.selectors.xrpo:Xrpo",
    },
    "grader": {"checks": "harnessgym.grading.checklist:verifier"},
    "check": {
        "asserts": "harnessgym.grading.checks.asserts:Asserts",
        "call": "harnessgym.grading.checks.call:CallCheck",
        "command": "harnessgym.grading.checks.command:CommandCheck",
        "files": "harnessgym.grading.checks.files:Files",
        "io": "harnessgym.grading.checks.io:Io",
        "pytest": "harnessgym.grading.checks.pytests:PytestCheck",
    },
    "reward": {
        "code": "harnessgym.rewards.code:Code",
        "command": "harnessgym.rewards.command:CommandReward",
        "contract": "harnessgym.rewards.contract:ContractReward",
        "judge": "harnessgym.rewards.judge:Judge",
        "orchestration": "harnessgym.rewards.orchestration:OrchestrationReward",
        "sql": "harnessgym.rewards.command:Sql",
    },
    "dialect": {
        "chat": "proxies.dialects.chat:Chat",
        "completions": "proxies.dialects.completions:Completions",
        "gemini": "proxies.dialects.gemini.dialect:Gemini",
        "messages": "proxies.dialects.messages:Messages",
        "responses": "proxies.dialects.responses.dialect:Responses",
    },
    "parser": {
        "deepseek": "proxies.parsers.deepseek:DeepseekParser",
        "gemma": "proxies.parsers.gemma:GemmaParser",
        "glm": "proxies.parsers.glm:GlmParser",
        "harmony": "proxies.parsers.harmony:HarmonyParser",
        "hermes": "proxies.parsers.hermes:HermesParser",
        "kimi": "proxies.parsers.kimi:KimiParser",
        "llama3": "proxies.parsers.llama3:Llama3Parser",
        "minimax": "proxies.parsers.minimax:MinimaxParser",
        "mistral": "proxies.parsers.mistral:MistralParser",
        "pythonic": "proxies.parsers.pythonic:PythonicParser",
        "qwen3_coder": "proxies.parsers.qwen3_coder:Qwen3CoderParser",
        "text": "proxies.parsers.tagged:TaggedParser",
    },
    "renderer": {
        "auto": "proxies.renderers.family:AutoRenderer",
        "family": "proxies.renderers.family:FamilyRenderer",
        "template": "proxies.renderers.template:TemplateRenderer",
    },
    "upstream": {
        "embedded": "proxies.upstreams.vllm:VllmUpstream",
        "litellm": "proxies.upstreams.litellm:LitellmUpstream",
        "scripted": "proxies.upstreams.script:ScriptUpstream",
        "sglang": "proxies.upstreams.sglang:SglangUpstream",
        "vllm": "proxies.upstreams.vllm:OutsideVllmUpstream",
    },
    "service": {
        "proxy": "proxies.app:serve",
        "engine": "trainers.engine:serve",
        "node": "harnessgym.rollout.node:run",
        "simulate": "harnessgym.simulation.comparison:compare",
        "train-offline": "trainers.trl_bridge.offline:train_offline",
        "train-worker": "trainers.grpo:train",
        "weights-agent": "trainers.weights.outside:serve",
        "weights-export": "trainers.weights.export:export",
        "weights-mirror": "trainers.weights.mirror:follow",
        "weights-server": "trainers.weights.version_server:serve",
    },
    "export": {
        "areal": "harnessgym.traces.exports.areal:Areal",
        "atif": "harnessgym.traces.exports.atif:Atif",
        "datasets": "harnessgym.traces.exports.datasets:Datasets",
        "mas": "harnessgym.traces.exports.mas:Mas",
        "otel": "harnessgym.traces.exports.otel:Otel",
        "parquet": "harnessgym.traces.exports.parquet:Parquet",
        "sft": "harnessgym.traces.exports.sft:Sft",
        "trl": "harnessgym.traces.exports.trl:Trl",
        "verl": "harnessgym.traces.exports.verl:Verl",
    },
    "import": {
        "atif": "harnessgym.traces.imports.atif:AtifImport",
        "mas": "harnessgym.traces.imports.mas:MasImport",
    },
    "language": {"policy": "proxies.language:PolicyLanguage"},
    "body_reader": {"conversation": "proxies.reading:BodyReader"},
    "settings": {
        "proxy": "proxies.app:ProxySettings",
        "engine": "trainers.engine:EngineSettings",
        "node": "harnessgym.rollout.node:NodeSettings",
        "simulate": "harnessgym.simulation.settings:SimulationConfig",
        "train-worker": "trainers.learner:TrainerSettings",
        "weights-agent": "trainers.weights.outside:OutsideSettings",
        "train": "harnessgym.run_config.run:RunConfig",
        "weights-mirror": "trainers.weights.settings:MirrorSettings",
        "weights-server": "trainers.weights.settings:VersionServerSettings",
    },
}


def names(kind: Kind) -> list[str]:
    """Known names of a kind, sorted."""
    return sorted(REGISTRY[kind])


def known_as(kind: Kind, name: str) -> str:
    """The registered name of a `module:attribute`, or the given name if there is none."""
    return next((known for known, target in REGISTRY[kind].items() if target == name), name)


_FOLDERS: list[str] = []
"""Folders with the user's own code, in search order."""
_EXTRAS = {"trainers": "train", "proxies": "proxy", "environments": "envs", "harnessgym": "all"}
"""Our packages, and the extra that installs the dependencies of each."""


def look_in(*folders: str | Path) -> None:
    """Also search these folders for the modules of `module:attribute` names.

    They are searched after installed packages, so that a user's `random.py` does not replace the library's.
    """
    for folder in folders:
        whole = str(Path(folder).resolve())
        if whole not in _FOLDERS:
            _FOLDERS.append(whole)
        if whole not in sys.path:
            sys.path.append(whole)


def load(kind: Kind, name: str) -> Any:
    """Load a name or `module:attribute`. Raises `ConfigError` with a remedy if there is no such object."""
    target = REGISTRY[kind].get(name, name)
    module, colon, attribute = target.partition(":")
    if not colon:
        from harnessgym.config import nearest

        raise ConfigError(
            f"There is no {kind.replace('_', ' ')} named {name!r}. {nearest(name, names(kind))}"
        )
    what = f"Cannot load {kind.replace('_', ' ')} {name!r}"
    try:
        imported = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ConfigError(f"{what}: {_missing(module, error)}") from error
    except Exception as error:  # the module may be anybody's code
        # An error in our own code is a bug and keeps its traceback.
        if module.split(".")[0] in _EXTRAS and not isinstance(error, ImportError):
            raise
        raise ConfigError(f"{what}: {failed_import(error, module)}") from error
    try:
        return getattr(imported, attribute)
    except AttributeError:
        raise ConfigError(f"{what}: module {module!r}{_file_of(imported)} has no {attribute!r}.") from None


def failed_import(error: Exception, module: str) -> str:
    """A message about an error raised while importing a module: where it was raised and what it was."""
    own = module.split(".", maxsplit=1)[0] not in _EXTRAS
    remedy = "Correct it there." if own else "Install that package again, for this Python and this machine."
    return f"importing {module!r} failed in {_line_of(error)}: {type(error).__name__}: {error}. {remedy}"


def _missing(module: str, error: ModuleNotFoundError) -> str:
    """A message about a module that is missing, or that needs a missing one."""
    root = module.split(".", maxsplit=1)[0]
    missing = error.name or ""
    if root in _EXTRAS:
        return f"there is no module {missing!r}. Install it: pip install 'harnessgym-rl[{_EXTRAS[root]}]'."
    if module != missing and not module.startswith(f"{missing}."):
        return (
            f"{_line_of(error)} imports {missing!r}, which is not installed. Install it, or put it beside "
            f"{root!r}."
        )
    searched = " and ".join(["what is installed", *_FOLDERS])
    return (
        f"there is no module {missing!r}. Searched: {searched}. Run the command in the folder that holds "
        f"{root}.py, keep that "
        'file beside the run file, or name its folder in the run file: code = ["FOLDER"].'
    )


def _line_of(error: BaseException) -> str:
    """`FILE:LINE` where an import failed, without Python's import machinery."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith("<frozen importlib")]
    return f"{own[-1].filename}:{own[-1].lineno}"


def _file_of(module: ModuleType) -> str:
    """` (FILE)` of a module, because another module of the same name may have been meant."""
    file = getattr(module, "__file__", None)
    return f" ({file})" if file else ""

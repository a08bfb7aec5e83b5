"""The shipped ids under gymnasium's own checker, vectorised in every way, and without anything left
behind.
"""

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

from environments import IDS
from environments.agents import GoldAgent, RandomAgent, play
from environments.workspace.action import ActionStatus
from tests.environments.playing import ID, SOLVE, SUBMIT, make, run
from tests.support.left_behind import left_behind

FEW = "tests.environments.playing:Few"
MODES = pytest.mark.parametrize("mode", list(AutoresetMode))
WAYS = pytest.mark.parametrize("way", ["sync", "async"])


def vector(way, mode, count=2, **options):
    kwargs = {"autoreset_mode": mode, **options}
    return gymnasium.make_vec(
        ID,
        num_envs=count,
        vectorization_mode=way,
        vector_kwargs=kwargs,
        tasks=FEW,
        max_steps=3,
        sandbox="bubblewrap",
    )


def test_every_id_is_registered_with_gymnasium():
    assert set(IDS) <= set(gymnasium.registry)
    assert {name for name in IDS if gymnasium.registry[name].nondeterministic} == {"harnessgym/Harness-v0"}


@pytest.mark.bubblewrap
def test_gymnasiums_checker_finds_nothing():
    env = gymnasium.make("environments:harnessgym/Code-v0", tasks="shell")
    check_env(env.unwrapped)
    env.close()


@pytest.mark.docker
def test_gymnasiums_checker_finds_nothing_with_containers():
    env = gymnasium.make(ID, tasks="shell", sandbox="docker")
    check_env(env.unwrapped)
    env.close()


@pytest.mark.bubblewrap
@WAYS
@MODES
def test_vectorised_environments_begin_again_as_they_are_told(way, mode):
    envs = vector(way, mode)
    observations, infos = envs.reset(seed=4)
    assert envs.observation_space.contains(observations)
    envs.step((SOLVE, run("true")))
    observations, rewards, terminated, truncated, infos = envs.step((SUBMIT, run("true")))
    assert (list(rewards), list(terminated), list(truncated)) == ([1.0, 0.0], [True, False], [False, False])
    final = infos["final_info"] if mode == AutoresetMode.SAME_STEP else infos
    assert (final["verdict"][0], final["rewards"]["reward"][0]) == ("valid", 1.0)
    expected = ActionStatus.READY if mode == AutoresetMode.SAME_STEP else ActionStatus.SUBMITTED
    assert observations["status"][0] == expected
    if mode == AutoresetMode.DISABLED:
        observations, _ = envs.reset(options={"reset_mask": terminated})
        assert observations["status"][0] == ActionStatus.READY
    observations, rewards, terminated, truncated, infos = envs.step((run("true"), run("true")))
    assert (list(rewards), bool(truncated[1])) == ([0.0, 0.0], True)
    assert observations["status"][0] == (
        ActionStatus.READY if mode == AutoresetMode.NEXT_STEP else ActionStatus.DONE
    )
    envs.close()


@pytest.mark.bubblewrap
@pytest.mark.parametrize("shared_memory", [True, False])
def test_texts_come_out_of_processes_as_they_were_said(shared_memory):
    envs = vector("async", AutoresetMode.NEXT_STEP, shared_memory=shared_memory)
    first, infos = envs.reset(seed=0)
    assert list(first["output"]) == list(infos["instruction"])
    observations = envs.step((run("echo ü"), run("echo b > c")))[0]
    assert list(observations["output"]) == ["ü\n", ""]
    assert "+++ b/c\n" in observations["diff"][1]
    assert list(first["output"]) == list(infos["instruction"])
    assert envs.observation_space.contains(observations)
    envs.close()


@pytest.mark.bubblewrap
def test_a_failed_sandbox_in_a_vector_does_not_stop_the_others():
    envs = vector("sync", AutoresetMode.NEXT_STEP)
    envs.reset(seed=0)
    broken = envs.envs[0].unwrapped
    broken._pool.call(broken._episode._sandbox.aclose)
    _, rewards, _, truncated, infos = envs.step((SOLVE, SOLVE))
    assert (list(rewards), list(truncated)) == ([0.0, 0.0], [True, False])
    assert list(infos["reason"]) == ["infrastructure", ""]
    observations = envs.step((SOLVE, SUBMIT))[0]
    assert list(observations["status"]) == [ActionStatus.READY, ActionStatus.SUBMITTED]
    envs.close()


@pytest.mark.bubblewrap
def test_a_random_and_a_scripted_agent_play():
    env = make()
    random = play(env, RandomAgent(env.action_space, 2), 15)
    gold = play(env, GoldAgent(FEW), 6)
    env.close()
    assert random.steps == 15
    assert (set(random.rewards), random.stopped) == ({0.0}, {})
    assert (gold.rewards, gold.stopped) == ([1.0] * 3, {})


@pytest.mark.bubblewrap
@pytest.mark.parametrize("agent", ["random", "gold"])
def test_fifty_steps_leave_nothing_behind(agent):
    found = left_behind("harnessgym/SWE-v0", agent, 50, tasks=FEW)
    assert found.steps == 50
    assert found.after == found.before
    assert found.before["processes"] == 0


@pytest.mark.docker
def test_containers_leave_nothing_behind():
    found = left_behind("harnessgym/SWE-v0", "gold", 10, tasks=FEW, sandbox="docker")
    assert found.after == found.before
    assert found.before["containers"] == 0

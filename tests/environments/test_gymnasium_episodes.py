"""Episodes of the workspace environments: what actions do, what ends an episode, and what is a reward."""

import functools
import gc
import os
import pickle
import time

import cloudpickle
import gymnasium
import pytest
from gymnasium.error import ResetNeeded

import harnessgym
from environments.workspace import backend_pool
from environments.workspace.action import ActionStatus
from environments.workspace.env import WorkspaceEnv
from harnessgym.errors import CapabilityError, ConfigError, HarnessGymError
from tests.environments.playing import ID, SOLVE, SUBMIT, edit, make, run, write

BACKENDS = [
    pytest.param("bubblewrap", marks=pytest.mark.bubblewrap),
    pytest.param("docker", marks=pytest.mark.docker),
    "process",
]
BOTH = pytest.mark.parametrize("env", BACKENDS, indirect=True)


@pytest.fixture
def env(request):
    made = make(sandbox=getattr(request, "param", "bubblewrap"))
    yield made
    made.close()


def begin(env, task="plain"):
    return env.reset(seed=0, options={"task_id": f"few/{task}"})


@BOTH
@pytest.mark.parametrize("task", ["plain", "setup", "many"])
def test_a_solved_task_is_rewarded_each_time_it_is_played(env, task):
    for _ in range(2):
        seen, info = begin(env, task)
        assert (seen["status"], seen["output"], seen["diff"]) == (ActionStatus.READY, info["instruction"], "")
        seen, reward, terminated, truncated, _ = env.step(SOLVE)
        assert (reward, terminated, truncated, seen["status"]) == (0.0, False, False, ActionStatus.DONE)
        assert "+++ b/answer.txt" in seen["diff"]
        seen, reward, terminated, truncated, info = env.step(SUBMIT)
        assert (reward, terminated, truncated, seen["status"]) == (1.0, True, False, ActionStatus.SUBMITTED)
        assert (info["verdict"], info["rewards"]["reward"], info["reason"]) == ("valid", 1.0, "")


@BOTH
def test_each_episode_begins_as_the_task_does(env):
    for _ in range(2):
        begin(env, "setup")
        seen = env.step(run("ls; cat made.txt; test -x readme.txt && echo executable"))[0]
        assert seen["output"] == "made.txt\nreadme.txt\nmade\nexecutable\n"
        assert "-made" in env.step(run("rm -rf made.txt; echo x > new"))[0]["diff"]


@pytest.mark.docker
def test_what_a_set_up_leaves_outside_the_workspace_is_there_each_time():
    env = make("Outside", sandbox="docker")
    for task, again in (("outside", True), ("setup", False), ("outside", True)):
        begin(env, task)
        seen = env.step(run("cat /tmp/made.txt made.txt"))[0]
        assert ("outside\n" in seen["output"], "made\n" in seen["output"]) == (again, not again)
    env.close()


@BOTH
def test_commands_say_what_they_say_and_how_they_ended(env):
    begin(env)
    seen, _, _, _, info = env.step(run("echo out; echo err >&2; exit 3"))
    assert (seen["output"], seen["status"], info["exit_code"]) == ("out\nerr\n", ActionStatus.FAILED, 3)
    seen = env.step(run("printf 'a\\000\\377\\033[1m'; cat; head -c 100000 /dev/zero | tr '\\0' x"))[0]
    assert seen["status"] == ActionStatus.DONE
    assert "characters left out" in seen["output"]
    assert env.observation_space.contains(seen)


@BOTH
def test_nothing_that_a_command_started_outlives_it(env):
    begin(env)
    began = time.monotonic()
    env.step(run("(sleep 1000; echo late > late) & setsid sleep 1000 & echo started"))
    assert time.monotonic() - began < 100
    seen = env.step(run("ls"))[0]
    assert (seen["output"], seen["status"]) == ("readme.txt\n", ActionStatus.DONE)


@pytest.mark.bubblewrap
def test_a_command_that_kills_everything_is_a_failed_one(env):
    begin(env)
    seen, _, _, truncated, info = env.step(run("kill -9 -1; sleep 1000"))
    assert (seen["status"], truncated, info["exit_code"]) == (ActionStatus.FAILED, False, -9)
    seen = env.step(run("echo alive"))[0]
    assert (seen["output"], seen["status"]) == ("alive\n", ActionStatus.DONE)
    env.step(SOLVE)
    assert env.step(SUBMIT)[1] == 1.0


@BOTH
def test_files_are_written_and_edited_in_place(env):
    begin(env, "setup")
    assert env.step(edit("readme.txt", "hello", "bye ✓"))[0]["status"] == ActionStatus.DONE
    assert env.step(run("cat readme.txt; test -x readme.txt"))[0]["output"] == "bye ✓\n"
    assert env.step(write("deep/er/file.txt", "one two one"))[0]["status"] == ActionStatus.DONE
    for action, why in [
        (edit("deep/er/file.txt", "one", "1"), "occurs 2 times"),
        (edit("deep/er/file.txt", "three", "3"), "occurs 0 times"),
        (edit("missing", "a", "b"), "no file missing"),
        (write("deep", "x"), "is a folder"),
        (write("../out", "x"), "not the path of a file in the workspace"),
        (write("/etc/passwd", "x"), "not the path of a file in the workspace"),
    ]:
        seen = env.step(action)[0]
        assert seen["status"] == ActionStatus.FAILED
        assert why in seen["output"]


@pytest.mark.bubblewrap
def test_files_have_the_names_that_commands_see(env):
    begin(env)
    assert env.step(write("/workspace/a.txt", "x"))[0]["status"] == ActionStatus.DONE
    assert env.step(run("cat $PWD/a.txt"))[0]["output"] == "x"


@pytest.mark.bubblewrap
def test_links_are_not_followed_out_of_the_workspace(env, tmp_path):
    begin(env)
    (tmp_path / "secret").write_text("secret\n")
    env.step(run(f"ln -s {tmp_path}/secret link; ln -s {tmp_path} folder"))
    assert env.step(edit("link", "secret", "public"))[0]["status"] == ActionStatus.FAILED
    assert env.step(write("folder/new", "x"))[0]["status"] == ActionStatus.FAILED
    assert "secret\n" not in env.step(write("link", "mine"))[0]["output"]
    assert (tmp_path / "secret").read_text() == "secret\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["secret"]


@pytest.mark.bubblewrap
def test_what_is_no_action_is_an_observation(env):
    begin(env)
    for text in ("", "ls", "{}", "漢", "[" * 5_000, "x" * 40_000):
        seen, reward, terminated, truncated, _ = env.step(text)
        assert (seen["status"], reward, terminated, truncated) == (ActionStatus.MISREAD, 0.0, False, False)
        assert env.observation_space.contains(seen)


@pytest.mark.bubblewrap
def test_a_limit_of_steps_truncates_without_a_reward():
    env = make(max_steps=2)
    begin(env)
    env.step(SOLVE)
    _, reward, terminated, truncated, info = env.step(run("true"))
    assert (reward, terminated, truncated, info["reason"], info["verdict"]) == (
        0.0,
        False,
        True,
        "step_limit",
        "none",
    )
    with pytest.raises(ResetNeeded):
        env.step(SUBMIT)
    begin(env)
    env.step(SOLVE)
    assert env.step(SUBMIT)[1:3] == (1.0, True)
    env.close()


@BOTH
def test_a_limit_of_time_ends_the_command_and_the_episode(env):
    env.unwrapped._wall_s = 3.0
    begin(env)
    seen, reward, terminated, truncated, info = env.step(run("sleep 1000"))
    assert (seen["status"], reward, terminated, truncated) == (ActionStatus.TIMED_OUT, 0.0, False, True)
    assert (info["reason"], info["verdict"]) == ("wall_clock", "none")


@BOTH
def test_a_sandbox_that_fails_truncates_and_the_next_episode_is_a_new_one(env):
    begin(env)
    inner = env.unwrapped
    inner._pool.call(inner._episode._sandbox.aclose)
    seen, reward, terminated, truncated, info = env.step(run("true"))
    assert (seen["status"], reward, terminated, truncated) == (ActionStatus.STOPPED, 0.0, False, True)
    assert (info["reason"], info["verdict"]) == ("infrastructure", "none")
    assert info["cause"]
    assert info["detail"]
    begin(env)
    env.step(SOLVE)
    assert env.step(SUBMIT)[1] == 1.0


@pytest.mark.bubblewrap
@pytest.mark.parametrize(("name", "cause"), [("grader", "grader_failed"), ("nan", "grader_failed")])
def test_a_grader_that_fails_is_no_reward(name, cause):
    env = make("Broken")
    env.reset(options={"task_id": f"broken/{name}"})
    _, reward, terminated, truncated, info = env.step(SUBMIT)
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert (info["reason"], info["cause"], info["verdict"]) == ("infrastructure", cause, "none")
    env.close()


@pytest.mark.bubblewrap
def test_a_task_that_cannot_begin_is_truncated_and_an_error_when_it_goes_on():
    env = make("Broken")
    for _ in range(2):
        seen, info = env.reset(options={"task_id": "broken/setup"})
        assert seen["status"] == ActionStatus.READY
        _, _, _, truncated, info = env.step(SUBMIT)
        assert (truncated, info["reason"], info["cause"]) == (True, "infrastructure", "setup_failed")
    with pytest.raises(HarnessGymError, match="false"):
        env.reset(options={"task_id": "broken/setup"})
    env.close()


@pytest.mark.bubblewrap
def test_what_the_backend_lacks_is_refused_at_once():
    env = make("Broken")
    with pytest.raises(CapabilityError, match="image"):
        env.reset(options={"task_id": "broken/image"})
    env.close()


@pytest.mark.bubblewrap
def test_seeds_choose_tasks_again_and_again(env):
    def ids(seed):
        return [env.reset(seed=seed)[1]["task_id"], *(env.reset()[1]["task_id"] for _ in range(4))]

    assert ids(5) == ids(5)
    assert len({tuple(ids(seed)) for seed in range(4)}) > 1


def test_what_is_not_known_is_refused_with_what_is():
    with pytest.raises(ConfigError, match="Did you mean 'ansi'"):
        WorkspaceEnv(render_mode="ansy")
    with pytest.raises(ConfigError, match="at least one step"):
        make(max_steps=0)
    env = make()
    with pytest.raises(ConfigError, match="few/plain"):
        env.reset(options={"task_id": "few/plaid"})
    with pytest.raises(ConfigError, match="task_id"):
        env.reset(options={"task": "few/plain"})
    with pytest.raises(ConfigError, match="sandbox"):
        make(sandbox="bubblerap").reset()
    with pytest.raises(ConfigError, match="none in the split"):
        make("Empty").reset()


@pytest.mark.bubblewrap
def test_the_episode_so_far_can_be_read():
    env = make(render_mode="ansi")
    begin(env)
    env.step(run("echo hello"))
    env.step(SUBMIT)
    shown = env.render()
    assert all(
        part in shown for part in ("few/plain", "echo hello", "hello\n", "Submitted: valid, reward 0.")
    )
    env.close()


@pytest.mark.bubblewrap
def test_closing_is_idempotent_ends_everything_and_allows_another_reset():
    env, other = make(), make()
    env.close()
    begin(env)
    begin(other)
    root = env.unwrapped._pool.backend.root
    assert env.unwrapped._pool is other.unwrapped._pool
    env.close()
    env.close()
    assert root.exists()
    other.step(SOLVE)
    assert other.step(SUBMIT)[1] == 1.0
    other.close()
    assert not root.exists()
    begin(env)
    env.step(SOLVE)
    assert env.step(SUBMIT)[1] == 1.0
    env.close()
    assert not backend_pool._pools


@pytest.mark.bubblewrap
def test_an_environment_that_is_forgotten_is_closed():
    env = make()
    begin(env)
    root = env.unwrapped._pool.backend.root
    del env
    gc.collect()
    assert not root.exists()


@pytest.mark.bubblewrap
def test_a_forked_child_leaves_its_parents_environment_alone_and_can_use_its_own(env):
    begin(env)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            env.close()
            mine = make()
            begin(mine)
            mine.step(SOLVE)
            status = 0 if mine.step(SUBMIT)[1] == 1.0 else 2
            mine.close()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    env.step(SOLVE)
    assert env.step(SUBMIT)[1] == 1.0


@pytest.mark.bubblewrap
@pytest.mark.parametrize("pickler", [pickle, cloudpickle])
def test_functions_that_make_environments_can_be_sent(pickler):
    made = pickler.loads(
        pickler.dumps(functools.partial(gymnasium.make, ID, tasks="tests.environments.playing:Few"))
    )()
    begin(made)
    made.close()


@pytest.mark.bubblewrap
def test_the_short_name_makes_the_same_environment():
    env = harnessgym.make("SWE-v0", tasks="tests.environments.playing:Few")
    assert env.spec.id == "harnessgym/SWE-v0"
    begin(env)
    env.close()

"""A harness as an environment: a real program in a real sandbox, whose model is whoever steps."""

import json
import textwrap
from contextlib import closing

import gymnasium
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode
from hypothesis import given, settings
from hypothesis import strategies as st

from environments.agents import GoldAgent, play
from harnessgym.errors import ConfigError
from harnessgym.gym.harness_env import HarnessEnv, shown
from harnessgym.store import TraceStore, rollout_states, runs
from harnessgym.traces.verification.verify import verify
from tests.support.left_behind import left_behind

ID = "environments:harnessgym/Harness-v0"
FEW = "tests.environments.playing:Few"
CALL = json.dumps(
    {"content": "Let me look.", "tool_calls": [{"name": "shell", "arguments": {"command": "ls"}}]}
)
WRITE = json.dumps({"tool_calls": [{"name": "shell", "arguments": {"command": "echo 42 > answer.txt"}}]})
PLAIN = {"task_id": "few/plain"}


def make(**options):
    return gymnasium.make(ID, **{"tasks": FEW, **options})


@pytest.fixture(scope="module")
def plain():
    """The environment as it comes, with one proxy for every test that changes nothing about it."""
    env = make()
    yield env
    env.close()


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """The file with the harness of `programmed`; a test writes it before it resets."""
    return tmp_path_factory.mktemp("program") / "program.py"


@pytest.fixture(scope="module")
def programmed(program):
    """An environment whose harness is a program of the test's own."""
    env = make(harness_settings={"argv": ["python", str(program)]})
    yield env
    env.close()


@pytest.mark.bubblewrap
def test_the_request_is_what_is_seen_and_the_completion_what_is_done(tmp_path):
    env = make(folder=tmp_path / "run", render_mode="ansi")
    seen, info = env.reset(seed=1, options=PLAIN)
    request = json.loads(seen)
    assert request["messages"] == [{"role": "user", "content": info["instruction"]}]
    assert [tool["function"]["name"] for tool in request["tools"]] == ["shell"]
    assert (info["waiting"], info["status"]) == (1, "request")
    assert len(info["prompt_token_ids"]) > 10
    seen, reward, terminated, truncated, _ = env.step(CALL)
    assert (reward, terminated, truncated) == (0.0, False, False)
    said = json.loads(seen)["messages"]
    assert said[1]["content"] == "Let me look."
    assert said[2]["role"] == "tool"
    assert "readme.txt" in said[2]["content"]
    env.step(WRITE)
    seen, reward, terminated, truncated, info = env.step("There it is.")
    assert (seen, reward, terminated, truncated) == ("{}", 1.0, True, False)
    assert (info["verdict"], info["stop_reason"], info["rewards"]["reward"]) == ("valid", "finished", 1.0)
    assert "echo 42" in env.render()
    with pytest.raises(ResetNeeded):
        env.step("more")
    env.close()
    with TraceStore.open(f"sqlite:///{tmp_path / 'run' / 'traces.db'}") as store:
        run = store.read(runs.only)
        (slot,) = store.read(lambda conn: rollout_states.slots(conn, run.id, "harness_env"))
        assert (slot.id, slot.reward, slot.verdict) == (info["rollout_id"], 1.0, "valid")
        assert verify(store).findings == ()


@pytest.mark.bubblewrap
def test_requests_at_the_same_time_come_one_by_one_in_their_order(program, programmed):
    text = """
        import json, os, threading, time, urllib.request
        url, key = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
        said = {}
        def ask(name):
            body = json.dumps({"model": "policy", "messages": [{"role": "user", "content": name}]}).encode()
            headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
            with urllib.request.urlopen(urllib.request.Request(f"{url}/chat/completions", body, headers)) as answer:
                said[name] = json.load(answer)["choices"][0]["message"]["content"]
        agents = [threading.Thread(target=ask, args=(name,)) for name in ("a", "b", "c")]
        for agent in agents:
            agent.start()
        for agent in agents:
            agent.join()
        open("said.json", "w").write(json.dumps(said, sort_keys=True))
        ask(json.dumps(said, sort_keys=True))
        """
    program.write_text(textwrap.dedent(text))
    env = programmed
    seen, info = env.reset(options=PLAIN)
    asked, waiting = [], []
    for _ in range(3):
        asked.append(json.loads(seen)["messages"][0]["content"])
        waiting.append(info["waiting"])
        seen, _, terminated, _, info = env.step(f"answer to {asked[-1]}")
        assert not terminated
    assert sorted(asked) == ["a", "b", "c"]
    assert all(1 <= count <= 4 - turn for turn, count in enumerate(waiting, 1))
    told = json.loads(json.loads(seen)["messages"][0]["content"])
    assert told == {name: f"answer to {name}" for name in "abc"}
    assert env.step("bye")[2]


@pytest.mark.bubblewrap
def test_tokens_may_be_given_instead_of_words_and_nonsense_leaves_the_request_waiting(plain):
    env = plain
    seen, info = env.reset(options=PLAIN)
    for action in (
        '{"token_ids": []}',
        '{"token_ids": ["x"]}',
        '{"token_ids": [1], "logprobs": [0.5], "version": 0}',
    ):
        again, reward, terminated, truncated, told = env.step(action)
        assert (again, reward, terminated, truncated) == (seen, 0.0, False, False)
        assert (told["status"], told["call_id"]) == ("misread", info["call_id"])
        assert told["detail"]
    ids = list(info["prompt_token_ids"][-8:])
    assert env.step(json.dumps({"token_ids": ids, "logprobs": [-0.5] * 8, "version": 0}))[2]


@pytest.mark.bubblewrap
def test_limits_of_steps_and_of_time_truncate_without_a_reward_and_end_the_harness(program):
    env = make(harness_settings={"argv": ["python", str(program)]}, max_steps=2, wall_s=10.0)
    text = """
        import json, os, time, urllib.request
        headers = {"authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "content-type": "application/json"}
        body = json.dumps({"model": "policy", "messages": [{"role": "user", "content": "hi"}]}).encode()
        url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
        for _ in range(CALLS):
            urllib.request.urlopen(urllib.request.Request(url, body, headers)).read()
        time.sleep(1000)
        """
    program.write_text(textwrap.dedent(text).replace("CALLS", "3"))
    env.reset(options=PLAIN)
    assert env.step(CALL)[1:4] == (0.0, False, False)
    seen, reward, terminated, truncated, info = env.step(CALL)
    assert (reward, terminated, truncated, info["reason"], info["verdict"]) == (
        0.0,
        False,
        True,
        "step_limit",
        "none",
    )
    assert json.loads(seen)["messages"]
    program.write_text(textwrap.dedent(text).replace("CALLS", "1"))
    env.reset(options=PLAIN)
    _, reward, terminated, truncated, info = env.step("hello")
    assert (reward, terminated, truncated, info["reason"], info["verdict"]) == (
        0.0,
        False,
        True,
        "wall_clock",
        "none",
    )
    env.reset(options=PLAIN)
    env.close()


@pytest.mark.bubblewrap
def test_a_harness_that_never_asks_is_no_reward(program, programmed):
    program.write_text("print('bye')")
    env = programmed
    seen, _ = env.reset(options=PLAIN)
    assert seen == "{}"
    _, reward, terminated, truncated, info = env.step("anybody?")
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert (info["reason"], info["cause"], info["verdict"]) == ("infrastructure", "no_calls", "none")
    assert "bye" in info["detail"]
    env.reset(options=PLAIN)


def end_proxy(env):
    child = env.unwrapped._desk.proxy._children.by_name["proxy"]
    child.process.kill()
    child.process.wait()


@pytest.mark.bubblewrap
def test_a_proxy_that_dies_truncates_is_there_again_for_the_next_episode_and_hinders_no_close():
    env = make()
    env.reset(options=PLAIN)
    end_proxy(env)  # while the agent thinks
    seen, _ = env.reset(options=PLAIN)
    assert json.loads(seen)["messages"]
    end_proxy(env)
    _, reward, terminated, truncated, info = env.step("hello")
    assert (reward, terminated, truncated, info["reason"]) == (0.0, False, True, "infrastructure")
    assert info["cause"] == "proxy_error"
    env.reset(options=PLAIN)
    env.step(WRITE)
    assert env.step("Done.")[1:3] == (1.0, True)
    env.reset(options=PLAIN)
    end_proxy(env)
    env.close()


@pytest.mark.bubblewrap
def test_gymnasiums_checker_finds_nothing(plain):
    check_env(plain.unwrapped)


@pytest.mark.bubblewrap
def test_two_at_a_time_and_a_scripted_agent(plain):
    options = {"autoreset_mode": AutoresetMode.SAME_STEP}
    envs = gymnasium.make_vec(ID, num_envs=2, vectorization_mode="async", vector_kwargs=options, tasks=FEW)
    envs.reset(seed=0)
    envs.step((WRITE, CALL))
    observations, rewards, terminated, _, infos = envs.step(("Done.", "Done."))
    assert (list(rewards), list(terminated)) == ([1.0, 0.0], [True, True])
    assert list(infos["final_info"]["verdict"]) == ["valid", "valid"]
    assert all(json.loads(each)["messages"] for each in observations)
    envs.close()
    played = play(plain, GoldAgent(FEW, harness=True), 4)
    assert (played.rewards, played.stopped) == ([1.0, 1.0], {})


@pytest.mark.bubblewrap
def test_nothing_is_left_behind():
    found = left_behind("harnessgym/Harness-v0", "gold", 8, tasks=FEW)
    assert found.after == found.before
    assert found.before["processes"] == 0


def test_what_is_not_known_is_refused_with_what_is():
    with pytest.raises(ConfigError, match="ansi"):
        HarnessEnv(render_mode="human")
    with pytest.raises(ConfigError, match="at least one step"):
        HarnessEnv(max_steps=0)
    with pytest.raises(ConfigError, match="few/plain"):
        HarnessEnv(tasks=FEW).reset(options={"task_id": "few/plane"})
    with pytest.raises(ConfigError, match="task_id"):
        HarnessEnv(tasks=FEW).reset(options={"id": "few/plain"})


MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.just("user"), "content": st.text(max_size=400)}), max_size=6
)


@settings(max_examples=40)
@given(MESSAGES, st.integers(150, 2_000))
def test_a_request_of_any_size_is_json_that_fits(messages, most):
    call = {"model": "policy", "messages": messages, "tools": [{"name": "t" * 300}], "tool_choice": "auto"}
    text = shown(call, most)
    assert len(text) <= most
    assert text.isascii()
    found = json.loads(text)
    assert len(found["messages"]) <= len(messages)
    if len(json.dumps(call)) <= most:
        assert found == call


@pytest.mark.bubblewrap
def test_what_an_environment_hides_is_not_in_its_sandboxes():
    look = {"name": "shell", "arguments": {"command": "echo there are $(ls /usr/share | wc -l) entries"}}
    with closing(make(hidden=["/usr/share"])) as env:
        env.reset(seed=1, options=PLAIN)
        seen, *_ = env.step(json.dumps({"tool_calls": [look]}))
    assert "there are 0 entries" in json.loads(seen)["messages"][2]["content"]

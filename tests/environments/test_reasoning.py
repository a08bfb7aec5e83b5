"""Reasoning: the same items everywhere, judged by their family's own score, whose trouble is nobody's
reward.
"""

import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec

import pytest

from environments.code.reasoning import DIGESTS, ReasoningTasks, digest_of, generated, grade
from harnessgym.errors import TaskError
from harnessgym.grading.grade import judge
from harnessgym.sandbox import Equipment
from harnessgym.sandboxes.bubblewrap import Bubblewrap, BubblewrapSettings
from harnessgym.tasks.source import problems_of, task_set

pytestmark = pytest.mark.skipif(find_spec("reasoning_gym") is None, reason="needs the extra [reasoning]")


@pytest.fixture(scope="module")
def all_tasks():
    """The items by id. Made here, and not where this file is collected."""
    return {task.id: task for split in ("train", "test") for task in ReasoningTasks().tasks(split)}


def graded(task, tmp_path, answer):
    if answer is not None:
        (tmp_path / "answer.txt").write_bytes(answer if isinstance(answer, bytes) else answer.encode())
    return dict(grade(task, tmp_path).rewards)


def test_320_items_of_16_families_a_fifth_of_them_for_testing(all_tasks):
    tasks = task_set("reasoning")
    assert problems_of(tasks) == ()
    assert [len(tasks.tasks(split)) for split in ("train", "test")] == [256, 64]
    assert len(all_tasks) == len({task.instruction for task in all_tasks.values()}) == 320
    assert {task.metadata["family"] for task in all_tasks.values()} == set(DIGESTS)
    (one,) = [task for task in all_tasks.values() if task.id == "reasoning/lcm-3"]
    assert "Least Common Multiple (LCM) of these numbers: 38, 62" in one.instruction
    assert one.solution.files == {"answer.txt": "1178\n"}


def test_another_process_with_another_hash_seed_makes_the_same(tmp_path):
    program = (
        "from environments.code.reasoning import ReasoningTasks\n"
        "import sys\n"
        "print(len(ReasoningTasks().tasks('train')), ReasoningTasks().problems, 'reasoning_gym' in "
        "sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "256 () False\n"
    assert {family: digest_of(items) for family, items in generated(["lcm", "maze"]).items()} == {
        family: DIGESTS[family] for family in ("lcm", "maze")
    }


def test_what_judges_is_not_among_what_the_agent_sees(all_tasks):
    for task in all_tasks.values():
        assert task.files == {}
        assert task.instruction.startswith(task.metadata["question"].strip())
        assert str(task.metadata["seed"]) not in task.instruction


def test_every_gold_scores_1_and_nothing_0(all_tasks, tmp_path):
    for task in all_tasks.values():
        assert graded(task, tmp_path, task.solution.files["answer.txt"])["reward"] == 1.0
    (tmp_path / "answer.txt").unlink()
    for task in all_tasks.values():
        assert graded(task, tmp_path, None)["reward"] == 0.0


@pytest.mark.parametrize(
    ("name", "change", "reward"),
    [
        ("chain_sum-3", lambda answer: f"{int(answer)}.0", 1.0),
        ("knights_knaves-3", lambda answer: "Amelia is a laggard, and Samuel is a laggard.", 1.0),
        ("tower_of_hanoi-3", lambda answer: answer.rsplit("\n", 1)[0], 0.0),
        ("lcm-3", lambda answer: "[" * 10_000, 0.0),
        ("simple_equations-3", lambda answer: "__import__('os').abort()", 0.0),
    ],
)
def test_the_familys_own_score_decides(all_tasks, tmp_path, name, change, reward):
    task = all_tasks[f"reasoning/{name}"]
    found = graded(task, tmp_path, change(task.metadata["answer"]))
    assert found["reward"] == reward
    assert 0 <= found["score"] <= 1


def test_part_of_the_marks_is_no_reward(all_tasks, tmp_path):
    task = all_tasks["reasoning/lcm-3"]
    found = graded(task, tmp_path, f"{task.metadata['answer']} or so")
    assert 0 < found["score"] < 1
    assert found["reward"] == 0


@pytest.mark.parametrize("data", [b"", b" \n\n", b"\xff\xfe1178", b"1178" + b" " * (32 << 10)])
def test_what_is_no_answer_scores_0(all_tasks, tmp_path, data):
    assert graded(all_tasks["reasoning/lcm-3"], tmp_path, data) == {"reward": 0.0, "score": 0.0}


def test_a_link_is_no_answer(all_tasks, tmp_path):
    (tmp_path / "elsewhere").write_text("1178")
    (tmp_path / "answer.txt").symlink_to("elsewhere")
    assert graded(all_tasks["reasoning/lcm-3"], tmp_path, None)["reward"] == 0.0


def test_a_score_that_raises_or_asks_something_else_is_an_error_and_no_reward(all_tasks, tmp_path):
    """`prime_factorization` raises for words, which is why it is not among the families."""
    task = all_tasks["reasoning/lcm-3"]
    item = generated(["prime_factorization"])["prime_factorization"][0]
    raising = {**task.metadata, "family": "prime_factorization", "question": item["question"]}
    with pytest.raises(TaskError, match="gives another question"):
        graded(replace(task, metadata=raising), tmp_path, "two times three")
    with pytest.raises(TaskError, match=r"cannot score the answer: ValueError: invalid literal"):
        graded(replace(task, metadata=raising | {"seed": item["seed"]}), tmp_path, "two times three")


@pytest.mark.bubblewrap
@pytest.mark.anyio
async def test_through_a_sandbox(all_tasks, tmp_path, anyio_backend):
    task = all_tasks["reasoning/maze-0"]
    async with Bubblewrap(BubblewrapSettings(workspace_root=tmp_path / "w")) as backend:
        for text, reward in ((task.solution.files["answer.txt"], 1.0), ("1000", 0.0), (None, 0.0)):
            async with backend.open(task.limits) as sandbox:
                if text is not None:
                    await sandbox.write("answer.txt", text.encode())
                found = await judge(task, sandbox, lambda: backend.open(task.limits, Equipment(proxy=False)))
            assert (found.rewards["reward"], found.tampered) == (reward, None)

"""Harbor folders: which are recognised, what becomes of each part, and that one malformed task leaves the
rest.
"""

import re
import shutil
from pathlib import Path

import pytest

from harnessgym.grading.verifiers.harbor import KEY
from harnessgym.task import Hook
from harnessgym.task_setup.steps import step_task
from harnessgym.tasks.harbor import Harbor, HarborShared
from harnessgym.tasks.payload import payload_of, task_of
from harnessgym.tasks.source import recognised, task_format, task_set

SAMPLES = Path(__file__).parent / "samples" / "harbor"
SHIPPED = Path(__file__).parents[3] / "environments" / "shell_tasks" / "tasks"


@pytest.fixture(scope="module")
def samples():
    return {task.id.partition("/")[2]: task for task in Harbor().read(SAMPLES).tasks}


@pytest.fixture
def folder(tmp_path):
    """Writes a task folder that is right, but for what is given."""

    def write(toml="", name="one", files=None, root=tmp_path / "set"):
        given = {
            "task.toml": toml,
            "instruction.md": "Do it.",
            "environment/Dockerfile": "FROM x\nWORKDIR /app\n",
            "tests/test.sh": "#!/bin/sh\n",
            **(files or {}),
        }
        for path, text in given.items():
            if text is None:
                continue
            (root / name / path).parent.mkdir(parents=True, exist_ok=True)
            (root / name / path).write_text(text)
        return root / name

    return write


def only(folder):
    loaded = Harbor().read(folder)
    assert loaded.problems == ()
    (task,) = loaded.tasks
    return task


def test_the_samples_are_recognised_and_all_read():
    loaded = recognised(SAMPLES).read(SAMPLES)
    assert loaded.problems == ()
    assert [task.id for task in loaded.tasks] == [f"harbor/{path.name}" for path in sorted(SAMPLES.iterdir())]
    assert isinstance(recognised(SAMPLES / "two-steps"), Harbor)
    assert [task.id for task in task_set(str(SAMPLES / "two-steps")).tasks("train")] == ["two-steps"]


def test_native_tasks_are_not_taken_for_harbors(folder):
    assert not Harbor().recognises(SHIPPED)
    assert not any(Harbor().recognises(each) for each in SHIPPED.iterdir() if each.is_dir())
    native = folder(
        toml='[[tests]]\nkind = "command"\nscript = "test.sh"\n', files={"environment/Dockerfile": None}
    )
    assert not Harbor().recognises(native)
    assert type(recognised(native)).__name__ == "Native"


@pytest.mark.parametrize("toml", ['version = "1.0"', 'schema_version = "1.4"', "[environment]"])
def test_a_table_of_harbors_is_enough(tmp_path, toml):
    (tmp_path / "task.toml").write_text(toml)
    assert Harbor().recognises(tmp_path)


def test_nothing_else_is_recognised(tmp_path):
    assert not Harbor().recognises(tmp_path / "absent")
    assert not Harbor().recognises(tmp_path)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "instruction.md").write_text("x")
    assert not Harbor().recognises(tmp_path)
    assert not HarborShared().recognises(SAMPLES)


def test_a_task_of_one_step(samples):
    task = samples["count-words"]
    assert task.image == f"context:{SAMPLES / 'count-words' / 'environment'}"
    assert (task.home, task.artifacts, task.collect) == ("/app", (".",), ("/logs/artifacts",))
    assert task.folders == ("/logs", "/solution", "/tests")
    assert (task.limits.wall_s, task.limits.memory_mb, task.limits.disk_mb, task.limits.cpus) == (
        300.0,
        512,
        1024,
        1.0,
    )
    assert task.env == {"LC_ALL": "C.UTF-8"}
    assert task.setup.run[1][-1] == "test -s /app/poem.txt"
    assert task.verifier == "separate"
    assert task.grading.install == ()
    spec = task.metadata[KEY]
    assert (spec["timeout_s"], spec["env"], spec["root"]) == (60.0, {"LC_ALL": "C.UTF-8", "WORDS": "7"}, True)
    assert set(task.metadata["test_files"]) == {"test.sh"}
    assert set(task.solution.files) == {".harnessgym-solution/solve.sh", ".harnessgym-solution/count.py"}
    assert task.metadata["toml"]["metadata"] == {"difficulty": "easy", "created": "2026-01-31"}
    assert task.solution.run[0][-1] == "ANSWER=answer.txt"
    assert "tests" not in str(task.files)


def test_tasks_survive_being_stored(samples):
    for task in samples.values():
        assert task_of(payload_of(task)) == task


def test_what_the_script_fetches_is_put_into_the_image_for_grading(samples):
    assert samples["uvx-pytest"].grading.install[0][-2:] == ("pytest==8.4.1", "pytest-json-ctrf==0.3.5")
    assert samples["uvx-pytest"].grading.image is None


def test_a_verifier_of_its_own_gets_artifacts_alone_and_an_image_that_has_the_tests(samples):
    task = samples["separate-verifier"]
    assert task.artifacts == ("out",)
    assert task.grading.image == f"context:{SAMPLES / 'separate-verifier' / 'tests'}"
    assert "/tests" not in task.folders
    assert task.metadata[KEY]["laid"] is False
    assert "test_files" not in task.metadata
    assert task.hooks == (Hook(("sh", "-c", "ls -a > /logs/artifacts/listing.txt"), timeout_s=20.0),)


def test_what_a_step_collects_is_run_for_that_step_alone(tmp_path):
    folder = tmp_path / "two-steps"
    shutil.copytree(SAMPLES / "two-steps", folder)
    (folder / "task.toml").write_text(
        '[[verifier.collect]]\ncommand = "all"\n[[steps]]\nname = '
        '"first"\n[[steps.verifier.collect]]\ncommand = "one"\n'
        '[[steps]]\nname = "second"\n[[steps.verifier.collect]]\ncommand = "all"\n'
    )
    (task,) = Harbor().read(folder).tasks
    assert [hook.argv[-1] for hook in task.hooks] == ["all"]
    run = [[hook.argv[-1] for hook in step_task(task, step).hooks] for step in task.steps]
    assert run == [["all", "one"], ["all"]]


def test_steps_have_their_own_tests_over_the_tasks(samples):
    task = samples["two-steps"]
    first, second = task.steps
    assert (task.instruction, task.step_reward) == ("", "final")
    assert [step.name for step in task.steps] == ["first", "second"]
    assert (first.min_reward, second.min_reward) == ({"reward": 1.0}, {"reward": 0.5, "kept": 1.0})
    assert (first.wall_s, second.wall_s) == (120.0, 60.0)
    assert set(first.metadata["test_files"]) == {"test.sh", "same.sh"}
    assert "sum.txt" in first.metadata["test_files"]["test.sh"]
    assert (first.metadata[KEY]["timeout_s"], second.metadata[KEY]["timeout_s"]) == (60.0, 30.0)
    assert second.metadata[KEY]["env"] == {"STEP": "second"}
    assert first.files == {"numbers.txt": "4\n5\n"}
    assert [len(step.setup.run) for step in task.steps] == [0, 2]
    assert all(step.solution is not None for step in task.steps)
    assert "9" not in first.instruction + str(first.setup)


def test_a_compose_file_of_one_service(samples):
    task = samples["composed"]
    assert task.image == f"context:{SAMPLES / 'composed' / 'environment'}"
    assert task.env == {"GREETING": "good ${MORNING}", "TEST_DIR": "/tests"}
    notes = Harbor().read(SAMPLES / "composed").notes
    assert any("`cap_add`" in note for note in notes)


def test_what_has_no_effect_is_said_once_for_all_tasks_that_say_it():
    notes = Harbor().read(SAMPLES).notes
    network = [note for note in notes if "whole network" in note]
    assert len(network) == 1
    assert network[0].startswith("composed, count-words, two-steps and 1 more: ")
    assert any("fresh container" in note for note in notes)


def test_shared_grading_only_by_name_and_never_against_the_task():
    shared = {task.id.partition("/")[2]: task for task in task_format("harbor_shared").read(SAMPLES).tasks}
    assert shared["count-words"].verifier == "shared"
    assert shared["separate-verifier"].verifier == "separate"
    assert [task.verifier for task in task_set(f"harbor_shared@{SAMPLES}").tasks("train")].count(
        "shared"
    ) == 4


def test_what_needs_more_than_a_sandbox_is_left_out_and_named():
    loaded = Harbor().read(SAMPLES.with_name("harbor_left_out"))
    assert loaded.tasks == ()
    graphics, services, windows = loaded.problems
    assert "environment.gpus" in graphics
    assert "database" in services
    assert "Windows" in windows


def test_one_malformed_task_leaves_the_rest(folder, tmp_path):
    folder(name="good")
    folder('[environment]\nmemory = "lots"\n', name="bad")
    folder(name="worse", toml="= 1")
    folder(name="unset", toml='[environment]\nenv = { K = "${HARNESSGYM_NEVER_SET}" }\n')
    loaded = Harbor().read(tmp_path / "set")
    assert [task.id for task in loaded.tasks] == ["set/good"]
    size, variable, syntax = loaded.problems
    assert "bad/task.toml" in size
    assert "environment" in size
    assert "no size" in size
    assert "environment.env.K" in variable
    assert "HARNESSGYM_NEVER_SET" in variable
    assert "worse/task.toml" in syntax


@pytest.mark.parametrize(
    ("toml", "files", "named"),
    [
        ("", {"instruction.md": None}, r"instruction\.md"),
        ("", {"instruction.md": " \n"}, "empty"),
        ("", {"tests/test.sh": None}, r"test\.sh"),
        ("", {"environment/Dockerfile": None}, "docker_image"),
        ('[[steps]]\nname = "one"\n', {}, "steps/one"),
        ('[[verifier.collect]]\ncommand = "x"\nservice = "db"\n', {}, r"verifier\.collect"),
        ('artifacts = [{ source = "/x", service = "db" }]\n', {}, "db"),
        ('artifacts = ["/etc/passwd"]\n', {}, "/etc/passwd"),
        ("[environment]\ntpu = { type = 'v' }\n", {}, "tpu"),
        ("", {"environment/Dockerfile": "FROM x\n", "tests/Dockerfile": "FROM y\n"}, r"environment\.workdir"),
        ("", {"tests/test.sh": None, "tests/test.bat": "x"}, "Windows"),
    ],
)
def test_mistakes_are_named_with_file_and_key(folder, toml, files, named):
    loaded = Harbor().read(folder(toml=toml or 'version = "1"\n', files=files))
    assert loaded.tasks == ()
    assert re.search(named, loaded.problems[0]), loaded.problems[0]


def test_unknown_keys_are_kept_and_told(folder):
    where = folder("[agent]\nmood = 'x'\n")
    loaded = Harbor().read(where)
    assert any("agent.mood" in note for note in loaded.notes)
    assert loaded.tasks[0].metadata["toml"]["unknown"] == {"agent.mood": "x"}


@pytest.mark.parametrize(
    ("dockerfile", "home"),
    [
        ("FROM x\nWORKDIR /a\nWORKDIR b\n", "/a/b"),
        ("FROM x\n", "@workdir"),
        ("FROM x\nWORKDIR /\n", ""),
        ("FROM x AS y\nWORKDIR /a\nFROM z\n", "@workdir"),
        ("FROM x\nWORKDIR $WHERE\n", "@workdir"),
        ("FROM x\nworkdir '/a'\n", "/a"),
    ],
)
def test_the_working_folder_is_the_images(folder, dockerfile, home):
    assert only(folder(files={"environment/Dockerfile": dockerfile})).home == home


def test_what_the_task_says_comes_before_what_the_image_says(folder):
    task = only(folder('[environment]\ndocker_image = "some/image:1"\nworkdir = "/w"\n'))
    assert (task.image, task.home) == ("some/image:1", "/w")


def test_artifacts_outside_the_working_folder_get_a_folder(folder):
    task = only(
        folder(
            'artifacts = ["/output/a.txt", "/logs/agent/x", "b"]\n[verifier]\nenvironment_mode = "separate"\n'
        )
    )
    assert task.collect == ("/logs/artifacts", "/output/a.txt", "/logs/agent/x")
    assert "/output" in task.folders
    assert task.artifacts == ("b",)


def test_the_user_of_tests_is_root_unless_the_task_says_another(folder):
    assert only(folder()).metadata[KEY]["root"]
    shutil.rmtree(folder())
    assert not only(folder('[verifier]\nuser = "agent"\n')).metadata[KEY]["root"]

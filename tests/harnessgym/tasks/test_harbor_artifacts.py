"""Which paths of an agent's container are graded, and which folders they need."""

from pathlib import Path

import pytest

from harnessgym.errors import TaskError
from harnessgym.tasks.harbor_place import WORKDIR, HarborContainer, graded
from harnessgym.tasks.harbor_table import Artifact
from harnessgym.tasks.notes import Notes

WHERE = Path("set/one/task.toml")


def sorted_paths(*sources, home="/app", has_tests=False, all_of=False, notes=None):
    container = HarborContainer("image", home, {}, has_tests)
    artifacts = [
        source if isinstance(source, Artifact) else Artifact(source=source, destination="kept")
        for source in sources
    ]
    return graded(artifacts, container, WHERE, Notes() if notes is None else notes, all_of=all_of)


def test_without_artifacts_the_whole_working_folder_is_graded():
    paths = sorted_paths()
    assert paths.artifacts == (".",)
    assert paths.collect == ("/logs/artifacts",)
    assert paths.folders == ("/logs", "/solution", "/tests")


def test_an_image_with_tests_keeps_its_tests_folder():
    assert sorted_paths(has_tests=True).folders == ("/logs", "/solution")


def test_relative_artifacts_are_below_the_working_folder():
    assert sorted_paths("out.txt", "data/b.csv").artifacts == ("out.txt", "data/b.csv")


def test_an_absolute_artifact_below_home_becomes_relative():
    paths = sorted_paths("/app/data/x.txt")
    assert paths.artifacts == ("data/x.txt",)
    assert paths.collect == ("/logs/artifacts",)


def test_an_artifact_given_twice_is_graded_once():
    paths = sorted_paths("out.txt", "/app/out.txt", "/output/a", "/output/a")
    assert paths.artifacts == ("out.txt",)
    assert paths.collect == ("/logs/artifacts", "/output/a")


def test_artifacts_outside_of_home_only_leave_the_whole_folder():
    assert sorted_paths("/output/a.txt").artifacts == (".",)


def test_all_of_the_folder_is_graded_where_tests_see_it_anyway():
    assert sorted_paths("out.txt", all_of=True).artifacts == (".",)


def test_a_path_below_a_writable_folder_is_collected_without_another_folder():
    paths = sorted_paths("/logs/agent/trace.json")
    assert paths.collect == ("/logs/artifacts", "/logs/agent/trace.json")
    assert paths.folders == ("/logs", "/solution", "/tests")


def test_a_second_path_shares_the_folder_of_the_first():
    paths = sorted_paths("/data/out/a.txt", "/data/out/b.txt")
    assert paths.folders == ("/logs", "/solution", "/tests", "/data/out")
    assert paths.collect == ("/logs/artifacts", "/data/out/a.txt", "/data/out/b.txt")


def test_a_path_without_a_suffix_is_a_folder_itself():
    assert sorted_paths("/data/results").folders[-1] == "/data/results"


@pytest.mark.parametrize(
    "path", ["/etc/app.conf", "/root/x", "/tmp/out/a.txt", "/usr/share/a", "/a.txt", "/"]
)
def test_a_path_of_the_system_is_refused(path):
    with pytest.raises(TaskError) as error:
        sorted_paths(path)
    assert str(error.value).startswith(f"{WHERE}: artifacts: {path} lies where nothing is handed over from.")


def test_a_folder_that_only_begins_like_a_folder_of_the_system_is_allowed():
    assert sorted_paths("/etcetera/a.txt").folders[-1] == "/etcetera"


def test_an_artifact_of_another_service_is_refused():
    with pytest.raises(TaskError, match="there is no service 'db' here, only main"):
        sorted_paths(Artifact(source="/data/x", service="db"))


def test_exclude_is_noted_once():
    notes = Notes()
    sorted_paths(Artifact(source="a", exclude=("*.o",)), Artifact(source="b", exclude=("*.a",)), notes=notes)
    assert notes.said == ["`exclude` of artifacts has no effect: all of the artifact is kept"]


def test_an_unknown_home_grades_the_whole_folder_and_says_so():
    notes = Notes()
    paths = sorted_paths("out.txt", "/app/data/x.txt", home=WORKDIR, notes=notes)
    assert paths.artifacts == (".",)
    assert paths.collect == ("/logs/artifacts",)
    (note,) = notes.said
    assert "tests see all of the agent's working folder" in note


def test_an_unknown_home_is_not_noted_where_tests_see_everything_anyway():
    notes = Notes()
    sorted_paths("out.txt", home=WORKDIR, all_of=True, notes=notes)
    sorted_paths(home=WORKDIR, notes=notes)
    assert notes.said == []


def test_without_a_home_absolute_paths_get_folders_of_their_own():
    paths = sorted_paths("/app/x.txt", home="")
    assert paths.artifacts == (".",)
    assert paths.folders[-1] == "/app"

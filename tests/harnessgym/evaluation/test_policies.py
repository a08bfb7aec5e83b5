"""What the names of policies stand for, with a real run folder and store."""

import shutil

import pytest
from safetensors.torch import load_file
from typer.testing import CliRunner

from harnessgym.cli.weights import app
from harnessgym.errors import ConfigError, PolicyError
from harnessgym.evaluation.policies import as_in_run, find_policy
from harnessgym.run_folder import write_json
from harnessgym.store import policies
from tests.harnessgym.evaluation.published import POLICY, published
from trainers.weights.manifest import FULL, version_path
from trainers.weights.publish import publish_full


@pytest.fixture
def run(tmp_path):
    with published(tmp_path / "run") as made:
        yield made


def test_a_run_stands_for_its_newest_version_and_says_which(run):
    found = find_policy(str(run.folder.root))
    assert (found.kind, found.version, found.where) == ("version", 2, str(run.folder.root))
    assert found.title == f"{run.folder.root}@2"
    assert found.slug == "run@2"


def test_a_run_whose_database_holds_another_run_is_refused(run):
    identity = {
        "id": "gone",
        "name": "run",
        "created_at": 1.0,
        "folder": str(run.folder.root),
        "in_store": True,
    }
    write_json(run.folder.identity_path, identity)
    with pytest.raises(ConfigError, match=r"is the folder of run gone .* no longer holds: it holds run "):
        find_policy(str(run.folder.root))


def test_a_version_is_named_behind_an_at(run):
    found = find_policy(f"{run.folder.root}@1")
    assert (found.version, found.title) == (1, f"{run.folder.root}@1")


def test_a_version_off_the_surviving_chain_is_not_the_newest(run):
    run.store.write(lambda conn: policies.orphan_after(conn, run.policy_id, 1))
    assert find_policy(str(run.folder.root)).version == 1


def test_a_version_that_there_is_not_is_told_with_those_that_there_are(run):
    with pytest.raises(PolicyError, match=r"no version 9 of .*: the run has none\. It has: 0, 1, 2\."):
        find_policy(f"{run.folder.root}@9")
    run.remove(1)
    with pytest.raises(PolicyError, match=r"no longer keeps it \(trainer.publish.keep\)\. It has: 0, 2\."):
        find_policy(f"{run.folder.root}@1")


def test_the_first_version_is_what_the_run_started_from_once_it_is_no_longer_kept(run):
    run.remove(0)
    found = find_policy(f"{run.folder.root}@0")
    assert (found.kind, found.where, found.version) == ("model", str(POLICY), 0)
    assert found.slug == "run@0"


def test_rounded_weights_are_not_what_the_run_started_from(tmp_path):
    with published(tmp_path / "run", 1, trainer={"publish": {"dtype": "bfloat16"}}) as run:
        run.remove(0)
        with pytest.raises(PolicyError, match="no version 0"):
            find_policy(f"{run.folder.root}@0")


def test_a_run_without_a_version_says_so(tmp_path):
    with (
        published(tmp_path / "run", 0) as run,
        pytest.raises(PolicyError, match="has published no version yet"),
    ):
        find_policy(str(run.folder.root))


def test_several_policies_are_one_too_many(tmp_path):
    with published(tmp_path / "run", 1, policies=[{"name": "q", "path": str(POLICY)}]) as run:
        with pytest.raises(ConfigError, match=r"several policies \(p, q\).*weights export"):
            find_policy(str(run.folder.root))
        assert find_policy(str(run.folder.root), "p").version == 0


def test_a_model_folder_and_an_address_stand_for_themselves():
    assert find_policy(str(POLICY)).where == str(POLICY)
    for address in (
        "http://127.0.0.1:8000",
        "https://host/v1",
        "sglang:http://a:1",
        "litellm:a/b",
        "scripted",
        "scripted:x",
    ):
        found = find_policy(address)
        assert (found.kind, found.where, found.title) == ("upstream", address, address)
        assert "/" not in found.slug


def test_what_is_neither_is_refused_in_words(tmp_path):
    with pytest.raises(ConfigError, match=r"There is no folder .*RUN@VERSION.*http://HOST:PORT"):
        find_policy(str(tmp_path / "nothing"))
    with pytest.raises(
        ConfigError, match=r"neither a model folder \(config.json is missing\) nor a run folder"
    ):
        find_policy(str(tmp_path))
    with pytest.raises(ConfigError, match="not a run folder with a published version"):
        find_policy(f"{POLICY}@3")


def test_a_chain_of_deltas_is_exported_as_one_model_folder(run, tmp_path):
    out = tmp_path / "out" / "model"
    done = CliRunner().invoke(app, ["export", f"{run.folder.root}@2", str(out)])
    assert done.exit_code == 0, done.output
    assert "version 2" in done.output
    written = load_file(out / "model.safetensors")
    assert written.keys() == run.weights.keys()
    assert all((written[name] == tensor).all() for name, tensor in run.weights.items())
    assert {path.name for path in out.iterdir()} == {path.name for path in POLICY.iterdir()}
    assert (out / "tokenizer.json").read_bytes() == (POLICY / "tokenizer.json").read_bytes()
    assert [path.name for path in out.parent.iterdir()] == ["model"]


def test_an_export_overwrites_nothing(run, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    done = CliRunner().invoke(app, ["export", str(run.folder.root), str(tmp_path / "out")])
    assert isinstance(done.exception, PolicyError)
    assert "exists already" in str(done.exception)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine"]


def test_a_damaged_version_is_not_exported(run, tmp_path):
    file = run.folder.versions / "v00000002" / "delta.bin"
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.write_bytes(raw)
    done = CliRunner().invoke(app, ["export", str(run.folder.root), str(tmp_path / "out")])
    assert isinstance(done.exception, PolicyError)
    assert not (tmp_path / "out").exists()


def test_a_run_file_gives_its_tasks_its_first_harness_and_its_sampling(run):
    said = []
    config = run.folder.config().model_copy(update={"seed": 7})
    given = as_in_run(config, None, said.append)
    assert (given["tasks"], given["harness"], given["harness_settings"]) == (
        "lookup",
        "command",
        {"argv": ["one"]},
    )
    assert (given["temperature"], given["max_length"], given["limit"], given["seed"]) == (1.0, 1024, 200, 7)
    assert given["session"] == config.session
    assert any("--harness takes another: two" in line for line in said)
    assert as_in_run(config, "two", said.append)["harness_settings"] == {"argv": ["two"]}
    with pytest.raises(ConfigError, match=r"no harness 'tow'. Did you mean 'two'"):
        as_in_run(config, "tow", said.append)


def test_the_files_of_another_run_are_not_exported_however_consistent_they_are(run, tmp_path):
    with published(tmp_path / "other", 5) as other:
        swapped = version_path(run.folder.versions, 0)
        shutil.rmtree(swapped)
        full = publish_full(tmp_path / "made", 0, None, other.weights, 0, "r")
        shutil.copytree(full.path, swapped)
    done = CliRunner().invoke(app, ["export", f"{run.folder.root}@0", str(tmp_path / "out")])
    assert isinstance(done.exception, PolicyError)
    assert "is not what this run published" in str(done.exception)
    assert not (tmp_path / "out").exists()


def test_one_swapped_file_of_a_version_is_not_exported(run, tmp_path):
    with published(tmp_path / "other", 4) as other:
        made = publish_full(tmp_path / "made", 0, None, other.weights, 0, "r")
        shutil.copy(made.path / FULL, version_path(run.folder.versions, 0) / FULL)
    done = CliRunner().invoke(app, ["export", f"{run.folder.root}@0", str(tmp_path / "out")])
    assert isinstance(done.exception, PolicyError)
    assert "that was published" in str(done.exception)


def test_a_version_that_the_run_never_published_is_not_exported(run, tmp_path):
    made = publish_full(run.folder.versions, 9, None, run.weights, 9, "r")
    assert made.path.exists()
    done = CliRunner().invoke(app, ["export", f"{run.folder.root}@9", str(tmp_path / "out")])
    assert isinstance(done.exception, PolicyError)
    assert "the run never published it" in str(done.exception)

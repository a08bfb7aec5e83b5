"""A run that cannot fit is refused before it starts, with the setting that would make it fit."""

import dataclasses
from pathlib import Path

import pytest

from harnessgym.config import validate
from harnessgym.errors import ConfigError
from harnessgym.run_config.run import RunConfig
from trainers.policies import capacity
from trainers.policies.capacity import (
    check_capacity,
    disk_need,
    engine_need,
    main_memory_need,
    references_need,
    trainer_need,
)
from trainers.policies.model_folder import facts_of

SHIPPED = Path("environments/lookup/policy")
GIB = 1 << 30


def config_of(engine=None, **trainer):
    raw = {
        "name": "t",
        "policy": {"path": str(SHIPPED)},
        "tasks": {"set": "lookup"},
        "harnesses": [{"name": "h"}],
        "engine": engine or {},
        "trainer": trainer,
    }
    return validate(RunConfig, raw, "test")


def facts(parameters):
    return dataclasses.replace(facts_of(SHIPPED), parameters=parameters)


def test_facts_are_those_of_the_files():
    found = facts_of(SHIPPED)
    size = (SHIPPED / "model.safetensors").stat().st_size
    assert 0 <= size - {"F32": 4, "BF16": 2}[found.dtype] * found.parameters < 10_000
    assert (found.layers, found.cached, found.vocabulary, found.context) == (2, 2 * 2 * 16, 510, 1024)
    assert found.native


def test_whole_weights_take_sixteen_bytes_each_and_adapters_four():
    one = facts(1_000)
    assert trainer_need(config_of(), one).total == 16_000
    assert trainer_need(config_of(lora={"rank": 8}), one).total == 4_000
    assert trainer_need(config_of(algorithm="ppo"), one).total == 32_000
    assert trainer_need(config_of(update={"optimizer": "adamw_8bit"}), one).total == 10_000


def test_a_reference_takes_a_copy_and_a_model_of_its_own_its_weights():
    def parts(**trainer):
        device, main = references_need(config_of(**trainer), facts(1_000))
        return dict(device.parts), dict(main.parts)

    kl, size = {"coefficient": 0.1}, 4 * facts_of(SHIPPED).parameters
    assert parts() == ({}, {})
    assert parts(update={"kl": kl}) == ({}, {"reference": 4_000})
    assert parts(update={"kl": kl}, lora={"rank": 8}) == ({}, {})
    distillation = {"teacher": {"name": "model", "path": str(SHIPPED)}}
    both = {"kl": kl | {"reference": {"name": "engine", "url": "http://x"}}, "distillation": distillation}
    assert parts(update=both) == ({"teacher": size}, {})


def test_engines_hold_weights_and_caches():
    need = engine_need(config_of({"workers": 3, "max_batch": 5, "max_length": 7}), facts(1_000))
    assert need.parts["engines' weights"] == 3 * 4_000
    assert need.parts["engines' caches"] == 3 * 4 * (2 * 2 * 2 * 16) * 7
    other = dataclasses.replace(facts(1_000), native=False)
    assert engine_need(config_of(), other).parts["engines' caches"] == 0


def test_versions_and_checkpoints_are_on_disk():
    config = config_of(publish={"kind": "full", "keep": 3, "dtype": "bfloat16"})
    assert disk_need(config, facts(1_000)).parts == {"versions": 6_000, "checkpoints": 24_000}


def test_a_chain_of_deltas_stands_on_one_full_version():
    config = config_of(publish={"kind": "delta"})
    assert disk_need(config, facts(1_000)).parts["versions"] == 4_000


def test_a_trainer_on_gpus_needs_main_memory_for_copies_or_to_load():
    """A copy of weights and optimizer for the checkpoint; to begin with a whole model in each process."""
    none = {"workers": 0, "outside": [{"kind": "vllm", "url": "http://127.0.0.1:8000"}]}
    for processes, need in ((1, 12_000), (3, 12_000), (8, 32_000)):
        config = config_of(none, device="cuda", processes=processes)
        assert main_memory_need(config, facts(1_000)).total == need
    assert main_memory_need(config_of(none), facts(1_000)).total == 16_000 + 12_000


def test_what_fits_is_accepted(tmp_path):
    check_capacity(config_of(), tmp_path / "runs/new")


@pytest.mark.parametrize("adapters", [False, True])
def test_too_little_memory_names_what_would_help(monkeypatch, tmp_path, adapters):
    monkeypatch.setattr(capacity, "facts_of", lambda _: facts(10**12))
    trainer = {"lora": {"rank": 8}} if adapters else {}
    with pytest.raises(ConfigError, match="main memory") as caught:
        check_capacity(config_of(**trainer), tmp_path)
    assert ("trainer.lora.rank" in str(caught.value)) != adapters
    assert "1000.0 billion weights" in str(caught.value)


def test_too_little_gpu_memory_is_refused_where_a_driver_says_how_much_there_is(monkeypatch, tmp_path):
    monkeypatch.setattr(capacity, "facts_of", lambda _: facts(30_000_000))
    monkeypatch.setattr(capacity, "_gpu_memory", lambda: [GIB // 4, GIB])
    with pytest.raises(ConfigError, match="GPU memory"):
        check_capacity(config_of(device="cuda"), tmp_path)
    check_capacity(config_of(device="cuda", processes=2), tmp_path)
    engines = {"workers": 3, "device": "cuda"}
    with pytest.raises(ConfigError, match=r"engine\.workers: .* GPU memory"):
        check_capacity(config_of(engines), tmp_path)
    check_capacity(config_of(engines | {"workers": 2}), tmp_path)


def test_too_little_disk_is_refused(monkeypatch, tmp_path):
    usage = type("Usage", (), {"total": 2000, "free": 1000})()
    monkeypatch.setattr(capacity.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(ConfigError, match="--folder"):
        check_capacity(config_of(), tmp_path)
    # What the run has written before it was stopped does not count against it.
    (tmp_path / "versions").mkdir()
    (tmp_path / "versions/model.safetensors").write_bytes(bytes(10_000_000))
    check_capacity(config_of(), tmp_path)

import pytest

from harnessgym.errors import ConfigError
from harnessgym.simulation.comparison import arm, names


def changed(before, after):
    """The settings that differ, by their dotted names."""
    old, new = before.model_dump(), after.model_dump()
    return {
        f"{section}.{name}": value
        for section, values in new.items()
        if isinstance(values, dict)
        for name, value in values.items()
        if value != old[section][name]
    }


def test_as_given_changes_nothing(make_config):
    config = make_config(name="mine")
    assert arm(config, "as-given") is config


@pytest.mark.parametrize("name", names())
def test_every_listed_variant_fits_a_small_configuration_and_has_its_name(make_config, name):
    config = make_config()
    assert arm(config, name).name == (config.name if name == "as-given" else name)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("sync", {"trainer.max_staleness": 0, "work.sampling": "batch", "updates.mode": "between"}),
        ("one-step", {"trainer.max_staleness": 1, "work.sampling": "batch", "updates.mode": "between"}),
        ("eta-4", {}),
        ("eta-7", {"trainer.max_staleness": 7}),
        ("over-launch", {"trainer.over_launch": 2.0, "trainer.consumption": "drop"}),
        (
            "recycle",
            {
                "trainer.max_staleness": 64,
                "trainer.over_launch": 2.0,
                "trainer.consumption": "drop",
                "trainer.alone": True,
                "updates.mode": "global",
                "updates.drain_s": 0.0,
            },
        ),
    ],
)
def test_a_variant_changes_its_own_settings_only(make_config, name, expected):
    config = make_config()
    assert changed(config, arm(config, name)) == expected


@pytest.mark.parametrize(("groups", "parts"), [(16, 8), (8, 8), (6, 6), (1, 1)])
def test_periodic_training_takes_eight_parts_or_one_a_group(make_config, groups, parts):
    periodic = arm(make_config(trainer={"groups_per_step": groups}), "periodic")
    assert (periodic.trainer.micro_batches, periodic.trainer.max_staleness) == (parts, 0)


def test_an_unknown_variant_is_refused_with_the_nearest_one(make_config):
    with pytest.raises(ConfigError, match=r"There is no arm 'recicle'\..*recycle"):
        arm(make_config(), "recicle")


@pytest.mark.parametrize("name", ["eta-", "eta--1", "eta-1.5", "Sync", ""])
def test_names_are_exact(make_config, name):
    with pytest.raises(ConfigError, match="There is no arm"):
        arm(make_config(), name)


def test_a_variant_that_contradicts_the_configuration_is_refused(make_config):
    config = make_config(trainer={"reuse": 1})
    with pytest.raises(ConfigError, match="arm sync"):
        arm(config, "sync")

"""The status file of metrics sinks: read, written, and survived when it is damaged."""

import pytest

from harnessgym.metrics.feed import SinkStatus, SinkStatuses, read_statuses


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"a": 1}', '{"a": {"stride": 1}}', "null"])
def test_a_malformed_file_holds_no_status(tmp_path, text):
    path = tmp_path / "sinks.json"
    path.write_text(text)
    assert read_statuses(path) == {}


def test_a_missing_file_holds_no_status(tmp_path):
    assert read_statuses(tmp_path / "sinks.json") == {}
    assert SinkStatuses(tmp_path / "sinks.json").of("wandb") == SinkStatus(-1, 0)


def test_a_status_outlives_its_process(tmp_path):
    path = tmp_path / "sinks.json"
    first = SinkStatuses(path)
    first.note("wandb", SinkStatus(3, 1))
    first.note("trackio", SinkStatus(5))
    first.note("wandb", SinkStatus(4, 1))
    assert read_statuses(path) == {"wandb": SinkStatus(4, 1), "trackio": SinkStatus(5, 0)}
    again = SinkStatuses(path)
    assert again.of("wandb") == SinkStatus(4, 1)
    again.note("tensorboard", SinkStatus(0))
    assert sorted(read_statuses(path)) == ["tensorboard", "trackio", "wandb"]


def test_a_file_that_cannot_be_written_is_no_error(tmp_path):
    statuses = SinkStatuses(tmp_path / "gone" / "sinks.json")
    statuses.note("wandb", SinkStatus(3))
    assert statuses.of("wandb") == SinkStatus(3)

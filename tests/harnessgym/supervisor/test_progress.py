from harnessgym.run_folder import RunFolder
from harnessgym.supervisor.progress import read_metrics


def test_a_step_logged_twice_around_a_crash_counts_once(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(
        '{"step": 1, "reward": 0.1}\n{"step": 2, "reward": 0.2}\n{"step": 2, "reward": 0.3}\n'
    )
    assert [line["reward"] for line in read_metrics(RunFolder(tmp_path))] == [0.1, 0.3]


def test_a_line_cut_off_by_a_crash_is_skipped(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "reward": 0.1}\n{"step": 2, "rew')
    assert len(read_metrics(RunFolder(tmp_path))) == 1


def test_a_run_that_has_not_trained_has_none(tmp_path):
    assert read_metrics(RunFolder(tmp_path)) == []


def test_a_line_that_ran_into_the_next_after_a_full_disk_is_skipped(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "reward": 0.1}\n{"step": 2, "rew{"step": 2, "reward": 0.2}\n')
    assert [line["step"] for line in read_metrics(RunFolder(tmp_path))] == [1]

"""Journals: incomplete and damaged lines."""

from purerl.runs.storage.files import AppendOnlyFile, read_journal, to_line


def test_incomplete_lines_are_dropped_and_damaged_ones_are_none(tmp_path):
    journal = AppendOnlyFile(tmp_path / "a", to_line({"n": 0}))
    journal.add(to_line({"n": 1}))
    journal.flush()
    journal.close()
    whole = (tmp_path / "a").read_bytes()
    (tmp_path / "a").write_bytes(whole + whole[:-1])
    assert read_journal(tmp_path / "a") == [{"n": 0}, {"n": 1}, {"n": 0}]
    (tmp_path / "a").write_bytes(whole.replace(b"1}", b"2}"))
    assert read_journal(tmp_path / "a") == [{"n": 0}, None]

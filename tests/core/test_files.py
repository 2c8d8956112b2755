"""Files are written whole or not at all, and nothing that is no file is replaced by one."""

import os

import pytest

from onepass.core.errors import UserError
from onepass.core.files import write_text, write_whole


def test_folders_are_made_and_nothing_else_is_left(tmp_path):
    write_text(tmp_path / "a" / "b.txt", "text")
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b.txt"]


def test_a_write_that_fails_leaves_what_was_there(tmp_path):
    path = tmp_path / "kept.txt"
    path.write_text("before")

    def fail(file):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(UserError, match="No space left"):
        write_whole(path, fail)
    assert path.read_text() == "before" and list(tmp_path.iterdir()) == [path]


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "file")
    write_text(tmp_path / "link", "text")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "file").read_text() == "text"


def test_a_pipe_is_written_to_and_stays(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_text(pipe, "text")
    assert os.read(reader, 10) == b"text" and pipe.is_fifo()
    os.close(reader)


@pytest.mark.parametrize("name", ["", "/", "n" * 300])
def test_what_cannot_be_a_file(name, tmp_path):
    with pytest.raises(UserError, match="cannot be written"):
        write_text(tmp_path / name if name != "/" else tmp_path.parent.parent, "text")

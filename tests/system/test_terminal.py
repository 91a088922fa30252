"""What the terminal, or its absence, does to a program."""

import io
import subprocess
import sys

import pytest

from ddp_hpc.system.terminal import prepare_streams

PROGRAM = """
import os, sys
from ddp_hpc.system.terminal import prepare_streams

prepare_streams()
with open(sys.argv[1], "w") as file:
    print(sys.stdin.read(), "said", flush=True)
    print("told", file=sys.stderr, flush=True)
    os.write(1, b"also")
    file.write(f"its own in {file.fileno()}")
"""


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_what_is_printed_to_a_closed_descriptor_gets_into_no_file(tmp_path, closed):
    command = ["sh", "-c", f'exec "$0" -c "$1" file {closed}', sys.executable, PROGRAM]

    done = subprocess.run(command, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, check=False)

    assert done.returncode == 0
    words, _, number = (tmp_path / "file").read_text().rpartition(" ")
    assert words == "its own in"
    assert int(number) > 2


def test_a_letter_that_the_terminal_cannot_show_is_escaped(monkeypatch):
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding="latin-1"))

    prepare_streams()
    print("é ≤", flush=True)

    assert shown.getvalue() == b"\xe9 \\u2264\n"

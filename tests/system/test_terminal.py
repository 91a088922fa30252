"""What the terminal, or its absence, does to a program."""

import io
import json
import subprocess
import sys

import pytest

from ddp_hpc.system.terminal import in_json, prepare_streams

PROGRAM = """
import os, sys
from ddp_hpc.system.terminal import in_json, prepare_streams

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


def test_json_has_no_numbers_that_it_does_not_know():
    def refuse(name):
        raise AssertionError(name)

    values = {"a": [float("nan"), (1.5, float("inf"))], "b": {"c": -float("inf")}}

    assert json.loads(in_json(values), parse_constant=refuse) == {"a": [None, [1.5, "inf"]], "b": {"c": "-inf"}}

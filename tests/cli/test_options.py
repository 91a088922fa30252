"""What is given to an option of a verb is what it may be, or told with what is expected."""

import argparse

import pytest

from ddp_hpc.cli.main import VERBS, main
from ddp_hpc.cli.options import command, counts, number, percent, steps, whole

ODD = ["", " ", "abc", "-1", "nan", "inf", "-inf", "1e400", "0x10", "\u0663", "\u00b2", "9" * 4000, "1;2", "5-", "7-3"]


@pytest.mark.parametrize(
    ("read", "good"),
    [
        (whole(), {"1": 1, "64": 64}),
        (number(0), {"0": 0.0, "2e-6": 2e-6}),
        (number(0, inclusive=False), {"0.5": 0.5}),
        (percent, {"100": 100.0, "0.1": 0.1}),
        (steps, {"7": [7, 7], "100-110": [100, 110]}),
        (counts, {"8": [8], "16, 8,8": [8, 16]}),
    ],
)
def test_a_number_is_read_and_what_is_none_is_told_in_short(read, good):
    assert {text: read(text) for text in good} == good
    for text in ODD:
        with pytest.raises(argparse.ArgumentTypeError, match=r"given .*, expected: ") as told:
            read(text)
        assert len(str(told.value)) < 200


def test_bounds_are_bounds():
    for read, text in (
        (whole(), "0"),
        (whole(4), "3"),
        (number(0, inclusive=False), "0"),
        (percent, "0"),
        (percent, "101"),
    ):
        with pytest.raises(argparse.ArgumentTypeError, match="expected: "):
            read(text)


def test_a_command_has_a_partner_for_each_quote():
    assert command("env A='b c' srun") == "env A='b c' srun"
    with pytest.raises(argparse.ArgumentTypeError, match="each quote has its partner"):
        command("srun 'a")


def test_every_number_of_every_verb_has_bounds():
    arguments = [one for verb in VERBS.values() for part in (verb, *verb.parts.values()) for one in part.arguments]
    assert not [name for name, settings in arguments if settings.get("type") in (int, float)]


@pytest.mark.parametrize(
    "words", [["plan", "x" * 5000], ["status", "a", "y" * 5000], ["bench", "gpu", "--device", "z" * 5000]]
)
def test_what_was_pasted_by_mistake_is_told_in_short(words, tmp_path, monkeypatch, capsys):
    for folder in ("config/studies", "workflow"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "workflow" / "Snakefile").touch()
    monkeypatch.chdir(tmp_path)

    with pytest.raises(SystemExit) as ended:
        main(words)

    assert ended.value.code == 2
    assert len(capsys.readouterr().err.encode()) <= 2048

"""config/config.yaml, `config:` of profiles and `--config` are told what is wrong with them as studies are."""

import pytest
import yaml

from ddp_hpc.config import settings
from ddp_hpc.config.errors import StudyError

WRONG_PROFILES = {
    "mistyped key": ("{machin: x}", ["profile.yaml:2: unknown key 'machin' (did you mean 'machine'?)", "allocation"]),
    "list": ("[machine]", [":2: config: given the list [machine]", "expected: a mapping"]),
    "nothing": ("", [":2: config: given null, expected: a mapping"]),
    "null": ("{machine: null}", [":2: config.machine: given null, expected: a string"]),
    "no number": ("\n  runtime_min: ten", [":3: config.runtime_min: given 'ten' (string), expected: an integer"]),
    "octal": ("\n  runtime_min: 010", [":3: config.runtime_min: given 010", "without zeros before it"]),
    "no": ("\n  machine: no", [":3: config.machine: given no", "a string in quotes"]),
    "number of ranks": ("{launcher: mpiexec -n 4}", [":2: config.launcher: given 'mpiexec -n 4', but -n is added"]),
    "the machine's": ("{machine: big, runtime_min: 5}", ["given 5, but config/machines/big.yaml sets it"]),
    "several": ("{machin: x, allocation: 1}", ["'machin'", "config.allocation: given 1, expected: true or false"]),
}
WRONG_CONFIGS = {
    "mistyped key": ("studes: [a]", ["config.yaml:1: unknown key 'studes' (did you mean 'studies'?)"]),
    "nothing": ("studies:", [":1: studies: given null, expected: a list"]),
    "no": ("studies: [a, no]", [":1: studies.1: given no", "a string in quotes"]),
    "several paths": ("data: {cifar10: [a, b]}", [":1: data.cifar10: given the list [a, b], expected: a string"]),
    "no dataset": ("data: {cifr10: x}", [":1: data.cifr10: no dataset 'cifr10' (did you mean 'cifar10'?)"]),
    "brackets in a key": ("? 'stud[ies]'\n: [a]", [":1: unknown key 'stud[ies]' (did you mean 'studies'?)"]),
}


def message(read, argument) -> str:
    with pytest.raises(StudyError) as error:
        read(argument)
    return str(error.value)


@pytest.mark.parametrize(("text", "told"), WRONG_PROFILES.values(), ids=WRONG_PROFILES)
def test_a_wrong_profile_is_told_where_what_and_what_instead(tmp_path, text, told):
    (tmp_path / "profile.yaml").write_text(f"cores: 010\nconfig: {text}\n")
    said = message(settings.read_profile, tmp_path / "profile.yaml")
    assert all(part in said for part in told), said


def test_a_mapping_that_snakemake_would_drop_is_told(tmp_path):
    (tmp_path / "profile.yaml").write_text("cores: 1\nconfg: {machine: x}\n")
    said = message(settings.read_profile, tmp_path / "profile.yaml")
    assert "profile.yaml:2: unknown key 'confg' (did you mean 'config'?)" in said


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "confg: {machine: x}\nresorces: {a: 1}\nconfig: {runtime_min: -1}\n",
            [":1: unknown key 'confg'", ":2: unknown key 'resorces'", ":3: config.runtime_min: given -1"],
        ),
        (
            "cores: !!set 1\nconfig:\n  runtime_min: 010\n  launcher: srun\n  launcher: no\n",
            [":1: cores: given !!set", ":3: config.runtime_min: given 010", ':5: config: duplicate key "launcher"'],
        ),
    ],
)
def test_all_that_is_wrong_in_a_profile_is_told_at_once(tmp_path, text, told):
    (tmp_path / "profile.yaml").write_text(text)
    said = message(settings.read_profile, tmp_path / "profile.yaml")
    assert all(part in said for part in told), said


@pytest.mark.parametrize(("text", "told"), WRONG_CONFIGS.values(), ids=WRONG_CONFIGS)
def test_a_wrong_config_is_told_where_what_and_what_instead(tmp_path, text, told):
    (tmp_path / "config.yaml").write_text(text)
    said = message(settings.read_config, tmp_path / "config.yaml")
    assert all(part in said for part in told), said


def test_one_study_needs_no_list_and_no_file_no_study(tmp_path):
    (tmp_path / "config.yaml").write_text("studies: one\n")
    assert settings.read_config(tmp_path / "config.yaml").studies == ["one"]
    assert settings.read_config(tmp_path / "none.yaml") == settings.ConfigFile()


def test_words_of_the_command_line_are_taken_for_what_they_say():
    told = settings.checked(settings.Settings, {"allocation": "false", "studies": "one"}, "--config")
    assert (told.allocation, told.studies) == (False, ["one"])
    said = message(lambda given: settings.checked(settings.Settings, given, "--config"), {"runtim_min": 5})
    assert said.startswith("--config: unknown key 'runtim_min' (did you mean 'runtime_min'?)")


SPELLED = """
10 010 +010 089 0o17 0b101 0x1F 0x_1 1_000 0 00 0_0 -0 -1 1. 1.5 .5 01.5 1e3 1.5e3 1e+3 1.0e+3 +.inf .NaN 1:30 08:15
190:20:30.15 12:99 yes No ON off y true True FALSE null ~ Null 2024-01-02 text 010x
"""


@pytest.mark.parametrize("spelled", SPELLED.split())
def test_what_is_read_here_snakemake_reads_as_the_same(tmp_path, spelled):
    file = tmp_path / "config.yaml"
    file.write_text(f"value: {spelled}\n")
    there = yaml.safe_load(file.read_text())["value"]
    try:
        here = settings.read_mapping(file, StudyError, ("value",)).values["value"]
    except StudyError:
        here = settings.read_mapping(file, StudyError).values["value"]
        assert spelled in "00 0_0 1.0e+3 08:15" or repr(here) != repr(there), "refused, though it is one value"
    else:
        assert (type(here), repr(here)) == (type(there), repr(there))

"""A wrong study is told file, line or key, what was given and what is allowed, in a line or two, before any job."""

import re
import shutil
from pathlib import Path

import pytest

from ddp_hpc.config import catalog, grid
from ddp_hpc.config.study import Study, StudyError

GOOD = """\
name: try
base:
  model: mlp
  dataset: digits
  threads_per_rank: 1
grid:
  exchange: ring
  world_size: [1, 2]
  batch_size: [16, 32]
  learning_rate: [0.1, 0.5]
budget:
  samples_seen: 6400
"""


def write(folder: Path, text: str | bytes) -> Path:
    file = folder / "try.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def message(folder: Path, text: str | bytes) -> str:
    with pytest.raises(StudyError) as error:
        grid.expand(write(folder, text))
    return str(error.value)


def test_the_good_study_is_good(tmp_path):
    assert len(grid.expand(write(tmp_path, GOOD)).specs) == 8


# one edit of the good study: what is replaced, by what, and what the message says, line first
WRONG = {
    "unknown key": (
        "  threads_per_rank: 1",
        "  colour: 3",
        [":5:", "unknown key 'colour'", "expected: model, dataset"],
    ),
    "typo": ("batch_size:", "batchsize:", [":9:", "'batchsize'", "did you mean 'batch_size'"]),
    "other tool's word": ("learning_rate:", "lr:", [":10:", "'lr'", "did you mean 'learning_rate'"]),
    "right key, wrong part": (
        "budget:",
        "learning_rate: 0.1\nbudget:",
        [":11:", "belongs under `base` (one value) or `grid`"],
    ),
    "rule at the top": ("budget:", "loss_threshold: 1\nbudget:", [":11:", "belongs under `rules`"]),
    "budget in base": ("  threads_per_rank: 1", "  samples_seen: 64", [":5:", "belongs under `budget`"]),
    "repeats in base": ("  threads_per_rank: 1", "  repeats: 3", [":5:", "belongs at the top level"]),
    "typo in rules": ("budget:", "rules:\n  loss_treshold: 1\nbudget:", [":12:", "did you mean 'loss_threshold'"]),
    "no rule for winners": (
        "budget:",
        "rules:\n  winner_by: accuracy\nbudget:",
        [":12:", "winner_by: given 'accuracy' (string), expected: loss_area, test_metric, {time_to: METRIC}"],
    ),
    "no metric to reach": (
        "budget:",
        "rules:\n  winner_by: {time_to: 0}\nbudget:",
        [":12:", "rules.winner_by.time_to: given 0.0, expected: greater than 0"],
    ),
    "typo in budget": ("  samples_seen:", "  sample_seen:", [":12:", "did you mean 'samples_seen'", "steps, seconds"]),
    "double key": (
        "  exchange: ring",
        "  exchange: ring\n  exchange: none",
        [":8:", 'duplicate key "exchange"', "once"],
    ),
    "wrong type": (
        "[0.1, 0.5]",
        "[0.1, fast]",
        [":10:", "learning_rate", "given 'fast' (string)", "expected: a number"],
    ),
    "number in quotes": ("[0.1, 0.5]", '[0.1, "0.5"]', [":10:", "given '0.5'", "write numbers without quotes"]),
    "negative": ("[0.1, 0.5]", "[0.1, -0.5]", [":10:", "learning_rate: given -0.5", "greater than 0"]),
    "zero ranks": ("[1, 2]", "[0, 2]", [":8:", "world_size: given 0", "greater than 0"]),
    "half a sample": ("[16, 32]", "[16, 32.5]", [":9:", "batch_size: given 32.5", "integer"]),
    "not divisible": (
        "6400",
        "6420",
        [":11:", "samples_seen=6420", "16, 32, 64", "multiples of 64, e.g. 6400 or 6464"],
    ),
    "unknown model": ("mlp", "mpl", [":3:", "no model 'mpl'", "did you mean 'mlp'"]),
    "null exchange": ("exchange: ring", "exchange: ~", [":7:", "given null", "expected: one of", "none", "ring"]),
    "model is a number": ("model: mlp", "model: 3", [":3:", "model: given 3", "expected: one of", "mlp"]),
    "unknown option": ("model: mlp", "model: {name: mlp, width: [64]}", [":3:", "no option 'width'", "mean 'widths'"]),
    "option's type": (
        "model: mlp",
        "model: {name: mlp, widths: many}",
        [":3:", "option 'widths'", "given 'many'", "e.g. its default ["],
    ),
    "dotted option": ("  threads_per_rank: 1", "  model.widths: many", [":5:", "option 'widths'", "given 'many'"]),
    "dotted option unknown": ("  threads_per_rank: 1", "  model.depth: 3", [":5:", "no option 'depth'", "widths"]),
    "axis of an option": ("grid:", "grid:\n  model.widths: [64, 32]", [":7:", "given 64", "an axis is a list of such"]),
    "option of nothing": ("  threads_per_rank: 1", "  modle.widths: [3]", [":5:", "unknown key 'modle.widths'"]),
    "zip of unequal lengths": (
        "  world_size: [1, 2]\n  batch_size: [16, 32]",
        "  zip:\n    world_size: [1, 2, 4]\n    batch_size: [16, 32]",
        [":8:", "zip", "world_size: 3, batch_size: 2", "equally many"],
    ),
    "ranks per node, not spread": (
        "  threads_per_rank: 1",
        "  ranks_per_node: 2",
        [":5:", "ranks_per_node=2 with placement=null", "belongs to placement: spread"],
    ),
    "not to be spread": (
        "  threads_per_rank: 1",
        "  placement: spread\n  ranks_per_node: 2",
        ["ranks_per_node=2 with world_size=1", "a divisor of world_size"],
    ),
    "partition with a blank": (
        "  threads_per_rank: 1",
        "  partition: big gpu",
        [":5:", "partition: given 'big gpu' (string), expected: letters"],
    ),
    "trace without steps": ("budget:", "trace: {}\nbudget:", [":11:", "trace.steps is missing"]),
    "time of day": ("budget:", "runtime_min: 1:30:00\nbudget:", [":11:", "an integer (time limit of a run in minutes"]),
    "no minutes": ("budget:", "runtime_min: 0\nbudget:", [":11:", "runtime_min: given 0", "greater than 0"]),
    "empty axis": ("[16, 32]", "[]", [":9:", "batch_size: given an empty list", "one value or more"]),
    "empty zip": (
        "  batch_size: [16, 32]",
        "  zip: {batch_size: [], seed: []}",
        [":9:", "batch_size: given an empty list", "one value or more"],
    ),
    "axis twice": (
        "  batch_size: [16, 32]",
        "  batch_size: 16\n  zip: [{batch_size: [16, 32]}]",
        [":9:", "batch_size is an axis 2 times", "once"],
    ),
    "both batch sizes": (
        "  batch_size: [16, 32]",
        "  batch_size: 16\n  global_batch_size: 32",
        [":10:", "global_batch_size=32 and batch_size=16", "one of the two"],
    ),
    "global batch not shared": (
        "  batch_size: [16, 32]",
        "  global_batch_size: 25",
        [":9:", "global_batch_size=25", "equally among world_size=2"],
    ),
    "global batch of text": (
        "  batch_size: [16, 32]",
        "  global_batch_size: big",
        [":9:", "given 'big'", "integer"],
    ),
    "none with two ranks": ("ring", "none", [":7:", "exchange 'none'", "given 2", "ring", "world_size=2"]),
    "date": ("[16, 32]", "2024-01-01", [":9:", "batch_size: given 2024-01-01 (a date", "integer"]),
    "nan": ("[0.1, 0.5]", "[.nan]", [":10:", "learning_rate: given nan", "finite"]),
    "inf": ("[0.1, 0.5]", "[.inf]", [":10:", "learning_rate: given inf", "finite"]),
    "bool for int": ("[1, 2]", "[true]", [":8:", "world_size: given true", "integer"]),
    "bool for float": ("[0.1, 0.5]", "[yes, true]", [":10:", "given 'yes'", "given true", "a number"]),
    "list for scalar": (
        "  threads_per_rank: 1",
        "  momentum: [0.1, 0.9]",
        [":5:", "given the list [0.1, 0.9]", "`grid`"],
    ),
    "tag": ("[0.1, 0.5]", "!fast 3", [":10:", "learning_rate: given", "plain YAML values"]),
    "grid is a string": (
        GOOD[GOOD.index("grid:") : GOOD.index("budget")],
        "grid: all\n",
        [":6:", "grid: given 'all'", "mapping"],
    ),
    "grid is empty": (GOOD[GOOD.index("grid:") : GOOD.index("budget")], "grid: []\n", [":6:", "grid: no point"]),
    "base is a list": ("base:\n", "base: [1]\nrest:\n", [":2:", "base: given the list [1]", "mapping"]),
    "exclude is a string": ("grid:", "grid:\n  exclude: ring", [":7:", "exclude: given 'ring'", "e.g. {world_size"]),
    "exclude is empty": ("grid:", "grid:\n  exclude: {}", [":7:", "exclude: given an empty mapping"]),
    "typo in exclude": (
        "grid:",
        "grid:\n  exclude: {worldsize: 2}",
        [":7:", "'worldsize'", "did you mean 'world_size'"],
    ),
    "when fits nothing": (
        "grid:",
        "grid:\n  when: {world_size: 3}",
        [":6:", "no point is left", ":7: when:", "fits no"],
    ),
    "too many points": ("[0.1, 0.5]", str(list(range(1, 30_000))), [":6:", "119,996 points", "100,000"]),
    "batches without a common multiple": (
        "[16, 32]",
        str(list(range(6401, 6901))),
        ["no multiple of the global batches", "6412 and ", " more;", "expected: epochs or steps"],
    ),
    "no budget": ("budget:\n  samples_seen: 6400\n", "", ["budget is missing", "at the top level"]),
    "two budgets": (
        "6400",
        "6400\n  steps: 3",
        [":11:", "exactly one of samples_seen, epochs, steps, seconds", "given: samples_seen"],
    ),
    "budget is a number": ("budget:\n  samples_seen: 6400", "budget: 6400", [":11:", "budget: given 6400", "mapping"]),
    "budget twice": ("  threads_per_rank: 1", "  budget: {steps: 3}", [":5:", "budget stands at the top level too"]),
    "rule twice": (
        "  threads_per_rank: 1",
        "  base_batch_size: 3\nrules: {base_batch_size: 3}",
        [":5:", "stands under `rules` too", "once"],
    ),
    "missing field": ("  dataset: digits\n", "", ["try.yaml", "dataset is missing", "`base` (one value) or `grid`"]),
    "missing name": ("name: try\n", "", ["try.yaml", "name is missing", "at the top level"]),
    "name is not the file's": ("name: try", "name: tried", [":1:", "given 'tried'", "the name of the file, 'try'"]),
    "name with capitals": ("name: try", "name: Try it", [":1:", "given 'Try it'", "lower-case letters, digits and _"]),
    "unknown table": (
        "budget:",
        "tables: [runs, winnners]\nbudget:",
        [":11:", "no table 'winnners'", "mean 'winners'"],
    ),
    "search over no field": ("budget:", "search: [lr]\nbudget:", [":11:", "search", "'lr'", "mean 'learning_rate'"]),
    "search is a string": ("budget:", "search: seed\nbudget:", [":11:", "search: given 'seed'", "a list"]),
    "choice of a rule": (
        "budget:",
        "rules: {learning_rate_scaling: lin}\nbudget:",
        [":11:", "'lin'", "'none', 'linear'", "did you mean 'linear'?"],
    ),
    "rule needs another": (
        "budget:",
        "rules:\n  learning_rate_scaling: linear\nbudget:",
        [":12:", "learning_rate_scaling=linear", "need base_batch_size"],
    ),
    "tab": ("  model:", "\tmodel:", [":3:", r"'\t'", "indent with spaces"]),
    "unbalanced": ("[16, 32]", "[16, 32", [":9:", "is ',' or ']' missing?"]),
    "no colon": ("grid:", "grid", [":6:", "is ':' missing after this key?"]),
    "no blank": ("name: try", "name:try", [":2:", "is a ':' or the blank after it missing in the line above"]),
    "odd indent": ("  model:", " model:", [":4:", "a ':' cannot stand here"]),
    "open quote": ("name: try", "name: 'try", [":1:", "the text that begins here is not closed"]),
    "tagged": ("  threads_per_rank: 1", "  threads_per_rank: !!int b", [":5:", "not what its tag", "'b'"]),
    "set": ("  threads_per_rank: 1", "  threads_per_rank: !!set 3", [":5:", "given !!set 3", "without a tag"]),
    "binary": (
        "  threads_per_rank: 1",
        "  threads_per_rank: !!binary aGk=",
        [":5:", "given !!binary", "without a tag"],
    ),
    "deep": ("[16, 32]", "[" * 300 + "]" * 300, [":9:", "nested over 50 levels"]),
    "alias to itself": ("[16, 32]", "&a [*a]", [":9:", "an alias (*) stands within what it stands for"]),
    "many digits": ("[16, 32]", "9" * 100_000, [":9:", "batch_size: given 999", "(100,000 digits)", "at most 100"]),
    "an integer that no record can hold": (
        "  threads_per_rank: 1",
        "  threads_per_rank: 9007199254740994",
        [":5:", "threads_per_rank: given 9007199254740994", "an integer up to 2^53"],
    ),
    "a value of an axis whose points are left out": (
        "[16, 32]",
        "[16, 3x]\n  when: {batch_size: 16}",
        [":9:", "batch_size: given '3x'", "expected: an integer"],
    ),
    "a value of a zip whose points are left out": (
        "[16, 32]",
        "16\n  zip: {momentum: [0.1, high]}\n  exclude: {momentum: high}",
        [":10:", "momentum: given 'high'", "expected: a number"],
    ),
    "blank publisher": (
        "budget:",
        'publication: {publisher: " "}\nbudget:',
        [":11:", "publisher: given ' '", "a string that is not empty"],
    ),
    "huge text": ("[16, 32]", "x" * 200_000, [":9:", "(string of 200,000 characters)", "an integer"]),
    "huge key": ("  threads_per_rank", "  " + "x" * 900, [":5:", "(900 characters)", "expected: model, dataset"]),
    "huge model": ("mlp", "m" * 200_000, [":3:", "no model 'mmm", "expected:", "mlp"]),
    "no day": ("[16, 32]", "2024-13-45", [":9:", "'2024-13-45' is not a date"]),
    "list as a key": ("  threads_per_rank: 1", "  [1, 2]: 3", [":5:", "as a key, expected: text"]),
    "merge of a number": ("  threads_per_rank: 1", "  <<: 3", [":5:", "an alias (*) of a mapping"]),
    "underscores in quotes": ("[16, 32]", '["1_6"]', [":9:", "write numbers without quotes"]),
    "nan in quotes": ("[0.1, 0.5]", '["nan"]', [":10:", "write numbers without quotes"]),
    "yaml 1.1": ("name: try", "%YAML 1.1\n---\nname: try", ["try.yaml: ", "expected: YAML 1.2"]),
    "two documents": ("grid:", "---\ngrid:", [":6:", "second document"]),
    "number as a key": ("  threads_per_rank: 1", "  3: 4", [":5:", "'3'"]),
}


@pytest.mark.parametrize(("old", "new", "told"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_study_is_told_where_what_and_what_instead(tmp_path, old, new, told):
    assert GOOD.count(old) == 1, "the edit must hit one place"
    text = message(tmp_path, GOOD.replace(old, new))
    for part in told:
        assert part in text
    assert len(text.splitlines()) <= 2
    assert max(map(len, text.splitlines())) < 800
    assert not re.search(r"ctx|loc=|input_value|pydantic|Commented|object at|\(\)", text), "no jargon of a library"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "is empty"),
        (b"# nothing but a comment\n", "is empty"),
        (b"- 1\n- 2\n", "given a list, expected: a mapping"),
        (b"just words\n", "given 'just words' (string), expected: a mapping"),
        (b"name: try\nbase: \xe9t\xe9\n", "try.yaml:2: not UTF-8"),
        ("# \u00fc\nname: try\x00\n".encode(), "try.yaml:2: unacceptable character #x0000"),
    ],
)
def test_a_file_that_is_no_mapping_is_named(tmp_path, content, told):
    text = message(tmp_path, content)
    assert str(tmp_path / "try.yaml") in text
    assert told in text


@pytest.mark.parametrize("stem", ["my-study", "bäse", "a" * 65])
@pytest.mark.parametrize("name", ["as the file", "try"])
def test_a_file_whose_name_no_study_can_have_is_named(tmp_path, stem, name):
    file = tmp_path / f"{stem}.yaml"
    file.write_text(GOOD.replace("name: try", f"name: {stem if name == 'as the file' else name}"), encoding="utf-8")

    with pytest.raises(StudyError, match="lower-case letters, digits and _") as told:
        grid.expand(file)

    assert str(told.value).startswith(f"{file}:1: name: given ")


def test_a_missing_file_and_a_folder_are_named(tmp_path):
    with pytest.raises(StudyError, match=r"gone\.yaml: no such file"):
        grid.expand(tmp_path / "gone.yaml")
    with pytest.raises(StudyError, match="cannot be read"):
        grid.expand(tmp_path)


def test_what_is_wrong_in_several_parts_of_a_file_is_told_at_once(tmp_path):
    text = GOOD.replace("name: try", "name: tri").replace("mlp", "mpl").replace("threads_per", "thread_per")
    text = text.replace("[0.1, 0.5]", "[0.1, fast]").replace("6400", "-1") + "repeat: 3\n"
    said = message(tmp_path, text + "rules: {area_noise: much}\n")
    told = ["tri", "no model 'mpl'", "'thread_per_rank'", "'fast'", "-1", "'repeat'", "'much'"]
    lines = (":1:", ":3:", ":5:", ":10:", ":12:", ":13:", ":14:")
    for line, part in zip(lines, told, strict=True):
        assert re.search(f"{line} .*{part}", said), said
    assert len(said.splitlines()) == len(told), "what follows from them is not told"
    assert "mlp" not in message(tmp_path, GOOD.replace("6400", "-1")), "a value that is right is no problem"
    uneven = GOOD.replace("batch_size: [16, 32]", "global_batch_size: 25").replace("[0.1, 0.5]", "fast")
    said = message(tmp_path, uneven.replace("[1, 2]", "2"))
    assert re.findall(r":(\d+):", said) == ["9", "10"], "of one point both: no share, no number"


def test_every_wrong_point_is_reported_at_once_and_the_list_is_cut(tmp_path, monkeypatch):
    text = message(tmp_path, GOOD.replace("[0.1, 0.5]", "[-1, -2, -3]").replace("[1, 2]", "[1, two]"))
    assert [part in text for part in ("-1", "-2", "-3", "'two'")] == [True] * 4
    monkeypatch.chdir(tmp_path)  # a path that is long leaves room for fewer lines
    many = message(Path(), GOOD.replace("[0.1, 0.5]", str([-n for n in range(1, 100)])))
    assert many.splitlines()[-1] == "... and 89 more"
    assert len(many.splitlines()) == 11


def test_aliases_that_grow_without_end_are_refused_before_they_cost_anything(tmp_path):
    levels = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10))
    assert "over 200,000 values, aliases counted" in message(tmp_path, "a0: &a0 [1, 2]\n" + levels)
    chain = "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 3000))
    assert "nested over 50 levels" in message(tmp_path, "a0: &a0 1\n" + chain)
    assert "larger than 1,000,000 bytes" in message(tmp_path, GOOD + "#" * 1_000_000)


def test_a_byte_order_mark_and_other_ends_of_lines_change_nothing(tmp_path):
    plain = grid.expand(write(tmp_path, GOOD)).specs
    assert grid.expand(write(tmp_path, b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode())).specs == plain
    assert "not UTF-8" in message(tmp_path, GOOD.encode("utf-16"))


@pytest.mark.parametrize("spelled", ["1e-4", "1.0e-4", "0.0001", ".0001", "1E-4", "+1e-4"])
def test_a_float_is_a_float_however_it_is_spelled(tmp_path, spelled):
    """YAML 1.1 takes 1e-4 for a string."""
    text = GOOD.replace("[0.1, 0.5]", spelled).replace("[1, 2]", "1").replace("[16, 32]", "16")
    (spec,) = grid.expand(write(tmp_path, text)).specs
    assert spec.learning_rate == 1e-4


def test_yaml_is_of_version_1_2(tmp_path):
    text = GOOD.replace("name: try", "name: try\ndescription: no").replace("[16, 32]", "[010, 1e1, 0o12, 1_0]")
    found = grid.expand(write(tmp_path, text))
    assert found.study.description == "no"
    assert {spec.batch_size for spec in found.specs} == {10}


def test_anchors_and_merges_work(tmp_path):
    text = GOOD.replace("base:", "base: &b").replace("grid:\n", "grid:\n  <<: {seed: [3, 4]}\n")
    assert {spec.seed for spec in grid.expand(write(tmp_path, text)).specs} == {3, 4}


@pytest.mark.parametrize(
    ("axes", "searches"),
    [
        ({"batch_size": [16, 32]}, True),
        ({"global_batch_size": [16, 32]}, True),
        ([{"learning_rate": 0.1}, {"zip": {"learning_rate": 0.2}}], True),
        ({"world_size": [1, 2], "batch_size": 16}, False),
    ],
)
def test_figures_of_a_search_are_left_out_where_nothing_is_searched(axes, searches):
    study = Study(name="any", grid=axes)
    assert ("heat_map" in study.figure_names) == ("loss_areas" in study.figure_names) == searches
    assert "loss_curves" in study.figure_names


def test_an_own_table_or_figure_is_for_the_studies_that_name_it(tmp_path, monkeypatch):
    """A file without a flag changes no other study; one that says GENERAL is for all."""
    before = (Study(name="any").table_names, Study(name="any").figure_names)
    shutil.copytree(catalog.PACKAGE / "analysis", tmp_path / "analysis")
    monkeypatch.setattr(catalog, "PACKAGE", tmp_path)
    table, figure, general = (
        tmp_path / f"analysis/{place}.py" for place in ("tables/our_own", "figures/our_own", "tables/for_all_of_us")
    )
    table.write_text('CAPTION = "Ours."\ndef build(study_runs): ...\n')
    figure.write_text('INPUTS = ("our_own",)\ndef draw(tables, study, coverage): ...\n')

    assert (Study(name="any").table_names, Study(name="any").figure_names) == before
    named = Study(name="any", tables=["our_own"], figures=["our_own"])
    assert (named.table_names, named.figure_names) == (["our_own"], ["our_own"])
    general.write_text("GENERAL = True\ndef build(study_runs): ...\n")
    assert Study(name="any").table_names == sorted([*before[0], "for_all_of_us"])

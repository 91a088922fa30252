"""The key `claims` of a study: what is wrong is told line, what was given, what is allowed. It changes no run."""

import json

import pytest
from ruamel.yaml import YAML

from ddp_hpc.analysis.report import page
from ddp_hpc.config import grid
from ddp_hpc.config.study import Study, StudyError
from ddp_hpc.runs import identity

STUDY = """\
name: try
base: {model: mlp, dataset: digits, exchange: ring, batch_size: 16, learning_rate: 0.1}
grid: {world_size: [1, 2]}
budget: {steps: 10}
"""
CLAIM = """\
claims:
  - id: noise
    statement: the noise falls
    source: A. Author (2017)
    published: 2.6
    ours:
      ratio:
        of: {table: runs, column: min_loss, where: {world_size: 2}}
        to: {table: runs, column: min_loss, where: {world_size: 1}}
    expect: {within: 0.1}
    contradicted: {below: 2}
    applies_when: [complete, within_cores, nodes: 2]
"""


def expanded(folder, text):
    file = folder / "try.yaml"
    file.write_text(text)
    return grid.expand(file)


PREDICTED = "predicted: {exchange: ring, bytes: 1, world_size: 2, quantity: bytes_sent}"
WRONG = {
    "unknown key": ("    published:", "    publised:", [":9:", "'publised'", "did you mean 'published'"]),
    "unknown table": ("of: {table: runs", "of: {table: rnus", [":12:", "no table 'rnus'", "did you mean 'runs'"]),
    "of itself": ("of: {table: runs", "of: {table: claims", [":12:", "'claims' is made of claims"]),
    "key of cells": ("column: min_loss, where: {world_size: 1}", "col: min_loss", [":13:", "'col'", "mean 'column'"]),
    "two kinds": ("ratio:", f"{PREDICTED}\n      ratio:", [":10:", "exactly one of value,", "given: ratio, predicted"]),
    "two expectations": (
        "within: 0.1",
        "within: 0.1, at_least: 2",
        [":14:", "exactly one of within, at_least", "given: within, at_least"],
    ),
    "no expectation": ("    expect: {within: 0.1}\n", "", [":6:", "expect is missing", "within, at_least"]),
    "within nothing": ("    published: 2.6\n", "", ["within a part of published, which is null"]),
    "upside down": ("within: 0.1", "between: [3, 2]", [":14:", "given the list [3.0, 2.0]", "the least, then"]),
    "both at once": ("below: 2}", "below: 2.5}", [":6:", "below 2.5 holds some of what is expected, within 10 %"]),
    "condition": ("within_cores", "within_core", [":16:", "unknown condition", "did you mean 'within_cores'"]),
    "size of nothing": ("nodes: 2", "node: 2", [":16:", "given {'node': 2}", "nodes: N"]),
    "no bounds": ("nodes: 2", "nodes: {}", [":16:", "needs at_least, at_most or both"]),
    "bound": ("nodes: 2", "nodes: {least: 2}", [":16:", "'least'", "did you mean 'at_least'"]),
    "kind": (
        "    published:",
        "    kind: arithmetic\n    published:",
        [":6:", "given 'arithmetic'", "reads no formula"],
    ),
    "times on any machine": (
        "[complete, within_cores, nodes: 2]",
        "[complete, quiet]",
        [":16:", "the claim noise reads times (train_s)", "expected: also within_cores"],
    ),
    "counted by nothing": (
        "ratio:",
        "count: {having: {}}\n      ratio:",
        [":11:", "having"],
    ),
    "winners of a trend": (
        "ratio:",
        "trend: {table: runs, column: min_loss, over: world_size, as: slope, winner: true}\n      ratio:",
        [":11:", "winner", "a ratio of two"],
    ),
    "no ranks": ("nodes: 2", "ranks: 0", [":16:", "ranks: given 0", "greater than 0"]),
    "id": ("id: noise", "id: Noise!", [":6:", "given 'Noise!'", "lower-case letters"]),
    "no source": ("    source: A. Author (2017)\n", "", [":6:", "claims.source is missing"]),
    "value of a field": ("{world_size: 2}", "{world_size: two}", [":12:", "world_size: given 'two'", "an integer"]),
    "budget of cells": ("{world_size: 2}", "{budget: {stepz: 2}}", [":12:", "unknown key 'stepz'", "mean 'steps'"]),
    "number of text": ("published: 2.6", "published: much", [":9:", "given 'much'", "a number"]),
}


@pytest.mark.parametrize(("old", "new", "told"), WRONG.values(), ids=WRONG)
def test_a_wrong_claim_is_told_where_what_and_what_instead(tmp_path, old, new, told):
    claim = CLAIM.replace("min_loss", "train_s") if "train_s" in str(told) else CLAIM
    assert old in claim
    with pytest.raises(StudyError) as error:
        expanded(tmp_path, STUDY + claim.replace(old, new, 1))

    message = str(error.value)
    assert [part for part in told if part not in message] == [], message
    assert len(message.splitlines()) <= 2, message


def test_two_claims_of_one_id_are_refused(tmp_path):
    with pytest.raises(StudyError, match="the id 'noise' stands more than once"):
        expanded(tmp_path, STUDY + CLAIM + CLAIM.removeprefix("claims:\n"))


def test_a_prediction_needs_a_link_and_an_exchange_with_a_model(tmp_path):
    one = CLAIM[: CLAIM.index("      ratio:")] + "      predicted: {exchange: rnig, bytes: 1.2e9, world_size: 40}\n"
    one += "    expect: {within: 0.1}\n"
    with pytest.raises(StudyError, match=r"unknown exchange 'rnig' .did you mean 'ring'"):
        expanded(tmp_path, STUDY + one)
    with pytest.raises(StudyError, match="bandwidth_gb_per_s is missing"):
        expanded(tmp_path, STUDY + one.replace("rnig", "ring"))


def test_claims_change_no_run(tmp_path):
    with_claims, without = expanded(tmp_path, STUDY + CLAIM), expanded(tmp_path, STUDY)

    assert with_claims.study.claims
    assert [identity.run_id(spec) for spec in with_claims.specs] == [identity.run_id(spec) for spec in without.specs]


def test_no_code_of_claims_is_code_of_a_run(tmp_path):
    (spec, _) = expanded(tmp_path, STUDY).specs

    assert not {"claims.py", "ours.py", "agreement.py", "perfmodel.py"} & identity.fingerprints(spec).keys()


def test_the_tables_that_claims_read_are_made_and_their_own(tmp_path):
    study = expanded(tmp_path, STUDY + "tables: [phases]\n" + CLAIM).study

    assert study.table_names == ["phases", "runs", "claims"]
    assert "claims" not in expanded(tmp_path, STUDY).study.table_names


def test_the_study_on_the_page_is_the_study(tmp_path):
    """Keys keep their names and order: what the page shows can be run again."""
    study = expanded(tmp_path, STUDY + CLAIM).study
    trend = {"table": "runs", "column": "min_loss", "over": "world_size", "as": "increasing"}
    first = study.claims[0].model_dump(exclude_defaults=True)
    second = first | {"id": "second", "ours": {"trend": trend}}
    study = Study.model_validate(study.model_dump() | {"claims": [first, second]})
    again = Study.model_validate(json.loads(json.dumps(YAML(typ="safe").load(page._source(study)))))

    assert again == study

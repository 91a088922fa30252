"""What the lines of a program's record mean."""

import json

import pytest

from ddp_hpc.execution.program_recording import Reader, RecordingError


def recorded(tmp_path, *rows, end="\n"):
    (tmp_path / "rows").write_text("\n".join(json.dumps(row) for row in rows) + end)
    return Reader(tmp_path / "rows").read()


def test_an_evaluation_is_off_the_clock(tmp_path):
    found = recorded(tmp_path, {"begin": 1}, {"t": 2}, {"t": 9, "evaluation": 6, "from": 8, "loss": 3, "samples": 4})

    assert found.step_s == [1, 1]
    assert found.evaluation_s == 6
    assert found.starts == [(0, 1), (1, 8)]
    assert (found.loss, found.samples) == ([None, 3], [None, 4])


def test_steps_of_an_earlier_process_count_up_to_where_the_next_one_goes_on(tmp_path):
    before = [{"begin": 1}, {"t": 2, "loss": 5}, {"t": 3, "loss": 4}, {"t": 4, "loss": 3}]

    goes_on = recorded(tmp_path, *before, {"begin": 50}, {"resumed": 2}, {"t": 52, "loss": 3})
    anew = recorded(tmp_path, *before, {"begin": 50}, {"t": 52, "loss": 5})

    assert (goes_on.step_s, goes_on.loss, goes_on.resumes, goes_on.first_s) == ([1, 1, 2], [5, 4, 3], 1, 1)
    assert (anew.step_s, anew.loss, anew.resumes, anew.first_s) == ([2], [5], 0, 50)


def test_a_line_that_is_still_being_written_waits_for_its_end(tmp_path):
    file = tmp_path / "rows"
    file.write_text('{"begin": 0}\n{"t": 1}\n{"t": 1')
    reader = Reader(file)
    assert reader.read().steps == 1
    file.write_text('{"begin": 0}\n{"t": 1}\n{"t": 12}\n')
    assert reader.read().step_s == [1, 11]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{"t": 1}], 'comes before {"begin": ...}'),
        ([{"begin": 5}, {"t": 4}], "t: given 4, expected: seconds, not before 5"),
        ([{"begin": 5}, {"resumed": 3}], "resumed: given 3, expected: before any step, 0 to 0"),
        ([{"begin": 5}, {"los": 4}], "has none of begin, t, metric, resumed, stopped; given los"),
        ([{"begin": 5}, [1]], "is no object"),
    ],
)
def test_what_cannot_be_meant_is_told_by_its_line(tmp_path, rows, words):
    with pytest.raises(RecordingError) as error:
        recorded(tmp_path, *rows)
    assert words in str(error.value)
    assert f"line {len(rows)} of the record" in str(error.value)

"""Numbers of the page: a unit per column by its largest value, digits by the interval."""

import pandas as pd
import pytest

from ddp_hpc.analysis.report.units import digits, for_page, in_units, time


@pytest.mark.parametrize(
    ("value", "half_width", "text"),
    [
        (1.5, 0.15, "1.50"),
        (1.4983, 0.0512, "1.498"),
        (43210.0, 812.0, "43210"),
        (43219.0, 8120.0, "43200"),
        (0.000424, float("nan"), "0.000424"),  # no interval
        (1.0, 1e-12, "1.00000"),  # never more than six
        (0.1247, 14000.0, "0.1"),  # one rank that is eight times as fast as two, which something has disturbed
        (-0.0000043, 14000.0, "-4e-06"),
        (0.0, 14000.0, "0"),
    ],
)
def test_the_interval_says_how_many_digits_a_number_has(value, half_width, text):
    assert digits(value, half_width) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(2.5, "2.5 s"), (0.0521, "52.1 ms"), (4.389e-5, "43.9 us"), (0.0, "0 s")]
)
def test_a_time_has_the_unit_of_its_magnitude(seconds, text):
    assert time(seconds) == text


def test_a_column_of_times_has_one_unit_and_so_has_its_interval():
    frame = pd.DataFrame(
        {
            "step_s": [0.0004, 4e-05],
            "step_low_s": [0.0003, 3e-05],
            "step_high_s": [0.002, 5e-05],
            "train_s": [12.0, 0.5],
            "samples_per_s": [1e-4, 1.0],
            "loss_area_loss_s": [1e-4, 1e-3],
            "update_s": [float("nan")] * 2,
        }
    )
    shown = in_units(frame)

    assert list(shown) == [
        *("step_ms", "step_low_ms", "step_high_ms", "train_s", "samples_per_s", "loss_area_loss_s", "update_s")
    ]
    assert shown["step_ms"].tolist() == pytest.approx([0.4, 0.04])
    assert shown["train_s"].tolist() == [12.0, 0.5]


@pytest.mark.parametrize(
    ("hours", "name", "shown"),
    [
        ([250.0, 0.5], "rank_hours", [250, 0.5]),
        ([0.5, 0.25], "rank_minutes", [30, 15]),
        ([8.698e-05, 2e-4], "rank_milliseconds", [313.128, 720]),
        ([0.0, 0.0], "rank_hours", [0, 0]),
    ],
)
def test_what_ranks_are_paid_for_has_the_unit_of_its_magnitude(hours, name, shown):
    frame = in_units(pd.DataFrame({"rank_hours": hours}))

    assert list(frame) == [name]
    assert frame[name].tolist() == pytest.approx(shown)


def test_headings_follow_the_unit_and_notes_name_the_columns_of_the_files():
    frame = pd.DataFrame(
        {
            "learning_rate": [0.0125, 0.5],
            "train_s": [0.012, 0.5],
            "step_s": [0.00041234, 0.0004],
            "step_low_s": [0.0004, 0.00039],
            "step_high_s": [0.00042, 0.00041],
        }
    )
    shown = for_page(frame, ["step_low_s", "step_high_s"])

    assert list(shown.texts.columns) == ["learning rate", "training (ms)", "step (us)"]
    assert shown.texts["step (us)"].tolist() == ["412", "400"]
    assert shown.texts["learning rate"].tolist() == ["0.0125", "0.5"]
    assert shown.numeric == [True] * 3
    assert shown.for_authors == ("Only in the files: step_low_s, step_high_s.",)

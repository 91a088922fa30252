"""No number in a README of published results but those that its tables give; and which results are of older code."""

import shutil
import warnings

import pytest
from published_readmes import PUBLISHED, numbers, of_folder, of_pack, readmes
from test_published_packs import project, published, replaced  # noqa: F401  the fixtures

from ddp_hpc.publication.pack import README, Pack, opened
from ddp_hpc.runs import identity

PACKS = sorted([*PUBLISHED.glob("*.zip"), *(file.parent for file in PUBLISHED.glob("*/SHA256SUMS"))])
BY_HAND = sorted(file.parent for file in PUBLISHED.glob("*/README.md") if file.parent not in PACKS)
# what is in no table beside, and where it comes from
ELSEWHERE = {
    "baidu_allreduce": {"2.34": "2 x 39/40 x 1.2 GB", "0.775": "31/40", "0.0074": "Karp and Flatt, of 31 on 40"},
    "prediction_shaped_links": {"1.33": "2 x 2/3, the bytes of a ring of three"},
    "shm_learn_dist": {
        "1.8": "the rule: test_shm_learn_dist_studies",
        "81.8": "the source's text, beside its legend",
        **dict.fromkeys(("0.098", "0.00073"), "margins, held by test_published.py"),
        **dict.fromkeys(("1.88", "3.09", "2.81"), "ratios of times, held by test_shm_learn_dist_studies.py"),
    },
}


@pytest.fixture(scope="module", params=PACKS, ids=lambda path: path.name)
def pack(request):
    with opened(request.param) as found:
        yield found


def test_a_pack_tells_no_number_that_its_tables_do_not_give(pack):
    assert of_pack(pack) == []


def test_the_readme_of_a_pack_stands_beside_it():
    assert all(beside.read_text(encoding="utf-8") == text for beside, text in readmes())


def test_packs_of_older_code_are_told_and_are_no_failure(pack):
    now = {one.run: identity.code_hash(one.spec) for one in pack.study_runs.planned}
    older = [run for run, code in now.items() if identity.parts(run)[2] != code]
    assert now
    if older:
        warnings.warn(
            f"results/published: {len(older)} of {len(now)} runs of {pack.study.name} were trained by other code than "
            "this; `ddp-hpc run` and `ddp-hpc publish` make them anew",
            stacklevel=1,
        )


@pytest.mark.parametrize("folder", BY_HAND, ids=lambda folder: folder.name)
def test_a_page_by_hand_tells_no_fraction_that_no_table_beside_it_has(folder):
    assert [one for one in of_folder(folder) if one not in ELSEWHERE.get(folder.name, {})] == []


def test_a_number_that_was_altered_is_found(published, tmp_path):  # noqa: F811
    folder = shutil.copytree(published, tmp_path / "pack")
    assert of_pack(Pack(folder)) == []
    (shown,) = [
        one for one in numbers((folder / README).read_text()) if f"{one} times as fast" in (folder / README).read_text()
    ]
    replaced(folder / README, f"{shown} times as fast", f"{float(shown) + 0.01:.2f} times as fast")
    assert of_pack(Pack(folder)) == [f"{float(shown) + 0.01:.2f}"]

    by_hand = tmp_path / "by_hand"
    by_hand.mkdir()
    (by_hand / "scaling.csv").write_text("world_size,train_s,efficiency\n2,0.12345,0.735\n")
    text = "On 2026-11-28, commit 959cc55, torch 2.13.0: 123.4 ms, 73.5 % (figure 5.1), `0.99`."
    (by_hand / README).write_text(text)
    assert of_folder(by_hand) == []
    (by_hand / README).write_text(text.replace("73.5", "74.5"))
    assert of_folder(by_hand) == ["74.5"]

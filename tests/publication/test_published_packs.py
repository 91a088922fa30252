"""A pack is a function of records and study; who changes something in it is found out, by checksums or without."""

import json
import shutil
import subprocess
import zipfile
from dataclasses import replace
from pathlib import Path

import factory
import frictionless
import jsonschema
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from factory import Result
from ruamel.yaml import YAML

from ddp_hpc.analysis.compare import result_sets
from ddp_hpc.publication import citation, readme
from ddp_hpc.publication import pack as names
from ddp_hpc.publication.pack import Pack, PackError, digest, sums, write_zip
from ddp_hpc.publication.private import Private
from ddp_hpc.publication.publish import PackOptions, _check_place, _put, publish, publish_anew
from ddp_hpc.publication.rerun import DIFFERS, NOT_TOLD, _judged
from ddp_hpc.publication.verify import CHECKS, Inspection, NotToldError, verify
from ddp_hpc.runs import records
from ddp_hpc.runs.project import Project

# of DataCite 4.5, as the package `datacite` has it, and of CITATION.cff 1.2.0
SCHEMAS = Path(__file__).parent / "schemas"
SAID = {
    "title": "Made-up numbers",
    "creators": [
        {"name": "Carberry, Josiah", "orcid": "0000-0002-1825-0097", "affiliation": "Brown University"},
        {"name": "The Psychoceramics Group"},
    ],
    "licence": "CC-BY-4.0",
    "doi": "10.5555/made.up",
    "keywords": ["MPI"],
    "funding": [{"funder": "A Foundation", "award": "12"}],
    "related": ["10.5555/12345678", "https://example.org/paper"],
}
GRID = [
    {"exchange": "none", "world_size": 1, "batch_size": 16, "learning_rate": [0.1, 5.0]},
    {"exchange": "ring", "world_size": [2, 4], "batch_size": 16, "learning_rate": 0.1},
]
CLAIM = {
    "id": "faster",
    "statement": "two ranks are faster than one",
    "source": "X (2017)",
    "ours": {"value": {"table": "scaling", "column": "speedup", "where": {"world_size": 2, "kind": "fixed samples"}}},
    "expect": {"at_least": 1},
    "applies_when": ["quiet", "within_cores"],
}
STUDY = {"grid": GRID, "tables": ["runs", "winners", "scaling"], "figures": ["speedup"], "claims": [CLAIM]}
CRASH = "rank 3 on alpha7: MemoryError: no room for /home/jo/corpus"


def trained(spec):
    """Of one host and user, whose names stand where records have them; four ranks crash, a large rate diverges."""
    if spec.world_size == 4:
        return Result("crashed", CRASH)
    about = {
        "ranks": [{"rank": rank, "host": "alpha7"} for rank in range(spec.world_size)],
        "software": {"torch": "2.13.0", "python": "3.11.7"},
        "command": "mpiexec /home/jo/bin/python",
        "environment": {"SLURM_JOB_ACCOUNT": "p1234", "SLURM_JOB_UID": "1017", "OMP_NUM_THREADS": "1"},
    }
    ended = {"ended_at": f"2026-11-28T12:00:0{spec.world_size}+00:00", "wall_s": 3.25, "hosts": 1}
    return replace(factory.realistic(spec), columns=ended, provenance=about)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    root = tmp_path_factory.mktemp("published")
    study_runs = factory.made_up(root, trained, publication=SAID, **STUDY)
    for planned in study_runs.planned:
        if study_runs.store.finished(planned.run):
            for kind in ("evaluations", "gpu"):  # as real runs have them, so they are sealed
                records.write(kind, {}, study_runs.store.file(planned.run, kind), {"run": planned.run})
    return Project(root)


@pytest.fixture(scope="module")
def published(project, tmp_path_factory):
    folder = tmp_path_factory.mktemp("packs") / "pack"
    assert publish(project, "made_up", PackOptions(to=folder, redact=True)) == 0
    return folder


def found_by(check, folder):
    found = Inspection()
    CHECKS[check](Pack(folder), found)
    return found.problems


def test_a_stranger_finds_all_as_it_was_published(published, capsys):
    assert verify(published) == 0

    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0].split(maxsplit=1) for line in lines[:-1]] == [["ok", name] for name in CHECKS]
    assert "claims: judged again: claims: 1 " in "\n".join(lines)
    assert lines[-1] == "verified"


def test_the_same_records_give_the_same_bytes_as_a_zip_file_too(project, published, tmp_path, capsys):
    assert publish(project, "made_up", PackOptions(to=tmp_path / "a.zip", redact=True)) == 0
    write_zip(Pack(published), tmp_path / "b.zip")

    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        folder = "made_up-2026-11-28"
        assert {name.partition("/")[0] for name in archive.namelist()} == {folder}
        assert archive.read(f"{folder}/SHA256SUMS") == (published / "SHA256SUMS").read_bytes()
        archive.extractall(tmp_path)
    (tmp_path / folder / "figures" / "speedup.svg").unlink()
    (tmp_path / folder / "note.txt").write_text("added")
    assert sorted(found_by("checksums", tmp_path / folder)) == [
        "figures/speedup.svg is missing",
        "note.txt is not in SHA256SUMS",
    ]


def replaced(file, old, new):
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def better_winner(folder):
    replaced(folder / "tables" / "scaling.csv", "fixed samples", "fixed  samples")


def other_record(folder):
    file = next(folder.glob("runs/ring-w2*/run.parquet"))
    table = pq.read_table(file)
    at = table.column_names.index("final_loss")
    records.write_table(table.set_column(at, table.schema.field(at), [[0.001]]), file)


def other_spec(folder):
    replaced(next(folder.glob("runs/ring-w2*/spec.json")), '"learning_rate": 0.1', '"learning_rate": 0.2')


def other_study(folder):
    replaced(folder / "study.yaml", "samples_seen: 25600", "samples_seen: 51200")


def other_code(folder):
    replaced(folder / "code" / "exchange" / "ring.py", "% n", "% (n + 0)")


def no_divergence(folder):
    replaced(folder / names.CRATE, "FailedActionStatus", "CompletedActionStatus")


def run_left_out(folder):
    shutil.rmtree(next(folder.glob("runs/none-w1-b16-lr5*")))


def other_verdict(folder):
    file = folder / "tables" / "claims.parquet"
    table = pq.read_table(file)
    at = table.column_names.index("verdict")
    records.write_table(
        table.set_column(at, table.schema.field(at), pa.array(["contradicted"], table.schema.field(at).type)), file
    )


def other_creator(folder):
    replaced(folder / "CITATION.cff", "Carberry", "Somebody")


@pytest.mark.parametrize(
    ("change", "check", "said"),
    [
        (better_winner, "tables", "tables/scaling.csv is not what the records give"),
        (other_record, "records", "has other content than its run has left"),
        (other_spec, "specs", "spec.json of ring-w2"),
        (other_study, "specs", "the study does not ask for ring-w2"),
        (other_code, "code", "code/exchange/ring.py is not what ring-w2"),
        (no_divergence, "RO-Crate", "is diverged, its action says otherwise"),
        (run_left_out, "RO-Crate", "is described and not there"),
        (other_verdict, "claims", "faster: the pack says contradicted, the records reproduced"),
        (other_creator, "descriptions", "CITATION.cff is not what the pack gives"),
    ],
)
def test_a_change_is_found_even_by_whom_has_rewritten_the_checksums(published, tmp_path, change, check, said):
    folder = shutil.copytree(published, tmp_path / "pack")
    change(folder)
    assert found_by("checksums", folder) != []
    (folder / "SHA256SUMS").write_text(sums(Pack(folder)))
    assert found_by("checksums", folder) == []

    assert any(said in problem for problem in found_by(check, folder))


def made_by_others(folder, **others):
    """Say that a pack was made by other code or versions."""
    file = folder / names.MADE_BY
    file.write_text(json.dumps(json.loads(file.read_text()) | others))


def looked_at(check, folder):
    found = Inspection()
    CHECKS[check](Pack(folder), found)
    return found.looked_at


def test_figures_of_another_version_are_compared_by_their_words(published, tmp_path):
    folder = shutil.copytree(published, tmp_path / "pack")
    figure = folder / "figures" / "speedup.svg"
    figure.write_text(figure.read_text().replace("<g id=", "<g  id="))
    assert found_by("figures and page", folder) == ["figures/speedup.svg is not what the records give"]

    made_by_others(folder, matplotlib="1.0")
    assert found_by("figures and page", folder) == []
    assert "1 the same words" in looked_at("figures and page", folder)
    assert "made by matplotlib 1.0, here " in looked_at("figures and page", folder)

    replaced(figure, "<!-- ideal -->", "<!-- real -->")
    (problem,) = found_by("figures and page", folder)
    assert problem.startswith("figures/speedup.svg is not what the records give (made by matplotlib 1.0")


def test_numbers_of_other_code_are_compared_and_its_words_are_not(published, tmp_path):
    folder = shutil.copytree(published, tmp_path / "pack")
    made_by_others(folder, code="0123456789")
    scaling = folder / "tables" / "scaling.csv"
    table = pd.read_csv(scaling)
    table.drop(columns="efficiency").to_csv(scaling, index=False)  # a column that the code of then had not
    (folder / "figures" / "speedup.svg").write_text("<svg/>")

    assert found_by("tables", folder) == found_by("figures and page", folder) == []
    assert "1 the same values, 15 the same bytes (made by other code of ddp-hpc)" in looked_at("tables", folder)
    assert "1 not compared" in looked_at("figures and page", folder)
    with pytest.raises(NotToldError, match="other code of ddp-hpc: other words are no other results"):
        found_by("descriptions", folder)

    table.assign(speedup=table["speedup"] * 1.001).to_csv(scaling, index=False)
    assert found_by("tables", folder) == [
        "tables/scaling.csv is not what the records give (made by other code of ddp-hpc)"
    ]


def test_all_but_the_evidence_of_a_pack_can_be_made_anew(published, tmp_path):
    folder = shutil.copytree(published, tmp_path / "pack")
    shutil.rmtree(folder / "figures")
    better_winner(folder)

    publish_anew(folder)

    assert (folder / "SHA256SUMS").read_bytes() == (published / "SHA256SUMS").read_bytes()


def test_the_appendix_tells_machine_software_cost_and_commands_and_is_latex(published, tmp_path):
    text = (published / names.APPENDIX).read_text()
    for words in ("torch: 2.13.0", "comes with the program", "ddp-hpc rerun PACK", "times as fast", "rank-"):
        assert words in text
    if not shutil.which("pdflatex"):
        pytest.skip("needs pdflatex: the Debian package texlive-latex-base")
    (tmp_path / "paper.tex").write_text(
        f"\\documentclass{{article}}\\begin{{document}}\\input{{{published / 'appendix'}}}\\end{{document}}\n"
    )
    command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "paper.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, errors="replace")
    assert done.returncode == 0, done.stdout


def test_licences_are_there_in_full(published):
    texts = {file.stem: file.read_text() for file in (published / "LICENSES").iterdir()}
    assert texts.keys() == {"CC-BY-4.0", "Apache-2.0"}
    assert "Section 8" in texts["CC-BY-4.0"]
    assert "END OF TERMS AND CONDITIONS" in texts["Apache-2.0"]
    assert "(c) 2026 A; B" in citation.licence_text("MIT", 2026, "A; B")


def test_reading_a_pack_changes_nothing_in_it(published):
    """The seals of records have no dates in it, which no copy keeps."""
    assert len(result_sets.read(str(published)).runs) == 3
    assert len(list(published.glob("runs/*/seal.json"))) == 3
    assert found_by("checksums", published) == []


def test_diverged_and_failed_runs_are_failed_actions_with_their_reason(published):
    graph = json.loads((published / names.CRATE).read_text())["@graph"]
    actions = [entity for entity in graph if entity["@type"] == "CreateAction" and entity["@id"] != "#study"]

    errors = {one["@id"].split("-")[1] + one["@id"].split("-")[3]: one.get("error") for one in actions}
    assert errors["w1lr0.1"] is errors["w2lr0.1"] is None
    assert errors["w1lr5"].startswith("diverged: loss is nan at step")
    assert errors["w4lr0.1"] == "crashed: rank 3 on host-1: MemoryError: no room for [path]/corpus"
    assert all(("Failed" in one["actionStatus"]) == ("error" in one) for one in actions)


def test_the_readme_gives_winner_and_speedup_first(published):
    text = (published / "README.md").read_text()
    answer, _, rest = text.partition("## How sure")

    assert "2 ranks train in" in answer
    assert "times as fast" in answer
    assert "no exchange, 1 rank: batch size 16, learning rate 0.1 wins" in answer
    assert answer.count(" wins: ") == 1, "the only point of two ranks competes with nobody"
    assert answer.split("\n\n")[1] == "Claims: 1 reproduced."
    assert "### What the sources have measured or state\n" in answer
    assert "| two ranks are faster than one | X (2017) |  | 1." in answer
    assert "**reproduced**, expected at least 1" in answer
    assert "Arithmetic" not in answer
    assert "3 of 4 runs, 1 missing: 1 crashed" in rest
    assert "DOI [10.5555/made.up](https://doi.org/10.5555/made.up)" in rest


def test_the_readme_tells_measurements_arithmetic_and_our_expectations_apart():
    kinds = {"own": "confirmed", "measured": "undecided", "arithmetic": "confirmed"}
    row = {"source": "X", "published": 0.4, "unit": "s", "ours": 0.39, "ours_low": 0.3, "ours_high": 0.5, "runs": 3}
    frame = pd.DataFrame(
        {"statement": f"{kind}|", "kind": kind, "verdict": verdict, "reason": None, "expected": "at most 1"} | row
        for kind, verdict in kinds.items()
    )

    found = {words: rows for words, _, rows in readme._claims(frame)}

    assert [words.partition(" ")[0] for words in found] == ["What", "Arithmetic", "Expectations"]
    assert [rows[0][0] for rows in found.values()] == [r"measured\|", r"arithmetic\|", r"own\|"]
    assert [number for _, number, _ in readme._claims(frame)] == ["published", "published", "compared with"]
    assert found[readme.OF_KIND["measured"]][0][1:] == [
        *("X", "0.4 s", "0.39 s", "0.3 to 0.5", "3", "**undecided**, expected at most 1")
    ]
    far = frame.assign(published=0.1, verdict="reproduced")
    told = next(rows for words, _, rows in readme._claims(far) if words == readme.OF_KIND["measured"])[0][-1]
    assert told == "**reproduced (the direction, not the number)**, expected at most 1"


def test_what_looks_private_is_listed_and_refused_or_replaced(project, published, tmp_path, capsys):
    assert publish(project, "made_up", PackOptions(to=tmp_path / "pack")) == 1

    said = capsys.readouterr().err
    assert "host alpha7: ends of attempts (1), records" in said
    assert "account p1234: records" in said
    assert "user jo: " in said
    assert "path /home/jo/bin/python, /home/jo/corpus: ends of attempts (1), records (6)" in said
    assert said.count("this looks private: path") == 1
    assert "`--redact` puts other words in its place" in said
    assert not (tmp_path / "pack").exists()
    for file in published.rglob("*"):
        kept = file.read_bytes() if file.is_file() else b""
        assert not any(word in kept for word in (b"alpha7", b"p1234", b"/home/"))
    about = records.read_metadata(next(published.glob("runs/ring-w2*/steps.parquet")))["provenance"]
    assert about["environment"] == {"SLURM_JOB_ACCOUNT": "account-1", "SLURM_JOB_UID": "[user]", "OMP_NUM_THREADS": "1"}
    assert about["ranks"] == [{"rank": 0, "host": "host-1"}, {"rank": 1, "host": "host-1"}]


def test_words_stand_for_words_alike_everywhere_and_paths_of_the_system_stay():
    private = Private()
    private.learn({"ranks": [{"host": "n1"}, {"host": "n12"}], "SLURM_JOB_USER": "eve", "threads": 4})

    assert private.without("n12 waits for n1; n123 and eve-1 do not; eve does") == (
        "host-2 waits for host-1; n123 and eve-1 do not; user-1 does"
    )
    assert private.without("/usr/lib/x.so and /proc/self/stat, 3/4 of https://a.b/c/d") == (
        "/usr/lib/x.so and /proc/self/stat, 3/4 of https://a.b/c/d"
    )
    assert private.without("by eve@example.org in /scratch/eve/run 7") == "by [e-mail address] in [path]/run 7"


@pytest.mark.parametrize(
    ("keys", "train", "said"),
    [
        ({"publication": {"licence": "MIT"}}, trained, "no creators: write `publication: {creators:"),
        (
            {"publication": {"creators": SAID["creators"]}},
            trained,
            "no licence: write `publication: {licence: CC-BY-4.0}`",
        ),
        ({}, trained, "no licence"),
        (
            {"publication": SAID},
            lambda spec: Result("missing"),
            "4 of 4 runs missing: 4 not yet run; `ddp-hpc run made_up`",
        ),
    ],
)
def test_what_cannot_be_published_is_refused_with_what_to_do(tmp_path, capsys, keys, train, said):
    factory.made_up(tmp_path, train, **STUDY | keys)

    assert publish(Project(tmp_path), "made_up", PackOptions(check=True, allow_private=True)) == 1
    assert said in capsys.readouterr().err


def test_one_file_says_for_all_studies_who_publishes(tmp_path, capsys):
    factory.made_up(tmp_path, trained, **STUDY)
    file = tmp_path / "config" / "publication.yaml"
    file.write_text("creators: [{name: 'Doe, Jane'}]\nlicence: CC0-1.0\n")
    assert publish(Project(tmp_path), "made_up", PackOptions(check=True, allow_private=True)) == 0
    assert capsys.readouterr().out == "made_up can be published\n"

    file.write_text("creators: [{name: Jane, orcid: 0000-0002-1825-0098}]\nlicence: CC-BY-4\n")
    with pytest.raises(ValueError, match=r"publication.yaml:1: .*orcid: .*a slip in a digit") as wrong:
        publish(Project(tmp_path), "made_up", PackOptions())
    assert "publication.yaml:2: licence: given 'CC-BY-4' (string), expected: 'CC-BY-4.0'" in str(wrong.value)


def test_of_some_records_only_tables_cannot_be_made_anew_and_this_is_said(project, tmp_path):
    folder = tmp_path / "pack"
    assert publish(project, "made_up", PackOptions(to=folder, redact=True, runs="winners")) == 0

    assert len(Pack(folder).runs) == 2
    with pytest.raises(NotToldError, match="holds 2 of 4 runs"):
        found_by("tables", folder)
    for check in ("checksums", "records", "specs", "code", "RO-Crate", "data package", "descriptions"):
        assert found_by(check, folder) == []


def measured(spec):
    result = factory.realistic(spec)

    def of_rank(step, rank):
        loss, step_s = result.loss[step - 1], 1e-3 * (1 + rank)
        return {"step_s": step_s, "rank_loss": loss, **factory.phases(spec, step_s)}

    return replace(result, columns={"ended_at": "2026-11-28T12:00:00+00:00"}, of_rank=of_rank)


def test_of_steps_the_losses_alone_are_kept_where_all_tables_follow_from_them(tmp_path, capsys):
    grid = {"exchange": "ring", "world_size": [2, 4], "batch_size": 16, "learning_rate": 0.1}
    tables = ["noise", "noise_curves", "runs"]
    factory.made_up(tmp_path, measured, publication=SAID, grid=grid, tables=tables, figures=["noise"])
    for steps in ("all", "losses"):
        asked = PackOptions(to=tmp_path / steps, allow_private=True, steps=steps)
        assert publish(Project(tmp_path), "made_up", asked) == 0

    assert verify(tmp_path / "losses") == 0
    for name in ("noise", "noise_curves"):
        whole, kept = ((tmp_path / steps / "tables" / f"{name}.parquet").read_bytes() for steps in ("all", "losses"))
        assert kept == whole
    slow = [pd.read_parquet(tmp_path / steps / "tables" / "runs.parquet")["slow_ranks"] for steps in ("all", "losses")]
    assert (slow[0].notna().all(), slow[1].isna().all()) == (True, True)
    whole, kept = (
        records.read("steps", max((tmp_path / one).glob("runs/*/steps.parquet"))) for one in ("all", "losses")
    )
    assert whole.num_rows == 4 * kept.num_rows
    assert kept["rank_loss"].null_count == len(kept) > kept["loss"].null_count
    said = (tmp_path / "losses" / "README.md").read_text()
    assert "when its steps ended, with which loss (not what else ranks measured, so not which were slow)" in said


def test_of_steps_all_is_kept_where_a_table_needs_it(tmp_path, capsys):
    factory.made_up(tmp_path, measured, publication=SAID, **STUDY | {"tables": ["stragglers", "runs"], "claims": []})

    assert publish(Project(tmp_path), "made_up", PackOptions(steps="losses", allow_private=True)) == 1

    assert "tables that need more than the losses of steps: stragglers; `--steps all` publishes them" in (
        capsys.readouterr().err
    )


def test_a_folder_that_is_no_pack_is_neither_replaced_nor_read(project, tmp_path):
    (tmp_path / "mine.txt").write_text("kept")

    with pytest.raises(PackError, match="is there and is no pack"):
        publish(project, "made_up", PackOptions(to=tmp_path, redact=True))
    assert (tmp_path / "mine.txt").read_text() == "kept"
    with pytest.raises(PackError, match="holds no SHA256SUMS; expected: a pack"):
        verify(tmp_path)
    with pytest.raises(PackError, match="cannot be read as a zip file"):
        verify(tmp_path / "mine.txt")


def test_records_that_a_pack_was_made_from_are_not_told_as_trained_again(project, published):
    pack = Pack(published)
    runs = [one for one in pack.study_runs.planned if project.store.finished(one.run)]

    found = _judged(pack, project.store, [(one, one) for one in runs])

    assert found.word == NOT_TOLD
    assert found.untrained == len(runs) > 0
    assert all("not trained again" in line for line in found.lines)


@pytest.mark.parametrize(
    ("model", "word"), [("AuthenticAMD 25 1 1", DIFFERS), ("AuthenticAMD 25 17 1", NOT_TOLD), (None, NOT_TOLD)]
)
def test_losses_are_promised_to_the_bit_on_the_same_kind_of_processor_alone(tmp_path, model, word):
    """Virtual machines give several kinds of processors one name, and each has kernels of its own."""

    def trained_on(model, loss):
        def train(spec):
            result, software = factory.realistic(spec), {"torch": "2.13.0", "numpy": "2.4.6"}
            machine = {"vectors": "avx2", "cpu_model": model}
            about = {"software": software, "machine": machine, "ranks": [{"rank": 0, "cpu": "AMD EPYC"}]}
            t_s = tuple(loss * t_s for t_s in result.t_s)
            ended = {"ended_at": "2026-11-28T12:00:00+00:00"}
            losses = tuple(loss * one for one in result.loss)
            return replace(result, t_s=t_s, loss=losses, provenance=about, columns=ended)

        return train

    one = {"grid": {"exchange": "ring", "world_size": 2, "batch_size": 16, "learning_rate": 0.1}, "figures": []}
    made = {"publication": SAID, "tables": ["runs"], **one}
    again = factory.made_up(tmp_path / "again", trained_on(model, 1.5), **made)
    factory.made_up(tmp_path, trained_on("AuthenticAMD 25 1 1", 1.0), **made)
    assert publish(Project(tmp_path), "made_up", PackOptions(to=tmp_path / "pack", allow_private=True)) == 0
    pack = Pack(tmp_path / "pack")

    found = _judged(pack, again.store, [(one, one) for one in pack.study_runs.planned])

    assert found.word == word
    assert ("processor are the same" in found.lines[0]) == (word == DIFFERS)


@pytest.mark.parametrize("name", ["thesis.zip", "thesis.ZIP", "notes", "photos.zip/one"])
def test_a_file_that_is_no_pack_is_not_replaced(project, tmp_path, name):
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text("kept")
    place = file.parent if file.name == "one" else file

    with pytest.raises(PackError, match="is there and is no pack"):
        publish(project, "made_up", PackOptions(to=place, redact=True))

    assert file.read_text() == "kept"


def test_a_pack_takes_the_place_of_an_earlier_one(published, tmp_path):
    zipped, link = tmp_path / "pack.ZIP", tmp_path / "link"
    link.symlink_to(tmp_path / "pack")
    for _ in range(2):
        shutil.copytree(published, tmp_path / "made")
        _put(Pack(tmp_path / "made"), zipped)
        _check_place(zipped)
        _put(Pack(tmp_path / "made"), link)
        _check_place(link)

    assert zipfile.is_zipfile(zipped)
    assert (tmp_path / "pack" / names.SUMS).is_file()


def test_the_data_package_names_units_and_meanings_and_the_right_digests(published):
    package = json.loads((published / names.DATA_PACKAGE).read_text())
    tables = {one["name"]: one for one in package["resources"]}

    columns = {one["name"]: one for one in tables["table-runs"]["schema"]["fields"]}
    assert (columns["train_s"]["unit"], columns["train_s"]["type"]) == ("s", "number")
    assert columns["drifting"] | {"title": ""} == {
        "name": "drifting",
        "type": "boolean",
        "title": "",
        "description": "that trend is beyond the noise of the steps, and at least 5 %",
    }
    assert tables["table-runs"]["hash"] == f"sha256:{digest(published / 'tables' / 'runs.csv')}"


@pytest.mark.parametrize(
    ("name", "schema", "needed"),
    [(names.DATACITE, "datacite-v4.5", "publisher"), (names.CITATION, "cff-1.2.0", "authors")],
)
def test_citations_are_as_their_standards_say(published, name, schema, needed):
    content = YAML(typ="safe", pure=True).load((published / name).read_text())  # JSON is YAML
    rules = json.loads((SCHEMAS / f"{schema}.json").read_text())

    jsonschema.validate(content, rules)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({key: value for key, value in content.items() if key != needed}, rules)


def test_the_data_package_is_as_its_standard_says(published, tmp_path):
    """Types of columns, digests of files: `frictionless` reads all tables."""
    report = frictionless.validate(str(published / names.DATA_PACKAGE))
    assert report.flatten(["name", "message"]) == []
    assert len(report.tasks) == len(json.loads((published / names.DATA_PACKAGE).read_text())["resources"]) > 10

    folder = shutil.copytree(published, tmp_path / "pack")
    replaced(folder / "tables" / "runs.csv", "crashed", "Crashed")
    assert [task.name for task in frictionless.validate(str(folder / names.DATA_PACKAGE)).tasks if not task.valid] == [
        "table-runs"
    ]

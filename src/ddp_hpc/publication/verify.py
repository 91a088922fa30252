"""`ddp-hpc verify PACK`: whether a pack is as it was published, and follows from its records; a line per check."""

import csv
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ddp_hpc.analysis.claim_verdict import summary
from ddp_hpc.config import spec as specs
from ddp_hpc.config.errors import StudyError
from ddp_hpc.publication import anew, crate, derived, evidence
from ddp_hpc.publication import pack as names
from ddp_hpc.publication.pack import Pack, PackError, digest, opened, read_sums
from ddp_hpc.runs import identity, records
from ddp_hpc.runs.attempt import Store
from ddp_hpc.system.terminal import counted

OK, DIFFERS, UNREADABLE = 0, 1, 2
SHOWN = 5  # problems of one check


class NotToldError(Exception):
    """Why a check says nothing of this pack."""


@dataclass
class Inspection:
    """What a check has found: what it looked at, and what is not as it should be."""

    looked_at: str = ""
    problems: list[str] = field(default_factory=list)

    def expect(self, fits: bool, problem: str) -> None:
        """Note a problem unless something fits."""
        if not fits:
            self.problems.append(problem)


def verify(given: Path, trusted: bool = False) -> int:
    """Check a pack, print a line per check, and return 0, 1 if something differs, 2 if the pack cannot be read.

    Code that the pack brings for its tables and figures runs only if it is `trusted`.
    """
    code = OK
    with opened(given, trusted) as pack:
        for name, check in CHECKS.items():
            found = Inspection()
            try:
                check(pack, found)
                word, code = ("differs", DIFFERS) if found.problems else ("ok", code)
            except NotToldError as why:
                word, found = "not told", Inspection(str(why))
            except (PackError, StudyError, records.RecordError, OSError, KeyError, ValueError, TypeError) as error:
                if not code:  # what cannot be read is the first thing that is wrong, not what follows from another
                    code = UNREADABLE
                told = str(error) if isinstance(error, ValueError | OSError) else f"{type(error).__name__} {error}"
                word, found = "cannot be read", Inspection(problems=[told.replace(f"{pack.root}/", "")])
            print(f"{word:9} {name}: {'; '.join(_shown(found)) or found.looked_at}")
    print(
        {OK: "verified", DIFFERS: "NOT verified: something differs", UNREADABLE: "NOT verified: cannot be read"}[code]
    )
    return code


def _shown(found: Inspection) -> list[str]:
    more = [f"... and {len(found.problems) - SHOWN} more"] if len(found.problems) > SHOWN else []
    return found.problems[:SHOWN] + more


def checksums(pack: Pack, found: Inspection) -> None:
    """Files are as SHA256SUMS has them: none is missing, changed, or there beside them."""
    sums = read_sums(pack)
    for name in sorted(sums.keys() | set(pack.files)):
        if name not in sums:
            found.problems.append(f"{name} is not in {names.SUMS}")
        elif name not in pack.files:
            found.problems.append(f"{name} is missing")
        else:
            found.expect(digest(pack.root / name) == sums[name], f"{name} has changed")
    found.looked_at = f"{counted(len(sums), 'file')}, each as {names.SUMS} has it"


def all_records(pack: Pack, found: Inspection) -> None:
    """Records can be read whole, and are those that their seals name."""
    kept = 0
    for run in pack.runs:
        folder = Store(pack.root).run(run)
        if damage := folder.damage(trust_dates=False):
            found.problems.append(damage.replace(f"{pack.root}/", ""))
            continue
        for kind in evidence.KINDS if folder.has_record else ():
            if folder.record(kind).is_file():
                kept += 1
                records.read(kind, folder.record(kind))
    found.looked_at = f"{counted(kept, 'record')} of {counted(len(pack.runs), 'run')}, read whole"


def spec_hashes(pack: Pack, found: Inspection) -> None:
    """A run is called by the hash of its spec; its record says the same, and the study asks for it."""
    planned = {one.run for one in pack.study_runs.planned}
    for run in pack.runs:
        folder = Store(pack.root).run(run)
        spec = specs.load(folder.plan["spec"])
        hashed = identity.parts(run)[1]
        found.expect(spec.hash == hashed, f"spec.json of {run} has the hash {spec.hash}")
        found.expect(run in planned, f"the study does not ask for {run}")
        if folder.has_record:
            row = records.read_run(folder.record()).to_pylist()[0]
            other = [name for name, value in spec.columns().items() if row[name] != value]
            other += [name for name, value in (("run", run), ("spec_hash", hashed)) if row[name] != value]
            found.expect(not other, f"the record of {run} has another {', '.join(other)}")
    asked = {spec.hash for spec in pack.expansion.specs}
    lacking = len(asked - {identity.parts(run)[1] for run in pack.runs})
    if pack.whole:
        found.expect(not lacking, f"{counted(lacking, 'run')} of the study not here")
    found.looked_at = f"{counted(len(pack.runs), 'spec')}, each of the hash that its run has in its name"


def code_hashes(pack: Pack, found: Inspection) -> None:
    """The files of code are those that the runs name, and make up the hash that each run has in its name."""
    there = {
        prefix + file.relative_to(pack.root / folder).as_posix(): evidence.code_hash_of(file)
        for folder, prefix in ((names.CODE, ""), (names.PROJECT, identity.OWN))
        for file in sorted((pack.root / folder).rglob("*"))
        if file.is_file()
    }
    named: set[str] = set(pack.own_outputs)
    for run in pack.runs:
        folder = Store(pack.root).run(run)
        files: dict[str, str] = folder.plan["files"]
        found.expect(identity.hash_of(files) == identity.parts(run)[2], f"spec.json of {run} names other code")
        if folder.has_record:
            recorded = records.read_metadata(folder.record()).get("files", files)
            found.expect(recorded == files, f"the record of {run} names other code")
        for name in files.keys() - {identity.VERSION} - named:
            fits = there.get(name) == files[name]
            found.expect(fits, f"{names.place_of(name)} is not what {run} was trained by")
        named |= files.keys()
    if pack.whole:
        for name in there.keys() - named:
            found.problems.append(f"{names.place_of(name)} is of no run")
    found.looked_at = f"{counted(len(there), 'file')}, each of the hash that the runs name"


def _may_run(pack: Pack) -> None:
    """Raise a NotToldError where code would run that the pack brings and nobody has called trusted."""
    own = sorted(map(names.place_of, pack.own_outputs))
    if own and not pack.trusted:
        raise NotToldError(f"made by code of the pack, {', '.join(own)}: read it; then `--trust` runs it")


def _anew(make: Callable[[Pack, Path], None], *folders: str) -> Callable[[Pack, Inspection], None]:
    """Return the check that what `make` writes into these folders is what the pack has."""

    def check(pack: Pack, found: Inspection) -> None:
        _may_run(pack)
        if not pack.whole:
            raise NotToldError(
                f"the pack holds {len(pack.runs)} of {len(pack.tables['runs'])} runs: nothing is made anew"
            )
        with tempfile.TemporaryDirectory(prefix="ddp-hpc-anew-") as folder:
            root = Path(folder)
            if names.TABLES not in folders:
                (root / names.TABLES).symlink_to((pack.root / names.TABLES).resolve())
            make(pack, root)
            compared = {name: anew.compare(pack, root, name) for name in folders}
            found.problems += [problem for one in compared.values() for problem in one.problems]
            found.looked_at = "; ".join(f"{name}/: {one}" for name, one in compared.items())
            if any(one.counts.total() > one.counts["the same bytes"] for one in compared.values()):
                found.looked_at += f" (made by {anew.otherwise(pack) or 'another processor'})"

    return check


def claims(pack: Pack, found: Inspection) -> None:
    """Each claim has the verdict that the records give it."""
    if not pack.study.claims:
        raise NotToldError("the study has none")
    _may_run(pack)
    if not pack.whole:
        raise NotToldError(f"the pack holds {len(pack.runs)} of {len(pack.tables['runs'])} runs")
    from ddp_hpc.analysis.tables import claims as judged

    again = judged.build(pack.study_runs)
    there = dict(zip(pack.tables["claims"]["id"], pack.tables["claims"]["verdict"], strict=True))
    for claim, verdict in zip(again["id"], again["verdict"], strict=True):
        found.expect(there.get(claim) == verdict, f"{claim}: the pack says {there.get(claim)}, the records {verdict}")
    found.looked_at = f"judged again: {summary(zip(again['kind'], again['verdict'], strict=True))}"


def descriptions(pack: Pack, found: Inspection) -> None:
    """The pack describes itself as its tables and records give it."""
    if others := anew.otherwise(pack):
        raise NotToldError(f"made by {others}: other words are no other results")
    made = derived.descriptions(pack)
    if pack.whole:
        made[names.FACTS] = derived.facts(pack)
    for name, text in made.items():
        file = pack.root / name
        found.expect(file.is_file() and file.read_text(encoding="utf-8") == text, f"{name} is not what the pack gives")
    found.looked_at = f"{counted(len(made), 'file')} made anew, the same bytes"


def crate_rules(pack: Pack, found: Inspection) -> None:
    """The crate describes files that are there, names nothing that it does not describe, and has an action per run."""
    graph = json.loads((pack.root / names.CRATE).read_text(encoding="utf-8"))["@graph"]
    known = {entity["@id"]: entity for entity in graph}
    found.expect(len(known) == len(graph), "something is described twice")
    for entity in graph:
        for name in _named(entity):
            found.expect(name in known or "://" in name, f"{entity['@id']} names {name}, which is not described")
        if "File" in _listed(entity["@type"]):
            found.expect((pack.root / entity["@id"]).is_file(), f"{entity['@id']} is described and not there")
    described = {name for name, entity in known.items() if "File" in _listed(entity["@type"])}
    for name in sorted(set(pack.files) - described - {names.CRATE}):
        found.problems.append(f"{name} is there and not described")
    for run, status in zip(pack.tables["runs"]["run"], pack.tables["runs"]["status"], strict=True):
        action = known.get(f"#{run}", {})
        expected = crate.OK if status == "ok" else crate.FAILED
        found.expect(action.get("actionStatus") == expected, f"{run} is {status}, its action says otherwise")
    found.looked_at = f"{counted(len(graph), 'entity').replace('entitys', 'entities')}, each file and run described"


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _named(entity: Mapping[str, Any]) -> Iterator[str]:
    for value in entity.values():
        yield from (one["@id"] for one in _listed(value) if isinstance(one, dict) and "@id" in one)


def package_rules(pack: Pack, found: Inspection) -> None:
    """The resources of the data package are there, with these bytes, and tables have the columns it says."""
    package = json.loads((pack.root / names.DATA_PACKAGE).read_text(encoding="utf-8"))
    for resource in package["resources"]:
        file = pack.root / resource["path"]
        if not file.is_file():
            found.problems.append(f"{resource['path']} is missing")
            continue
        found.expect(resource["hash"] == f"sha256:{digest(file)}", f"{resource['path']} has another digest")
        if "schema" in resource:
            with open(file, encoding="utf-8", newline="") as opened_file:
                head = next(csv.reader(opened_file), [])
            columns = [column["name"] for column in resource["schema"]["fields"]]
            found.expect(head == columns, f"{resource['path']} has other columns")
    found.looked_at = f"{counted(len(package['resources']), 'resource')}, each there with its digest and columns"


CHECKS: dict[str, Callable[[Pack, Inspection], None]] = {
    "checksums": checksums,
    "records": all_records,
    "specs": spec_hashes,
    "code": code_hashes,
    "tables": _anew(derived.make_tables, names.TABLES),
    "claims": claims,
    "figures and page": _anew(derived.make_figures, names.FIGURES, names.REPORT),
    "RO-Crate": crate_rules,
    "data package": package_rules,
    "descriptions": descriptions,
}

"""A pack as a Workflow Run RO-Crate (profile 0.5): the study is the workflow, each training an action.

A training that diverged or failed is a failed action, and its error is the reason that its record has.
https://www.researchobject.org/workflow-run-crate/profiles/workflow_run_crate
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote

import pandas as pd

from ddp_hpc import __version__
from ddp_hpc.analysis.columns import rows_of
from ddp_hpc.config.publication import LICENCES, Creator, is_doi
from ddp_hpc.publication import pack as names
from ddp_hpc.publication.citation import CODE_LICENCE, SOFTWARE, description
from ddp_hpc.publication.pack import Pack, digest

Entity = dict[str, Any]

CONTEXT = "https://w3id.org/ro/crate/1.1/context"  # no term is used that only the context of run crates has
PROFILES = {
    "https://w3id.org/ro/wfrun/process/0.5": ("Process Run Crate", "0.5"),
    "https://w3id.org/ro/wfrun/workflow/0.5": ("Workflow Run Crate", "0.5"),
    "https://w3id.org/workflowhub/workflow-ro-crate/1.0": ("Workflow RO-Crate", "1.0"),
}
OK, FAILED = "http://schema.org/CompletedActionStatus", "http://schema.org/FailedActionStatus"
LANGUAGE, PROGRAM, WHOLE = "#study-language", SOFTWARE, "#study"
_HOMES = {  # of software that the records give versions of
    "cuda": "https://developer.nvidia.com/cuda-toolkit",
    "nccl": "https://developer.nvidia.com/nccl",
    "numpy": "https://numpy.org",
    "python": "https://www.python.org",
    "torch": "https://pytorch.org",
}
_FORMS = {
    ".csv": "text/csv",
    ".parquet": "application/vnd.apache.parquet",
    ".json": "application/json",
    ".md": "text/markdown",
    ".tex": "application/x-tex",
    ".svg": "image/svg+xml",
    ".pdf": "application/pdf",
    ".png": "image/png",
    ".html": "text/html",
    ".yaml": "application/yaml",
    ".py": "text/x-python",
}


def of(pack: Pack, facts: Mapping[str, Any], beside: Collection[str]) -> Entity:
    """Return what ro-crate-metadata.json has to say.

    `facts` are those of `derived.facts`; the files `beside` it need not be there yet.
    """
    files = sorted({*(name for name in pack.files if not name.startswith(f"{names.RUNS}/")), *beside} - {names.CRATE})
    graph = [
        {
            "@id": names.CRATE,
            "@type": "CreativeWork",
            "about": {"@id": "./"},
            "conformsTo": [
                _to("https://w3id.org/ro/crate/1.1"),
                _to("https://w3id.org/workflowhub/workflow-ro-crate/1.0"),
            ],
        },
        _root(pack, files),
        *_profiles(),
        *_workflow(pack, facts),
        *_people(pack),
        *_parts(pack, files),
        *_actions(pack),
    ]
    return {"@context": CONTEXT, "@graph": graph}


def _to(identity: str) -> Entity:
    return {"@id": identity}


def _here(name: str) -> str:
    """Return what a thing is called within the crate, by its name."""
    return f"#{quote(name)}"


def _all(things: Iterable[Entity]) -> Any:
    """Return several things as a list, one as it is: JSON-LD in its compact form."""
    listed = list(things)
    return listed[0] if len(listed) == 1 else listed


def _root(pack: Pack, files: list[str]) -> Entity:
    said = pack.publication
    runs = [_action_id(row) for row in rows_of(pack.tables["runs"])]
    return {
        "@id": "./",
        "@type": "Dataset",
        "name": pack.title,
        "description": description(pack),
        "datePublished": f"{pack.newest:%Y-%m-%d}",
        "license": _to(LICENCES[str(said.licence)]),
        "author": _all(_to(_creator_id(creator)) for creator in said.creators),
        "publisher": _to("#publisher"),
        "keywords": ", ".join(said.keywords) or "scaling study",
        "conformsTo": [_to(profile) for profile in PROFILES],
        "mainEntity": _to(names.STUDY),
        "hasPart": [*map(_to, files), *(_to(f"runs/{run}/") for run in pack.runs)],
        "mentions": [_to(WHOLE), *map(_to, runs)],
        **({"identifier": _address(said.doi)} if said.doi else {}),
        **({"citation": _all(_to(_address(work)) for work in said.related)} if said.related else {}),
        **({"funder": _all(_to(_here(one.funder)) for one in said.funding)} if said.funding else {}),
    }


def _address(work: str) -> str:
    return f"https://doi.org/{work}" if is_doi(work) else work


def _profiles() -> Iterator[Entity]:
    for address, (name, version) in PROFILES.items():
        yield {"@id": address, "@type": "CreativeWork", "name": name, "version": version}


def _workflow(pack: Pack, facts: Mapping[str, Any]) -> Iterator[Entity]:
    """Yield the study as a workflow, its language, and what has run it."""
    known = {**facts["differing"], **facts["common"]}
    versions = {name: known[f"software.{name}"] for name in _HOMES if f"software.{name}" in known}
    yield {
        "@id": names.STUDY,
        "@type": ["File", "SoftwareSourceCode", "ComputationalWorkflow"],
        "name": pack.study.name,
        "description": pack.study.description or pack.study.name,
        "programmingLanguage": _to(LANGUAGE),
        "license": _to(LICENCES[str(pack.publication.licence)]),
        "creator": _all(_to(_creator_id(creator)) for creator in pack.publication.creators),
        "dateCreated": f"{pack.newest:%Y-%m-%d}",
        "encodingFormat": "application/yaml",
        "version": digest(pack.root / names.STUDY)[:10],
        "sdPublisher": _to("#publisher"),
    }
    yield {
        "@id": LANGUAGE,
        "@type": "ComputerLanguage",
        "name": "ddp-hpc study",
        "alternateName": "ddp-hpc",
        "identifier": _to(SOFTWARE),
        "url": _to(SOFTWARE),
        "version": __version__,
    }
    yield {
        "@id": PROGRAM,
        "@type": "SoftwareApplication",
        "name": "ddp-hpc",
        "softwareVersion": __version__,
        "url": _to(SOFTWARE),
        "license": _to(LICENCES[CODE_LICENCE]),
        "softwareRequirements": _all(_to(_HOMES[name]) for name in versions),
    }
    for name, values in versions.items():
        said = ", ".join(str(value) for value, _ in values)
        about = {"name": name, "softwareVersion": said, "url": _to(_HOMES[name])}
        yield {"@id": _HOMES[name], "@type": "SoftwareApplication", **about}
    for licence in {LICENCES[name]: name for name in (str(pack.publication.licence), CODE_LICENCE)}.items():
        yield {
            "@id": licence[0],
            "@type": "CreativeWork",
            "name": licence[1],
            "description": f"the licence {licence[1]}",
        }


def _creator_id(creator: Creator) -> str:
    return f"https://orcid.org/{creator.orcid}" if creator.orcid else _here(creator.name)


def _people(pack: Pack) -> Iterator[Entity]:
    said = pack.publication
    organisations = {"#publisher": said.publisher}
    for creator in said.creators:
        found: Entity = {"@id": _creator_id(creator), "@type": "Person" if creator.parts else "Organization"}
        found["name"] = " ".join(reversed(creator.parts)) if creator.parts else creator.name
        if creator.parts:
            found |= {"familyName": creator.parts[0], "givenName": creator.parts[1]}
        if creator.affiliation:
            institution = creator.ror or _here(creator.affiliation)
            organisations[institution] = creator.affiliation
            found["affiliation"] = _to(institution)
        yield found
    for one in said.funding:
        organisations[_here(one.funder)] = one.funder
    for address, name in organisations.items():
        yield {"@id": address, "@type": "Organization", "name": name}
    for work in said.related:
        yield {"@id": _address(work), "@type": "CreativeWork", "name": work}


def _parts(pack: Pack, files: list[str]) -> Iterator[Entity]:
    yield from (_file(name, name) for name in files if name != names.STUDY)
    for run in pack.runs:
        folder = pack.root / names.RUNS / run
        parts = [name for name in pack.files if name.startswith(f"{names.RUNS}/{run}/")]
        about = (
            "records of a training, with units and meanings of their columns" if list(folder.glob("*.parquet")) else ""
        )
        yield {
            "@id": f"{names.RUNS}/{run}/",
            "@type": "Dataset",
            "name": run,
            "description": about or "a training that left no record: its spec, and how it ended",
            "hasPart": _all(map(_to, parts)),
        }
        yield from (_file(name, name.removeprefix(f"{names.RUNS}/{run}/")) for name in parts)


def _file(path: str, name: str) -> Entity:
    suffix = path[path.rfind(".") :] if "." in path else ""
    found: Entity = {"@id": path, "@type": "File", "name": name, "encodingFormat": _FORMS.get(suffix, "text/plain")}
    return found | ({"about": _to("./")} if path == names.README else {})


def _action_id(row: Mapping[str, Any]) -> str:
    return f"#{row['run']}"


def _actions(pack: Pack) -> Iterator[Entity]:
    """Yield the workflow as one action, and each training as one, failed ones with their reason."""
    runs = rows_of(pack.tables["runs"])
    agents = _all(_to(_creator_id(creator)) for creator in pack.publication.creators)
    results = [name for name in pack.files if name.startswith((f"{names.TABLES}/", f"{names.FIGURES}/"))]
    started = [start for row in runs if (start := _times(row).get("startTime"))]
    yield {
        "@id": WHOLE,
        "@type": "CreateAction",
        "name": f"the study {pack.study.name}",
        "description": f"{len(runs)} trainings of the study {pack.study.name}, and its tables and figures",
        "instrument": _to(names.STUDY),
        "agent": agents,
        "result": _all(map(_to, results)),
        "actionStatus": OK,
        **({"startTime": min(started)} if started else {}),
        "endTime": pack.newest.isoformat(timespec="seconds"),
    }
    there = set(pack.runs)
    for row in runs:
        failed = row["status"] != "ok"
        yield {
            "@id": _action_id(row),
            "@type": "CreateAction",
            "name": str(row["run"]),
            "description": _in_words(row),
            "instrument": _to(PROGRAM),
            "agent": agents,
            "object": _to(f"runs/{row['run']}/spec.json" if row["run"] in there else names.STUDY),
            "result": _to(f"runs/{row['run']}/") if row["run"] in there else [],
            "actionStatus": FAILED if failed else OK,
            **({"error": f"{row['status']}: {_text(row['reason']) or 'no reason is known'}"} if failed else {}),
            **_times(row),
        }


def _text(value: Any) -> str:
    return "" if pd.isna(value) else str(value)


def _in_words(row: Mapping[str, Any]) -> str:
    what = f"{row['model']} on {row['dataset']}, exchange {row['exchange']}, {row['world_size']} rank(s), batch size "
    what += f"{row['batch_size']} each, learning rate {row['learning_rate']:g}, seed {row['seed']}"
    return f"training of {what}: {row['status']}"


def _times(row: Mapping[str, Any]) -> dict[str, str]:
    """Return when a training began and ended, as far as its record tells."""
    if not (ended := _text(row["ended_at"])):
        return {}
    end = datetime.fromisoformat(ended)
    times = {"endTime": end}
    if not pd.isna(row["wall_s"]):
        times = {"startTime": end - timedelta(seconds=float(row["wall_s"]))} | times
    return {name: time.isoformat(timespec="seconds") for name, time in times.items()}  # validators take whole seconds

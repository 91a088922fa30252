"""Who has made a result set, and how it may be used, in the languages of DataCite, Zenodo, CITATION.cff and REUSE."""

from importlib import metadata
from io import StringIO
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from ddp_hpc import __version__
from ddp_hpc.config.publication import LICENCES, Creator, is_doi
from ddp_hpc.publication.pack import Pack

SOFTWARE = "https://github.com/ddp-hpc/ddp-hpc"
CODE_LICENCE = "Apache-2.0"
TEXTS = Path(__file__).parent / "licences"  # from the npm package spdx-license-list 6.12.0


def description(pack: Pack) -> str:
    """Return what a pack is, in a few sentences."""
    said = pack.publication.notes.strip()
    counted = len(pack.tables["runs"])
    text = f"{pack.study.description or pack.study.name}. Records, tables and figures of {counted} trainings, made by "
    return f"{text}ddp-hpc {__version__}; `ddp-hpc verify` checks them.{f' {said}' if said else ''}"


def home(pack: Pack) -> str:
    """Return where a pack can be had: by its DOI, if it has one."""
    return f"https://doi.org/{pack.publication.doi}" if pack.publication.doi else f"in {pack.publication.publisher}"


def datacite(pack: Pack) -> dict[str, Any]:
    """Return the metadata in DataCite's schema 4.5."""
    said = pack.publication
    return {
        **({"doi": said.doi} if said.doi else {}),  # else the repository gives one
        "creators": [_datacite_creator(creator) for creator in said.creators],
        "titles": [{"title": pack.title}],
        "publisher": {"name": said.publisher},
        "publicationYear": str(pack.newest.year),
        "types": {"resourceTypeGeneral": "Dataset", "resourceType": "Scaling study"},
        "subjects": [{"subject": word} for word in said.keywords],
        "dates": [{"date": f"{pack.newest:%Y-%m-%d}", "dateType": "Collected"}],
        "language": "en",
        "rightsList": [_rights(str(said.licence))],
        "descriptions": [{"description": description(pack), "descriptionType": "Abstract"}],
        "relatedIdentifiers": [
            *(_related(work, "IsSupplementTo") for work in said.related),
            _related(SOFTWARE, "IsCompiledBy"),
        ],
        "fundingReferences": [
            {"funderName": one.funder, **({"awardNumber": one.award} if one.award else {})} for one in said.funding
        ],
        "schemaVersion": "http://datacite.org/schema/kernel-4",
    }


def _datacite_creator(creator: Creator) -> dict[str, Any]:
    found: dict[str, Any] = {"name": creator.name, "nameType": "Personal" if creator.parts else "Organizational"}
    if creator.parts:
        found |= dict(zip(("familyName", "givenName"), creator.parts, strict=True))
    if creator.orcid:
        scheme = {"nameIdentifierScheme": "ORCID", "schemeUri": "https://orcid.org"}
        found["nameIdentifiers"] = [{"nameIdentifier": f"https://orcid.org/{creator.orcid}", **scheme}]
    if creator.affiliation:
        ror = {"affiliationIdentifier": creator.ror, "affiliationIdentifierScheme": "ROR"} if creator.ror else {}
        found["affiliation"] = [{"name": creator.affiliation, **ror}]
    return found


def _rights(licence: str) -> dict[str, str]:
    return {
        "rights": licence,
        "rightsUri": LICENCES[licence],
        "rightsIdentifier": licence,
        "rightsIdentifierScheme": "SPDX",
        "schemeUri": "https://spdx.org/licenses/",
    }


def _related(work: str, relation: str) -> dict[str, str]:
    kind = "DOI" if is_doi(work) else "URL"
    return {"relatedIdentifier": work, "relatedIdentifierType": kind, "relationType": relation}


def zenodo(pack: Pack) -> dict[str, Any]:
    """Return what Zenodo takes from `.zenodo.json`."""
    said = pack.publication
    related = [{"identifier": work, "relation": "isSupplementTo"} for work in said.related]
    notes = [f"Funded by {one.funder}{f', {one.award}' if one.award else ''}." for one in said.funding]
    creators = [creator.model_dump(include={"name", "orcid", "affiliation"}) for creator in said.creators]
    return {
        "title": pack.title,
        "upload_type": "dataset",
        "description": description(pack),
        "creators": [{name: value for name, value in one.items() if value} for one in creators],
        "license": str(said.licence).lower(),
        "keywords": list(said.keywords),
        "publication_date": f"{pack.newest:%Y-%m-%d}",
        "related_identifiers": [*related, {"identifier": SOFTWARE, "relation": "isCompiledBy"}],
        **({"notes": " ".join(notes)} if notes else {}),
    }


def cff(pack: Pack) -> str:
    """Return CITATION.cff: how the result set is cited, and the software that made it."""
    said = pack.publication
    content: dict[str, Any] = {
        "cff-version": "1.2.0",
        "message": "If you use these results, please cite them, and the software that made them.",
        "type": "dataset",
        "title": pack.title,
        "authors": [_cff_author(creator) for creator in said.creators],
        "date-released": f"{pack.newest:%Y-%m-%d}",
        "license": said.licence,
        **({"doi": said.doi} if said.doi else {}),
        "abstract": description(pack),
        **({"keywords": list(said.keywords)} if said.keywords else {}),
    }
    works = [
        {"type": "generic", "title": work, "authors": [{"name": "see there"}], ("doi" if is_doi(work) else "url"): work}
        for work in said.related
    ]
    software = {"type": "software", "title": "ddp-hpc", "version": __version__, "url": SOFTWARE}
    content["references"] = [*works, software | {"authors": [{"name": "The ddp-hpc authors"}]}]
    text, yaml = StringIO(), YAML(typ="safe", pure=True)
    yaml.default_flow_style, yaml.allow_unicode, yaml.width = False, True, 100
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.dump(content, text)
    return text.getvalue()


def _cff_author(creator: Creator) -> dict[str, str]:
    names = dict(zip(("family-names", "given-names"), creator.parts, strict=True)) if creator.parts else {}
    more = {"affiliation": creator.affiliation, "orcid": creator.orcid and f"https://orcid.org/{creator.orcid}"}
    known = (names or {"name": creator.name}) | (more if creator.parts else {})
    return {name: value for name, value in known.items() if value}


def licences(pack: Pack) -> dict[str, str]:
    """Return the texts of LICENSES/ and REUSE.toml, by file: which licence is of what."""
    licence, holders = str(pack.publication.licence), "; ".join(creator.name for creator in pack.publication.creators)
    of_data = f'path = "**"\nSPDX-FileCopyrightText = "{pack.newest.year} {_quoted(holders)}"'
    of_code = 'path = "code/**"\nSPDX-FileCopyrightText = "The ddp-hpc authors, and those of the models and datasets"'
    found = {licence: of_data, CODE_LICENCE: of_code}
    parts = [f'[[annotations]]\n{of_what}\nSPDX-License-Identifier = "{name}"\n' for name, of_what in found.items()]
    if licence == CODE_LICENCE:
        parts = [f'[[annotations]]\n{of}\nSPDX-License-Identifier = "{licence}"\n' for of in (of_data, of_code)]
    texts = {f"LICENSES/{name}.txt": licence_text(name, pack.newest.year, holders) for name in found}
    return texts | {"REUSE.toml": "version = 1\n\n" + "\n".join(parts)}


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def licence_text(name: str, year: int, holders: str) -> str:
    """Return the text of a licence as SPDX has it; of one that is not in `licences/` where it stands."""
    if name == CODE_LICENCE:  # what a build leaves in a clone is a distribution too, and has no texts
        texts = (one.read_text("licenses/LICENSE") for one in metadata.distributions(name="ddp-hpc"))
        if ours := next(filter(None, texts), None):
            return ours
    file = TEXTS / f"{name}.txt"
    text = (
        file.read_text(encoding="utf-8")
        if file.is_file()
        else f"{name}\n\nThe text of this licence: {LICENCES[name]}\n"
    )
    return text.replace("<year>", str(year)).replace("<copyright holders>", holders).replace("<owner>", holders)

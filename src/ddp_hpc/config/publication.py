"""The `publication` key: what a deposited result set says of itself; it changes no run, no table and no figure."""

import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, Field, model_validator

from ddp_hpc.config.errors import StudyError, given
from ddp_hpc.config.types import STRICT, Spelling
from ddp_hpc.config.validation import validated
from ddp_hpc.config.yaml_file import read_mapping

# by their names in SPDX's list; the address is of the deed or text
Licence = Literal[
    "CC-BY-4.0",
    "CC-BY-SA-4.0",
    "CC-BY-NC-4.0",
    "CC0-1.0",
    "ODC-By-1.0",
    "ODbL-1.0",
    "PDDL-1.0",
    "Apache-2.0",
    "MIT",
    "BSD-3-Clause",
]
LICENCES = {
    "CC-BY-4.0": "https://creativecommons.org/licenses/by/4.0/",
    "CC-BY-SA-4.0": "https://creativecommons.org/licenses/by-sa/4.0/",
    "CC-BY-NC-4.0": "https://creativecommons.org/licenses/by-nc/4.0/",
    "CC0-1.0": "https://creativecommons.org/publicdomain/zero/1.0/",
    "ODC-By-1.0": "https://opendatacommons.org/licenses/by/1-0/",
    "ODbL-1.0": "https://opendatacommons.org/licenses/odbl/1-0/",
    "PDDL-1.0": "https://opendatacommons.org/licenses/pddl/1-0/",
    "Apache-2.0": "https://www.apache.org/licenses/LICENSE-2.0",
    "MIT": "https://spdx.org/licenses/MIT.html",
    "BSD-3-Clause": "https://spdx.org/licenses/BSD-3-Clause.html",
}
DOI = r"10\.[0-9]{4,9}/\S+"
Text = Annotated[str, Spelling(r"^\s*\S[\s\S]*$", "a string that is not empty")]


def _checked_orcid(orcid: str) -> str:
    """Check the last character of an ORCID, which is made of the others (ISO 7064, 11-2)."""
    total = 0
    for digit in orcid.replace("-", "")[:-1]:
        total = (total + int(digit)) * 2
    last = (12 - total % 11) % 11
    if orcid[-1] != ("X" if last == 10 else str(last)):
        raise ValueError(
            f"given {given(orcid)}, expected: an ORCID; its last character does not fit: a slip in a digit?"
        )
    return orcid


Orcid = Annotated[
    str,
    Spelling(r"^[0-9]{4}-[0-9]{4}-[0-9]{4}-[0-9]{3}[0-9X]$", "an ORCID, e.g. 0000-0002-1825-0097"),
    AfterValidator(_checked_orcid),
]
Ror = Annotated[str, Spelling(r"^https://ror\.org/0[a-z0-9]{6}[0-9]{2}$", "e.g. https://ror.org/05a28rw58")]
Work = Annotated[
    str, Spelling(rf"^({DOI}|https?://\S+)$", "a DOI, e.g. 10.5281/zenodo.1234, or an address https://...")
]


Doi = Annotated[str, Spelling(rf"^{DOI}$", "a DOI without https://doi.org/, e.g. 10.5281/zenodo.1234")]


class Creator(BaseModel):
    """Who has made a result set: a person or an organisation."""

    model_config = STRICT
    name: Text = Field(description="of a person `Family, Given`; of an organisation its name, without a comma")
    orcid: Orcid | None = Field(None, description="of a person, e.g. `0000-0002-1825-0097`")
    affiliation: Text | None = Field(None, description="name of the institution")
    ror: Ror | None = Field(None, description="of the institution, e.g. `https://ror.org/05a28rw58`")

    @property
    def parts(self) -> tuple[str, str] | None:
        """Family name and given names; None of an organisation."""
        family, comma, given_names = self.name.partition(",")
        return (family.strip(), given_names.strip()) if comma else None

    @model_validator(mode="after")
    def _a_person(self) -> Self:
        if self.parts is not None and not all(self.parts):
            raise ValueError(f"given {given(self.name)}, expected: `Family, Given`, or a name without a comma")
        if self.orcid and not self.parts:
            raise ValueError(f"given {given(self.name)} with an orcid, expected: a person, `Family, Given`")
        return self


class Funding(BaseModel):
    """Who has paid."""

    model_config = STRICT
    funder: Text = Field(description="name of the funder")
    award: Text | None = Field(None, description="number of the grant, in quotes")


class Publication(BaseModel):
    """What a deposited result set says of itself."""

    model_config = STRICT
    title: Text | None = Field(None, description="title of the result set; null: the study's description")
    creators: list[Creator] = Field(default_factory=list, description="who has made it; needed to publish")
    licence: Licence | None = Field(
        None, description="of the data, by its name in SPDX's list; needed to publish. Code keeps its own"
    )
    doi: Doi | None = Field(None, description="of the result set, once its repository has reserved one")
    publisher: Text = Field("Zenodo", description="the repository in which it will lie")
    keywords: list[Text] = Field(default_factory=list, description="words under which it is found")
    funding: list[Funding] = Field(default_factory=list, description="who has paid")
    related: list[Work] = Field(
        default_factory=list, description="works that the results belong to, as DOI or address: papers, data sets"
    )
    notes: str = Field("", description="what a reader should know beside the tables")

    @property
    def lacking(self) -> list[str]:
        """The keys without which nothing can be published."""
        return [name for name in ("creators", "licence") if not getattr(self, name)]


def is_doi(work: str) -> bool:
    """Return whether a related work is given by its DOI."""
    return re.fullmatch(DOI, work) is not None


def read(file: Path) -> Publication:
    """Return the publication in `file`, or raise a StudyError."""
    return validated(Publication, read_mapping(file, StudyError), StudyError)

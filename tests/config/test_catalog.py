"""A word in the configuration is the name of a file; its options stand in the file's syntax tree."""

from pathlib import Path

import pytest

from ddp_hpc.config import catalog
from ddp_hpc.config.catalog import CatalogError

CACHED = (catalog._tree, catalog.options, catalog.constants)


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An empty package: files written into it are choices."""
    for kind in catalog.KINDS.values():
        (tmp_path / kind.folder).mkdir(parents=True)
    monkeypatch.setattr(catalog, "PACKAGE", tmp_path)
    for cached in CACHED:
        cached.cache_clear()
    yield tmp_path
    for cached in CACHED:
        cached.cache_clear()


def write(package: Path, text: str, file: str = "models/one.py") -> None:
    (package / file).write_text(text)


def model(options: str) -> str:
    return (
        f'"""A model."""\n\n\ndef build(input_shape, outputs, *, {options}):\n    raise AssertionError("never run")\n'
    )


def test_a_file_is_a_choice_and_an_underscore_hides_it(package):
    write(package, "raise RuntimeError('never imported')\n", "exchange/ring.py")
    write(package, "", "exchange/_helpers.py")
    write(package, "", "exchange/__init__.py")
    write(package, "", "exchange/notes.txt")
    assert catalog.names("exchange") == ["ring"]
    assert catalog.path("exchange", "ring") == package / "exchange/ring.py"


def test_what_editors_leave_is_no_choice(package):
    before = catalog.names("exchange")
    folder = package / "exchange"
    for name in (
        ".#ring.py",
        "._ring.py",
        ".ring.py.swp",
        "ring.py~",
        "ring.py.bak",
        "#ring.py#",
        "ring (copy).py",
        "2.py",
    ):
        (folder / name).write_text("def half(")
    (folder / "folder.py").mkdir()
    assert catalog.names("exchange") == before


@pytest.mark.parametrize("content", [b"def make(\n", b"\x00", b"\xff\xfe", b"x = " + 400 * b"(" + 400 * b")"])
def test_a_choice_that_is_half_written_hurts_only_who_names_it(package, content):
    before = catalog.readable("exchange")
    (package / "exchange" / "half.py").write_bytes(content)
    catalog._tree.cache_clear()
    assert "half" in catalog.names("exchange")
    assert catalog.readable("exchange") == before
    with pytest.raises(catalog.CatalogError, match=r"exchange/half\.py:"):
        catalog.options("exchange", "half")


@pytest.mark.parametrize("name", ["rong", "_helpers", "__init__", "", "../models/one", "ring.py", "Ring", "./ring"])
def test_only_the_exact_name_is_a_choice(package, name):
    write(package, "", "exchange/ring.py")
    write(package, "", "exchange/_helpers.py")
    write(package, "")
    with pytest.raises(CatalogError, match=r"expected: ring$"):
        catalog.path("exchange", name)


OPTIONS = (
    "width: PositiveInt = 3, rate: float = 1, kind: Literal['a', 'b'] = 'a', "
    "sizes: tuple[int, ...] = (), top: int | None = None"
)
ALLOWED = {
    "width": "an integer > 0, e.g. its default 3",
    "rate": "a number, e.g. its default 1.0",
    "kind": "a, b, e.g. its default 'a'",
    "sizes": "a list of integers, e.g. its default []",
    "top": "an integer or null",
}


def test_options_are_the_keyword_only_parameters(package):
    write(package, model(OPTIONS))
    found = catalog.options("model", "one")
    assert {name: option.default for name, option in found.items()} == {
        "width": 3,
        "rate": 1.0,
        "kind": "a",
        "sizes": (),
        "top": None,
    }
    assert isinstance(found["rate"].default, float)
    assert found["kind"].annotation == "Literal['a', 'b']"


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({}, {}),
        ({"width": 3, "rate": 1, "kind": "a", "sizes": [], "top": None}, {}),
        ({"width": 3.0, "rate": 1.0000000000000002}, {}),  # a float as YAML gives 3e0; float noise
        ({"width": 1e4}, {"width": 10_000}),
        ({"sizes": [1e2, 5]}, {"sizes": (100, 5)}),
        ({"rate": 2}, {"rate": 2.0}),
        ({"top": 7, "kind": "b"}, {"kind": "b", "top": 7}),
    ],
)
def test_options_are_kept_in_canonical_types_where_they_differ_from_their_defaults(package, given, kept):
    write(package, model(OPTIONS))
    found = catalog.check_options("model", "one", given)
    assert found == kept
    assert {name: type(value) for name, value in found.items()} == {name: type(value) for name, value in kept.items()}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("width", 0),
        ("width", 2.5),
        ("width", "3"),
        ("width", True),
        ("width", None),
        ("rate", "fast"),
        ("rate", float("nan")),
        ("rate", float("inf")),
        ("rate", False),
        ("kind", "c"),
        ("sizes", 3),
        ("sizes", ["a"]),
        ("sizes", [1.5]),
        ("top", {}),
    ],
)
def test_a_wrong_option_is_told_with_what_is_allowed(package, name, value):
    write(package, model(OPTIONS))
    with pytest.raises(CatalogError) as error:
        catalog.check_options("model", "one", {name: value})
    for part in (f"option {name!r} of model 'one'", repr(value), f"expected: {ALLOWED[name]}"):
        assert part in str(error.value)


def test_an_unknown_option_is_told_with_the_known_ones(package):
    write(package, model("width: int = 3, depth: int = 2"))
    with pytest.raises(CatalogError, match=r"no option 'widht' \(did you mean 'width'\?\); expected: width, depth"):
        catalog.check_options("model", "one", {"widht": 3})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (model("width=3"), "needs an annotation and a default"),
        (model("width: int"), r"models/one.py:\d+: option 'width' of model 'one' needs an annotation and a default"),
        (model("width: np.int32 = 3"), "annotation np.int32 uses {'np'}; expected: int, float"),
        (model("width: int = 3 * 2"), r"the default must be a literal, not 3 \* 2"),
        (model("width: int = 'three'"), "the default 'three' is no int"),
        (model("width: PositiveInt = 0"), "the default 0 is no PositiveInt"),
        (model("name: str = 'x'"), "call it otherwise"),
        ("def make():\n    pass\n", r"has no function build\(\), so it is no model"),
        ("def build(:\n", r"models/one.py:1: "),
    ],
)
def test_a_file_that_is_no_choice_is_told_to_its_author(package, text, told):
    write(package, text)
    with pytest.raises(CatalogError, match=told):
        catalog.options("model", "one")


def test_constants_are_the_literals_in_capitals(package):
    write(
        package,
        "EXACT = True\nSHAPE: tuple = (3, None, 32)\nLR, TASK = -0.5, "
        "'regression'\nlower = 1\nCALL = print\n_PRIVATE = 1\nNONE: int\n",
    )
    assert catalog.constants("model", "one") == {
        "EXACT": True,
        "SHAPE": (3, None, 32),
        "LR": -0.5,
        "TASK": "regression",
        "_PRIVATE": 1,
    }


def test_a_summary_is_the_first_line_of_the_docstring(package):
    write(package, '"""A model.\n\nMore.\n"""\n')
    write(package, "", "models/bare.py")
    assert catalog.summary("model", "one") == "A model."
    assert catalog.summary("model", "bare") == ""


@pytest.mark.parametrize("kind", catalog.KINDS)
def test_every_choice_that_we_ship_can_be_read_and_says_what_it_is(kind):
    assert catalog.names(kind)
    for name in catalog.names(kind):
        catalog.options(kind, name)
        assert catalog.summary(kind, name).endswith("."), f"{kind} {name}: the first line of its docstring"


@pytest.mark.parametrize(
    ("kind", "constant", "types"),
    [("exchange", name, bool) for name in ("SYNCHRONOUS", "EXACT", "DETERMINISTIC", "OVERLAPS", "CAPTURABLE")]
    + [("exchange", name, str) for name in ("SCHEME", "COMPUTES", "MOVES_GRADIENTS", "MOVES_MODEL", "COST")]
    + [("dataset", "SHAPE", tuple), ("dataset", "TASK", str), ("dataset", "OUTPUTS", int), ("figure", "INPUTS", tuple)],
)
def test_what_planning_reads_is_a_literal_in_every_file(kind, constant, types):
    """A constant that is computed would be passed over in silence, and with it the check that needs it."""
    for name in catalog.names(kind):
        assert isinstance(catalog.constants(kind, name).get(constant), types), f"{kind} {name}: {constant}"


@pytest.mark.parametrize("name", catalog.names("exchange"))
def test_options_that_an_exchange_names_in_its_literals_are_its_own(name):
    flags, known = catalog.constants("exchange", name), catalog.options("exchange", name)
    assert set(flags.get("COST_OPTIONS", ())) <= set(known)
    for constant in ("CUDA_AWARE", "CAPTURED", "COMPRESSES", "INDEPENDENT_INITIALIZATION"):
        for option, values in flags.get(constant, {}).items():
            for value in values:
                assert known[option].check(value) == value != known[option].default
                assert catalog.asked(name, constant, {option: value})
        assert not catalog.asked(name, constant)


def test_the_entry_may_be_a_second_name_of_a_class(package):
    text = "class Ring:\n    def __init__(self, replica, *, bucket_mb: float = 4.0):\n        pass\n\n\nmake = Ring\n"
    write(package, text, "exchange/ring.py")
    assert catalog.options("exchange", "ring")["bucket_mb"].default == 4.0


def test_an_exchange_of_ones_own_promises_nothing_that_it_does_not_say(tmp_path):
    (tmp_path / "exchange").mkdir()
    (tmp_path / "exchange" / "bare.py").write_text("SYNCHRONOUS = True\nOVERLAPS = False\n\n\ndef make(replica): ...\n")
    before = catalog.project()
    catalog.use_project(tmp_path)
    try:
        catalog.check("exchange", "bare")
        said = catalog.constants("exchange", "bare")
    finally:
        catalog.use_project(before)
    assert said == {"SYNCHRONOUS": True, "OVERLAPS": False, "DETERMINISTIC": False, "CAPTURABLE": False}

"""Which choices there are and which options they take, read from the source tree without importing it.

A word in the configuration is the name of a file: `exchange: ring` is `exchange/ring.py`, in the package or in the
project that is in use, whose folders are models, data, exchange, tables and figures. The options of a choice are the
keyword-only, annotated, defaulted parameters of that file's entry: a function, or a second name of a class
(`make = Ring`). Both are read from the syntax tree, so planning on a login node starts neither torch nor MPI.
"""

import ast
import difflib
import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Interval
from pydantic import TypeAdapter, ValidationError

PACKAGE = Path(__file__).parents[1]
BUILT_IN_METRICS = {"accuracy": "higher", "error": "lower"}  # of tasks, and which is better
OWN = "ddp_hpc_project"  # as which Python imports a project's folders: `models` may be a package of somebody else's
SIGNIFICANT_DIGITS = 12  # 0.1 + 0.2 and 0.3 are one grid value

PositiveInt = Annotated[int, Gt(0)]
NotNegativeInt = Annotated[int, Ge(0)]
PositiveFloat = Annotated[float, Gt(0)]
Fraction = Annotated[float, Interval(ge=0, lt=1)]
Share = Annotated[float, Interval(gt=0, lt=1)]
Megabytes = Annotated[float, Interval(ge=0.001, le=1e6)]  # of 1e6 bytes

# what an option may be annotated with, and for people: one such value, and several
_TYPES: Mapping[str, tuple[Any, str, str]] = {
    "int": (int, "an integer", "integers"),
    "float": (float, "a number", "numbers"),
    "str": (str, "a string", "strings"),
    "bool": (bool, "true or false", "true or false"),
    "None": (None, "null", "null"),
    "PositiveInt": (PositiveInt, "an integer > 0", "integers > 0"),
    "NotNegativeInt": (NotNegativeInt, "an integer ≥ 0", "integers ≥ 0"),
    "PositiveFloat": (PositiveFloat, "a number > 0", "numbers > 0"),
    "Fraction": (Fraction, "a number ≥ 0, < 1", "numbers ≥ 0, < 1"),
    "Share": (Share, "a number > 0, < 1", "numbers > 0, < 1"),
    "Megabytes": (Megabytes, "a number ≥ 0.001, ≤ 1e6", "numbers ≥ 0.001, ≤ 1e6"),
}
_NAMES = {name: kind for name, (kind, _, _) in _TYPES.items()} | {"tuple": tuple, "Literal": Literal}


@dataclass(frozen=True)
class ChoiceKind:
    """One sort of choice: the folder that holds it, the function whose parameters are its options, what it must say.

    In a project the folder is the last part of that in the package.
    """

    folder: str
    entry: str
    constants: tuple[str, ...] = ()

    @property
    def own_folder(self) -> str:
        """The folder in a project."""
        return Path(self.folder).name


KINDS = {
    "model": ChoiceKind("models", "build"),
    "dataset": ChoiceKind("data", "build", ("SHAPE", "TASK", "OUTPUTS")),
    "exchange": ChoiceKind("exchange", "make", ("SYNCHRONOUS", "OVERLAPS")),
    "table": ChoiceKind("analysis/tables", "build"),
    "figure": ChoiceKind("analysis/figures", "draw", ("INPUTS",)),
}

PROGRAM = "program"  # as which exchange records have what a program of one's own does between its ranks
_UNSAID = {"DETERMINISTIC": False, "CAPTURABLE": False}  # what an exchange promises that does not say so
_OF_A_PROGRAM = {"SYNCHRONOUS": True, "OVERLAPS": False, "DETERMINISTIC": False}

_project: Path | None = None


class CatalogError(ValueError):
    """A choice that does not exist, or what is wrong with an option that was given, and its name."""

    def __init__(self, message: str, option: str | None = None) -> None:
        super().__init__(message)
        self.option = option


@dataclass(frozen=True)
class Option:
    """One option of a choice."""

    name: str
    annotation: str
    default: Any

    @property
    def allowed(self) -> str:
        """What may be given, in words, e.g. `a list of integers > 0`."""
        return _in_words(ast.parse(self.annotation, mode="eval").body)

    @property
    def plain_default(self) -> Any:
        """The default as a study file writes it: a list, not a tuple."""
        return list(self.default) if isinstance(self.default, tuple) else self.default

    def check(self, value: Any) -> Any:
        """Return `value` in its canonical type; raise `ValidationError` if it has another type."""
        plain = canonical(value)
        try:
            return _adapter(self.annotation).validate_python(plain)
        except ValidationError:
            return _adapter(self.annotation).validate_python(integral(plain))


def _in_words(annotation: ast.expr, several: bool = False) -> str:
    match annotation:
        case ast.BinOp(left=left, right=right):
            return f"{_in_words(left, several)} or {_in_words(right, several)}"
        case ast.Subscript(value=ast.Name(id="tuple"), slice=ast.Tuple(elts=[item, ast.Constant()])):  # the dots
            return f"{'lists' if several else 'a list'} of {_in_words(item, several=True)}"
        case ast.Subscript(value=ast.Name(id="Literal"), slice=values):
            return ", ".join(str(ast.literal_eval(value)) for value in getattr(values, "elts", [values]))
        case ast.Name() | ast.Constant(value=None) if ast.unparse(annotation) in _TYPES:
            return _TYPES[ast.unparse(annotation)][1 + several]
    return ast.unparse(annotation)


@cache
def _adapter(annotation: str) -> TypeAdapter[Any]:
    evaluated = eval(annotation, {"__builtins__": {}}, dict(_NAMES))  # only the names listed above
    return TypeAdapter(evaluated, config={"strict": True, "allow_inf_nan": False})


def integral(value: Any) -> Any:
    """Return whole floats as integers, in tuples too: `1e4` in YAML is a float."""
    if isinstance(value, tuple):
        return tuple(integral(item) for item in value)
    return int(value) if isinstance(value, float) and value.is_integer() else value


def canonical(value: Any) -> Any:
    """Return `value` without float noise, lists as tuples: two spellings of a value are one run."""
    if isinstance(value, list | tuple):
        return tuple(canonical(item) for item in value)
    if isinstance(value, float) and math.isfinite(value):
        return float(f"{value:.{SIGNIFICANT_DIGITS}g}") + 0.0  # + 0.0 turns -0.0 into 0.0
    return value


def use_project(root: Path | None) -> None:
    """Let the choices of this project be found beside those of the package; None: only these."""
    global _project
    if root != _project:
        _project = root
        for remembered in (_tree, options, constants, metrics):
            remembered.cache_clear()


def project() -> Path | None:
    """Return the project in use."""
    return _project


def names(kind: str) -> list[str]:
    """Return the choices of `kind`, sorted: what Python could import, but for helpers, which begin with an underscore.

    What editors and file systems leave there is none: `.#ring.py`, `._ring.py`, `ring (copy).py`, a folder.
    """
    return sorted(_files(kind))


def _files(kind: str) -> dict[str, Path]:
    """Return the file of each choice, by name."""
    found: dict[str, Path] = {}
    own = [_project / KINDS[kind].own_folder] if _project else []
    for folder in (PACKAGE / KINDS[kind].folder, *own):
        for file in folder.glob("[!_]*.py"):
            if not (file.stem.isidentifier() and file.is_file()):
                continue
            if file.stem in found:
                raise CatalogError(
                    f"two files are {kind} {file.stem!r}: {found[file.stem]}, of ddp-hpc, and {file}; rename yours"
                )
            found[file.stem] = file
    return found


def readable(kind: str) -> list[str]:
    """Return the choices whose files can be read: one that is half written hurts only who names it."""
    found = []
    for name in names(kind):
        with suppress(CatalogError):
            constants(kind, name)
            found.append(name)
    return found


def broken() -> list[str]:
    """Return which files of the project are no Python, each with its line: left out where nobody names it."""
    found = []
    for kind in KINDS:
        for file in _files(kind).values():
            try:
                if not file.is_relative_to(PACKAGE):
                    _tree(file)
            except CatalogError as problem:
                found.append(str(problem))
    return found


def path(kind: str, name: str) -> Path:
    """Return the file of a choice; raise `CatalogError` with the allowed names if there is none."""
    files = _files(kind)
    if name not in files:
        allowed = sorted(files)
        raise CatalogError(f"no {kind} {name!r}{did_you_mean(name, allowed)}; expected: {', '.join(allowed)}")
    return files[name]


def load(kind: str, name: str) -> ModuleType:
    """Import the file of a choice, for who trains or draws: planning reads its syntax tree."""
    file = path(kind, name)
    if file.is_relative_to(PACKAGE):
        return import_module(".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts))
    assert _project is not None
    _make_importable(_project)
    return import_module(f"{OWN}.{file.parent.name}.{name}")


def folders_of_imports(root: Path) -> tuple[Path, ...]:
    """Return where Python finds the modules of a project, after all that is installed."""
    return root, root / "src"


def _make_importable(root: Path) -> None:
    """Let Python import a project's folders as parts of `OWN`, and its other modules by their own names."""
    if getattr(sys.modules.get(OWN), "__path__", None) != [str(root)]:
        for name in [name for name in sys.modules if name.split(".")[0] == OWN]:  # of another project
            del sys.modules[name]
        sys.modules[OWN] = ModuleType(OWN)
        sys.modules[OWN].__path__ = [str(root)]
        sys.path += [str(folder) for folder in folders_of_imports(root) if str(folder) not in sys.path]


def did_you_mean(word: str, allowed: list[str]) -> str:
    """Return ` (did you mean 'x'?)` for the nearest allowed word, or an empty string."""
    near = difflib.get_close_matches(str(word), allowed, n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def parsed(file: Path) -> ast.Module:
    """Return the syntax tree of a file; raise `CatalogError` with its line if it is not Python."""
    return tree_of(content(file), file)


def content(file: Path) -> bytes:
    """Return the bytes of a file of code; raise `CatalogError` if it cannot be read."""
    try:
        return file.read_bytes()
    except OSError as problem:
        raise CatalogError(f"{file}: cannot be read as Python: {problem}") from None


def tree_of(code: bytes, file: Path) -> ast.Module:
    """Return the syntax tree of what stood in a file; raise `CatalogError` with its line if it is not Python."""
    try:
        return ast.parse(code, filename=str(file))
    except SyntaxError as problem:
        raise CatalogError(f"{file}:{problem.lineno}: {problem.msg}") from None
    except (ValueError, RecursionError, MemoryError) as problem:  # of null bytes, of a nesting of thousands
        raise CatalogError(f"{file}: cannot be read as Python: {problem or type(problem).__name__}") from None


_tree = cache(parsed)


@cache
def options(kind: str, name: str) -> Mapping[str, Option]:
    """Return the options of a choice by name, read from its entry's keyword-only parameters."""
    if (kind, name) == ("exchange", PROGRAM):
        return {}
    entry, body = KINDS[kind].entry, _tree(path(kind, name)).body
    defined = {node.name: node for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    other_names = [node for node in body if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name)]
    called = {ast.unparse(node.targets[0]): ast.unparse(node.value) for node in other_names}  # `make = Ring`
    found = defined.get(called.get(entry, entry))
    if isinstance(found, ast.ClassDef):
        found = next((one for one in found.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"), None)
    if found is None:
        raise CatalogError(f"{path(kind, name)} has no function {entry}(), so it is no {kind}")
    defaults = zip(found.args.kwonlyargs, found.args.kw_defaults, strict=True)
    return {argument.arg: _option(kind, name, argument, default) for argument, default in defaults}


def check(kind: str, name: str) -> None:
    """Raise a CatalogError if there is no such choice, or its file is not what one needs."""
    options(kind, name)
    said = constants(kind, name)
    if kind in ("model", "dataset"):
        metrics(kind, name)
    if lacking := [constant for constant in KINDS[kind].constants if constant not in said]:
        expected = f"`{lacking[0]} = ...` at its top level, a literal"
        raise CatalogError(f"{path(kind, name)} lacks {' and '.join(lacking)}; expected: {expected}")


def _option(kind: str, name: str, argument: ast.arg, default: ast.expr | None) -> Option:
    where = f"{path(kind, name)}:{argument.lineno}: option {argument.arg!r} of {kind} {name!r}"
    if argument.annotation is None or default is None:
        raise CatalogError(f"{where} needs an annotation and a default")
    annotation = ast.unparse(argument.annotation)
    unknown = {n.id for n in ast.walk(argument.annotation) if isinstance(n, ast.Name)} - _NAMES.keys()
    if unknown:
        raise CatalogError(f"{where}: annotation {annotation} uses {unknown}; expected: {', '.join(_NAMES)}")
    if argument.arg == "name":
        raise CatalogError(f"{where}: call it otherwise, `name` says which {kind} in {{name: {name}, ...}}")
    try:
        checked = Option(argument.arg, annotation, None).check(ast.literal_eval(default))
    except ValidationError as problem:
        why = problem.errors()[0]["msg"]
        raise CatalogError(f"{where}: the default {ast.unparse(default)} is no {annotation} ({why})") from None
    except ValueError:
        raise CatalogError(f"{where}: the default must be a literal, not {ast.unparse(default)}") from None
    return Option(argument.arg, annotation, checked)


def check_options(kind: str, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return `given` in canonical types, without those that equal their default.

    ONLY_WITH in the choice's file says which options mean something only together with values of others.
    """
    allowed = options(kind, name)
    kept = {}
    for key in sorted(given):
        if key not in allowed:
            hint, listed = did_you_mean(key, list(allowed)), ", ".join(allowed) or "none"
            raise CatalogError(f"{kind} {name!r} has no option {key!r}{hint}; expected: {listed}", key)
        option = allowed[key]
        try:
            value = option.check(given[key])
        except ValidationError:
            example = "" if option.default is None else f", e.g. its default {option.plain_default!r}"
            why = f"given {given[key]!r}, expected: {option.allowed}{example}"
            raise CatalogError(f"option {key!r} of {kind} {name!r}: {why}", key) from None
        if value != option.default:
            kept[key] = value
    for key, others in constants(kind, name).get("ONLY_WITH", {}).items():
        for other, values in others.items():
            value = kept.get(other, allowed[other].default)
            if key in kept and value not in values:
                raise CatalogError(
                    f"option {key!r} of {kind} {name!r}: given {kept[key]!r} with {other}: {value}, where it means "
                    f"nothing; expected: with {other}: {' or '.join(map(str, values))}",
                    key,
                )
    return kept


@cache
def constants(kind: str, name: str) -> Mapping[str, Any]:
    """Return the literal UPPER_CASE constants of a choice's file, e.g. `{"EXACT": True}`."""
    if (kind, name) == ("exchange", PROGRAM):
        return _OF_A_PROGRAM
    said = {constant: value for constant, value in _assigned(_tree(path(kind, name)).body) if constant.isupper()}
    unsaid = _UNSAID if kind == "exchange" else {}
    found = {constant: value for constant, value in unsaid.items() if constant not in said}
    for constant, value in said.items():
        with suppress(ValueError):
            found[constant] = ast.literal_eval(value)
    return found


@cache
def metrics(kind: str, name: str) -> Mapping[str, str]:
    """Return the metrics of its own of a model or dataset, by name, and which is better of each, `higher` or `lower`.

    They are functions of its file that `METRICS = {"top5": "higher"}` names.
    """
    body = _tree(path(kind, name)).body
    given = next((value for constant, value in _assigned(body) if constant == "METRICS"), ast.Dict([], []))
    found, functions = {}, {node.name for node in body if isinstance(node, ast.FunctionDef)}
    for key, value in zip(given.keys, given.values, strict=True) if isinstance(given, ast.Dict) else ((None, given),):
        match key, value:
            case ast.Constant(value=str(metric)), ast.Constant(value="higher" | "lower" as better):
                found[metric] = str(better)
            case _:
                raise CatalogError(
                    f"{path(kind, name)}:{value.lineno}: METRICS: given {ast.unparse(value)}, expected: "
                    '{"NAME": "higher"} or "lower", which is better, with a function NAME(outputs, targets)'
                )
    for metric in found:
        if metric not in functions or metric in BUILT_IN_METRICS:
            why = "is a metric of ddp-hpc; rename yours" if metric in functions else "is no function of this file"
            raise CatalogError(f"{path(kind, name)}: METRICS: {metric!r} {why}")
    return found


def metrics_of(model: str, dataset: str) -> dict[str, str]:
    """Return the metrics of their own of a model and a dataset together, as `metrics` does; none is of both."""
    found, others = metrics("model", model), metrics("dataset", dataset)
    if both := found.keys() & others.keys():
        files = f"{path('model', model)} and {path('dataset', dataset)}"
        raise CatalogError(f"metric {min(both)!r} is in the METRICS of two files, {files}; rename one")
    return {**found, **others}


def _assigned(body: Iterable[ast.stmt]) -> Iterator[tuple[str, ast.expr]]:
    """Yield names and values of assignments: `A = 1`, `A: int = 1`, `A, B = 1, 2`."""
    for node in body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                yield name, value
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                yield name, value
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
                yield from (
                    (one.id, value) for one, value in zip(targets, values, strict=False) if isinstance(one, ast.Name)
                )


def defines(kind: str, name: str, what: str) -> bool:
    """Return whether the file of a choice has, or imports, something of this name."""
    body = _tree(path(kind, name)).body
    own = {node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    imported = {one.asname or one.name for node in body if isinstance(node, ast.ImportFrom) for one in node.names}
    return what in own | imported | {assigned for assigned, _ in _assigned(body)}


def asked(exchange: str, constant: str, given: Mapping[str, Any] | None = None) -> bool:
    """Return whether an exchange with these options does what `constant` of its file says, e.g. CUDA_AWARE."""
    found, known = constants("exchange", exchange).get(constant, {}), options("exchange", exchange)
    return any((given or {}).get(option, known[option].default) in values for option, values in found.items())


def devices(exchange: str, given: Mapping[str, Any] | None = None) -> tuple[str, ...]:
    """Return where an exchange with these options works: CUDA_AWARE, CAPTURED, DEVICES of its file, or anywhere."""
    if asked(exchange, "CUDA_AWARE", given) or asked(exchange, "CAPTURED", given):
        return ("cuda",)
    return tuple(constants("exchange", exchange).get("DEVICES", ("cpu", "cuda")))


def cost_model(exchange: str, given: Mapping[str, Any] | None = None) -> tuple[str, dict[str, Any]] | None:
    """Return COST of an exchange's file, a formula of `perfmodel`, and its COST_OPTIONS as given; None: it has none."""
    flags, known = constants("exchange", exchange), options("exchange", exchange)
    if "COST" not in flags:
        return None
    return flags["COST"], {name: (given or {}).get(name, known[name].default) for name in flags.get("COST_OPTIONS", ())}


def summary(kind: str, name: str) -> str:
    """Return the first line of a choice's docstring."""
    return (ast.get_docstring(_tree(path(kind, name))) or "").split("\n", 1)[0]

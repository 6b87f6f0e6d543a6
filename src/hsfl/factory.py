"""Users' own functions, named in a scenario as "package.module:function".

Such a module may lie beside the scenario, so that reading a file runs code that came with it. The command asks before
it does; who calls hsfl from Python has chosen the file, and is not asked.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from hsfl.errors import HsflError, raised

#: In place of a module's name: an object that was given from Python.
GIVEN = "given"


def allow(spec: str, files: Sequence[Path]) -> None:
    """Run whatever is named."""


#: Called before code beside a file is run, with its name and the files that importing it runs first; raises HsflError
#: where it must not. The command puts its own here.
consent: Callable[[str, Sequence[Path]], None] = allow


class Factory:
    """A function to be found and called; what goes wrong is an error of the given kind, one sentence with `label`.

    Its module is looked for in the folder `search`, then in the working directory, then where Python looks.
    """

    def __init__(self, spec: str, search: Path | None, label: str, error: type[HsflError]) -> None:
        self.spec, self.label, self.error = spec, label, error
        self.folders = list(dict.fromkeys(str(Path(f).resolve()) for f in (search, Path()) if f is not None))
        self._module, _, self._attribute = spec.partition(":")
        if self._module == GIVEN:
            again = "model=, data= or strategy= of hsfl.load_scenario"
            again = "loss= of hsfl.train" if label.startswith("training.loss") else again
            raise error(
                f"{label}: it was given from Python, and no file holds it; give it again, with {again} or, to go on "
                "with a run, of hsfl.resume"
            )
        if not (self._module and self._attribute):
            raise error(f"{label}: write it as package.module:function")
        if self._module.endswith(".py"):
            raise error(f"{label}: write the module's name, not its file: {self._module[:-3]}:{self._attribute}")

    def find(self) -> Callable[..., Any]:
        """The function itself."""
        with self.importing():
            return self._find()

    def call(self) -> Any:
        """What the function returns."""
        with self.importing():
            function = self._find()
            try:
                return function()
            except (Exception, SystemExit) as error:
                raise self.failed("calling it without arguments", error) from error

    @contextmanager
    def importing(self) -> Iterator[None]:
        """While modules beside the factory's can be imported.

        One that is installed is imported as ever: no file in these folders may pose as a module that it needs.
        """
        before = sys.path[:]
        importlib.invalidate_caches()
        if files := _files(self._module, self.folders):
            consent(self.spec, files)
            _forget_namesake(self._module.partition(".")[0], self.folders)
            sys.path[:0] = self.folders
        try:
            yield
        finally:
            sys.path[:] = before

    def failed(self, action: str, error: BaseException) -> HsflError:
        """The sentence for an error in the user's own code."""
        return self.error(f"{self.label}: {action} raised {raised(error)}; a factory must import and run by itself")

    def _find(self) -> Callable[..., Any]:
        name = self._module
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise self.failed(f"importing {name}", error) from error
            raise self.error(
                f"{self.label}: no module {error.name} in {' or '.join(self.folders)}; name one that can be imported "
                "from there"
            ) from None
        except (Exception, SystemExit) as error:
            raise self.failed(f"importing {name}", error) from error
        function = getattr(module, self._attribute, None)
        if function is not None and not callable(function):
            raise self.error(f"{self.label}: it is a {type(function).__name__}; name a function")
        if function is None:
            known = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
            near = difflib.get_close_matches(self._attribute, known, n=1)
            hint = f"did you mean {near[0]}?" if near else "name a function that the module defines"
            raise self.error(f"{self.label}: module {name} has no {self._attribute}; {hint}")
        return function  # type: ignore[no-any-return]


class FromPython(Factory):
    """An object that was given from Python in place of such a name: a function or class is called, others are taken."""

    def __init__(self, given: Any, label: str, error: type[HsflError]) -> None:
        self.given, self.label, self.error = given, label, error

    @property
    def made(self) -> bool:
        """Whether each call makes a new one."""
        return inspect.isroutine(self.given) or isinstance(self.given, type | partial)

    def call(self) -> Any:
        if not self.made:
            return self.given
        try:
            return self.given()
        except (Exception, SystemExit) as error:
            raise self.failed("calling it without arguments", error) from error

    @contextmanager
    def importing(self) -> Iterator[None]:
        yield

    def failed(self, action: str, error: BaseException) -> HsflError:
        return self.error(f"{self.label}: {action} raised {raised(error)}; what is given must run by itself")


def given_name(given: Any) -> str:
    """What stands in a scenario for an object that was given from Python: "given:Net"."""
    name = getattr(given, "__qualname__", None) or getattr(given, "__name__", None) or type(given).__name__
    return f"{GIVEN}:{re.sub(r'[^A-Za-z0-9_]+', '_', str(name)).strip('_') or 'object'}"


def source(spec: str, search: Path | None, label: str, error: type[HsflError], given: Any = None) -> Factory:
    """Where an object comes from: what was given from Python, or else the function that is named."""
    return Factory(spec, search, label, error) if given is None else FromPython(given, label, error)


def _files(module: str, folders: list[str]) -> list[Path]:
    """The files that importing a module from the folders runs first: those of its packages and its own.

    None where it lies elsewhere, or is part of the hsfl that is running.
    """
    found: list[Path] = []
    places = folders
    for part in module.split("."):  # each by itself: under its full name Python would import what lies above it
        spec = PathFinder.find_spec(part, places)
        if spec is None:
            break
        found += [Path(spec.origin)] if spec.origin else []
        places = list(spec.submodule_search_locations or [])
    return [] if found and found[0].is_relative_to(Path(__file__).parent) else found


def _forget_namesake(package: str, folders: list[str]) -> None:
    """Drop an imported module that another folder's module of the same name would otherwise hide behind."""
    found = PathFinder.find_spec(package, folders)
    loaded = sys.modules.get(package)
    origin = getattr(loaded, "__file__", None)
    if found and found.origin and origin and Path(origin).resolve() != Path(found.origin).resolve():
        for name in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
            del sys.modules[name]

"""Users' own functions, named in a scenario as "package.module:function"."""

from __future__ import annotations

import difflib
import importlib
import importlib.machinery
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hsfl.errors import HsflError, raised


class Factory:
    """A function to be found and called; what goes wrong is an error of the given kind, one sentence with `label`.

    Its module is looked for in the folder `search`, then in the working directory, then where Python looks.
    """

    def __init__(self, spec: str, search: Path | None, label: str, error: type[HsflError]) -> None:
        self.spec, self.label, self.error = spec, label, error
        self.folders = list(dict.fromkeys(str(Path(f).resolve()) for f in (search, Path()) if f is not None))

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
        """While modules beside the factory's can be imported."""
        before = sys.path[:]
        sys.path[:0] = self.folders
        importlib.invalidate_caches()
        try:
            yield
        finally:
            sys.path[:] = before

    def failed(self, action: str, error: BaseException) -> HsflError:
        """The sentence for an error in the user's own code."""
        return self.error(f"{self.label}: {action} raised {raised(error)}; a factory must import and run by itself")

    def _find(self) -> Callable[[], Any]:
        module_name, colon, attribute = self.spec.partition(":")
        if not (colon and module_name and attribute):
            raise self.error(f"{self.label}: write it as package.module:function")
        if module_name.endswith(".py"):
            raise self.error(f"{self.label}: write the module's name, not its file: {module_name[:-3]}:{attribute}")
        _forget_namesake(module_name.partition(".")[0], self.folders)
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
                raise self.failed(f"importing {module_name}", error) from error
            raise self.error(
                f"{self.label}: no module {error.name} in {' or '.join(self.folders)}; name one that can be imported "
                "from there"
            ) from None
        except (Exception, SystemExit) as error:
            raise self.failed(f"importing {module_name}", error) from error
        function = getattr(module, attribute, None)
        if function is not None and not callable(function):
            raise self.error(f"{self.label}: it is a {type(function).__name__}; name a function")
        if function is None:
            known = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
            near = difflib.get_close_matches(attribute, known, n=1)
            hint = f"did you mean {near[0]}?" if near else "name a function that the module defines"
            raise self.error(f"{self.label}: module {module_name} has no {attribute}; {hint}")
        return function  # type: ignore[no-any-return]


def _forget_namesake(package: str, folders: list[str]) -> None:
    """Drop an imported module that another folder's module of the same name would otherwise hide behind."""
    found = importlib.machinery.PathFinder.find_spec(package, folders)
    loaded = sys.modules.get(package)
    origin = getattr(loaded, "__file__", None)
    if found and found.origin and origin and Path(origin).resolve() != Path(found.origin).resolve():
        for name in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
            del sys.modules[name]

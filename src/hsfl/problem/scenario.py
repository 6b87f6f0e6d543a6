"""Read a scenario file, check it, and turn it into numbers."""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from hsfl.errors import HsflError, ScenarioError
from hsfl.problem.draw import draw_system
from hsfl.problem.messages import first_problem, nearest
from hsfl.problem.notation import toml_value
from hsfl.problem.problem import Constants, Problem
from hsfl.problem.profile import FloatArray, LayerProfile
from hsfl.problem.schema import ModelSection, ScenarioFile
from hsfl.problem.system import System

CATALOG = files("hsfl") / "catalog"
#: Fields that exclude each other: an override of one displaces the others.
_ALTERNATIVES = {
    "model": [{"name"}, {"profile"}, {"factory"}],
    "convergence": [{"target"}, {"rounds", "slack"}],
    "data": [{"name"}, {"factory"}],
}
DEFAULT_MOMENTUM = 0.9
DEFAULT_INPUT_SHAPES = {
    "vgg11": (3, 32, 32),
    "vgg16": (3, 32, 32),
    "lenet5": (1, 28, 28),
    "resnet18": (3, 32, 32),
    "vit": (3, 32, 32),
    "gpt": (128,),
}


@dataclass(frozen=True, eq=False)
class Scenario:
    """A checked scenario file. `raw` is what the file (with overrides) says, `spec` the same, typed."""

    spec: ScenarioFile
    raw: Mapping[str, Any]
    source: str
    folder: Path | None
    """Where relative paths start; None for a built-in scenario."""
    measure: Callable[[ModelSection, Path | None], LayerProfile]
    """Builds and measures a model that has no profile in a file."""

    @property
    def name(self) -> str:
        return self.spec.name

    def with_overrides(self, overrides: Mapping[str, Any]) -> Scenario:
        """The scenario with fields replaced, by path: {"tiers.device.uplink": "20 Mbps"}; None removes a field."""
        raw = copy.deepcopy(dict(self.raw))
        strategy_first = sorted(overrides.items(), key=lambda item: item[0] != "training.strategy")
        for path, value in strategy_first:
            _override(raw, path, value, self.source)
        return scenario_from_dict(raw, self.source, self.folder, self.measure)

    @cached_property
    def system(self) -> System:
        """The machines, with every distribution drawn."""
        return self.system_in(0)

    def system_in(self, epoch: int) -> System:
        """The machines with their link rates drawn for the epoch-th time; everything else as at the start."""
        return draw_system(self.spec.tiers, self.spec.seed, self.source, epoch)

    @cached_property
    def profile(self) -> LayerProfile:
        """The model's layers, from a file where there is one."""
        model = self.spec.model
        kind = next(k for k in ("name", "profile", "factory") if getattr(model, k) is not None)
        try:
            if model.profile is not None:
                return LayerProfile.from_csv((self.folder or Path()) / model.profile)
            if model.name is not None:
                if model.name not in DEFAULT_INPUT_SHAPES:
                    nearby, known = nearest(model.name, DEFAULT_INPUT_SHAPES), ", ".join(DEFAULT_INPUT_SHAPES)
                    raise ScenarioError(f"no such built-in model{nearby}; known are {known}")
                shipped = shipped_profile(model.name, model.input_shape)
                if shipped is not None:
                    return shipped
            return self.measure(model, self.folder)
        except HsflError as error:
            if model.name in DEFAULT_INPUT_SHAPES and model.input_shape is not None:
                kind = "input_shape"  # the model is known, so it is the shape that does not fit
            raise ScenarioError(f"{self.source}: model.{kind} = {toml_value(getattr(model, kind))}: {error}") from None

    @cached_property
    def problem(self) -> Problem:
        """The planning problem, in numbers."""
        return self.with_target(self._problem(lambda: self._constants(self.spec.convergence.drift or "paper")))

    @cached_property
    def training_problem(self) -> Problem:
        """The problem a training run starts from.

        Without a target, and with what is not known when the constants are measured while training.
        """
        drift = self.spec.convergence.drift or "refined"
        if self.spec.training.constants == "scenario":
            return self._problem(lambda: self._constants(drift))
        spec, none = self.spec.convergence, None
        return self._problem(
            lambda: Constants(
                spec.smoothness or np.nan,
                spec.initial_gap or np.nan,
                np.nan,
                np.zeros(len(self.profile)) if (found := self._per_layer("gradient_variance", none)) is None else found,
                self._per_layer("gradient_second_moment", none),
                self._dissimilarity(needed=False),
                drift,
            )
        )

    def _problem(self, constants: Callable[[], Constants]) -> Problem:
        profile, training = self.profile, self.spec.training
        momentum = 0.0
        if training.optimizer == "momentum":
            momentum = DEFAULT_MOMENTUM if training.momentum is None else training.momentum
        elif training.momentum is not None:
            raise ScenarioError(
                f'{self.source}: training.momentum = {training.momentum}: only with optimizer = "momentum"; remove it'
            )
        if not profile.optimizer_bits.any():
            profile = profile.with_optimizer(training.optimizer)
        if len(profile) < len(self.spec.tiers):
            raise ScenarioError(
                f"{self.source}: the model has {len(profile)} layers for {len(self.spec.tiers)} tiers; each tier needs "
                "at least one layer: use a deeper model or remove tiers"
            )
        return Problem(
            name=self.name,
            system=self.system,
            profile=profile,
            constants=constants(),
            batch_size=training.batch_size,
            learning_rate=training.learning_rate,
            momentum=momentum,
            seed=self.spec.seed,
            average_optimizer=training.average_optimizer,
        )

    def _constants(self, drift: str) -> Constants:
        spec = self.spec.convergence
        variance = self._per_layer("gradient_variance", "the noise floor")
        moment = self._per_layer("gradient_second_moment", 'drift = "paper"' if drift == "paper" else None)
        dissimilarity = self._dissimilarity(needed=drift == "refined")
        assert variance is not None
        for field in ("smoothness", "initial_gap"):
            if getattr(spec, field) is None:
                raise ScenarioError(
                    f"{self.source}: convergence.{field} is missing; planning needs it: hsfl estimate measures it, or "
                    "start from that of a similar built-in scenario"
                )
        assert spec.smoothness is not None and spec.initial_gap is not None
        return Constants(
            spec.smoothness, spec.initial_gap, spec.target or np.nan, variance, moment, dissimilarity, drift
        )

    def _per_layer(self, field: str, needed_for: str | None) -> FloatArray | None:
        values, profile = getattr(self.spec.convergence, field), self.profile
        if values is None:
            column: FloatArray | None = getattr(profile, field)
            if column is None and needed_for:
                raise ScenarioError(
                    f"{self.source}: convergence.{field} is missing and the profile has no such column; {needed_for} "
                    f"needs {len(profile)} numbers, one per layer: measure them, or start from those of a similar "
                    "built-in model"
                )
            return column
        if len(values) != len(profile):
            own = "" if getattr(profile, field) is None else ", or none at all: the profile has its own"
            raise ScenarioError(
                f"{self.source}: convergence.{field} has {len(values)} numbers; the model has {len(profile)} layers "
                f"and needs one for each{own}"
            )
        return np.array(values, dtype=float)

    def _dissimilarity(self, needed: bool) -> FloatArray | None:
        """(M, L): as given per tier, or from clients' for random grouping, (J_m - 1) / (N - 1) zeta_l^2."""
        field, tiers, profile = "gradient_dissimilarity", len(self.spec.tiers), self.profile
        values = self.spec.convergence.gradient_dissimilarity
        if values is not None and isinstance(values[0], list):
            lengths = {len(v) for v in values if isinstance(v, list)}
            if len(values) != tiers or lengths != {len(profile)}:
                raise ScenarioError(
                    f"{self.source}: convergence.{field} has {len(values)} lists of {sorted(lengths)} numbers; it "
                    f"needs {tiers} lists, one per tier, of {len(profile)}, one per layer"
                )
            return np.array(values, dtype=float)
        clients = self._per_layer(field, 'drift = "refined"' if needed else None)
        if clients is None:
            return None
        entities = np.array(self.system.entities)
        return (entities[:, None] - 1) / max(1, self.system.num_clients - 1) * clients

    def with_target(self, problem: Problem) -> Problem:
        """Fill in epsilon, as given or by the rounds that full synchronisation would need with these constants."""
        spec = self.spec.convergence
        if (spec.target is None) == (spec.rounds is None):
            given = "neither target nor rounds" if spec.target is None else "both target and rounds"
            raise ScenarioError(
                f"{self.source}: convergence has {given}; give exactly one of them, as what a plan is to reach"
            )
        if spec.rounds is None:
            assert spec.target is not None
            if spec.slack is not None:
                raise ScenarioError(f"{self.source}: convergence.slack = {spec.slack}: only with rounds; remove it")
            return replace(problem, constants=replace(problem.constants, target=spec.target))
        constants = problem.constants
        floor = constants.smoothness * problem.step * constants.gradient_variance.sum() / problem.system.num_clients
        target = (2 * constants.initial_gap / (problem.step * spec.rounds) + floor) * (1 + (spec.slack or 0.0))
        return replace(problem, constants=replace(constants, target=float(target)))


def read_scenario(path_or_name: str | Path, measure: Callable[[ModelSection, Path | None], LayerProfile]) -> Scenario:
    """Read a scenario file, or a built-in scenario by its name."""
    path = Path(path_or_name)
    builtin = CATALOG / "scenarios" / f"{path_or_name}.toml"
    known = scenario_names()
    try:
        is_file, is_folder = path.is_file(), bool(str(path_or_name)) and path.is_dir()
    except (OSError, ValueError):  # no path at all
        is_file = is_folder = False
    if not is_file and str(path_or_name) in known:
        source = f"scenario {path_or_name}"
        return scenario_from_dict(_parse(builtin, source), source, None, measure)
    if not is_file:
        problem = "is a folder" if is_folder else "no such file or built-in scenario"
        raise ScenarioError(
            f"{path_or_name}: {problem}{nearest(str(path_or_name), known)}; built-in are {', '.join(known)}, and "
            "hsfl init FILE writes a file to start from"
        )
    return scenario_from_dict(_parse(path, str(path)), str(path), path.parent, measure)


def shipped_profile(name: str, input_shape: Sequence[int] | None = None) -> LayerProfile | None:
    """The profile of a built-in model that comes with hsfl, if there is one for the shape of its samples."""
    shape = input_shape or DEFAULT_INPUT_SHAPES[name]
    path = CATALOG / "profiles" / f"{name}-{'x'.join(map(str, shape))}.csv"
    return LayerProfile.from_csv(path) if path.is_file() else None


def scenario_names() -> list[str]:
    """The built-in scenarios."""
    return sorted(p.name.removesuffix(".toml") for p in (CATALOG / "scenarios").iterdir() if p.name.endswith(".toml"))


def scenario_from_dict(
    raw: Mapping[str, Any],
    source: str,
    folder: Path | None,
    measure: Callable[[ModelSection, Path | None], LayerProfile],
) -> Scenario:
    """Check parsed TOML; `ScenarioError` names the first field that is wrong."""
    try:
        spec = ScenarioFile.model_validate(raw)
    except ValidationError as error:
        raise ScenarioError(f"{source}: {first_problem(error, raw)}") from None
    chosen = [k for k in ("name", "profile", "factory") if getattr(spec.model, k) is not None]
    if len(chosen) != 1:
        given = " and ".join(chosen) or "none of them"
        raise ScenarioError(f"{source}: model has {given}; give exactly one of name, profile and factory")
    if spec.model.factory is not None and spec.model.input_shape is None:
        raise ScenarioError(
            f"{source}: model.input_shape is missing; a factory needs it, such as input_shape = [3, 32, 32]"
        )
    names = [t.name for t in spec.tiers]
    if repeated := [n for n in names if names.count(n) > 1]:
        raise ScenarioError(
            f"{source}: tiers.name = {toml_value(repeated[0])} is used twice; give every tier its own name"
        )
    return Scenario(spec, raw, source, folder, measure)


def _parse(path: Path | Traversable, source: str) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except tomllib.TOMLDecodeError as error:
        raise ScenarioError(f"{source}: not valid TOML: {error}; correct that line") from None
    except RecursionError:
        raise ScenarioError(f"{source}: not valid TOML: nested too deeply; a scenario needs three levels") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ScenarioError(f"{source}: cannot be read as a text file ({reason}); write a TOML file in UTF-8") from None


def _override(raw: dict[str, Any], path: str, value: Any, source: str) -> None:
    keys = path.split(".")
    node: Any = raw
    for depth, key in enumerate(keys[:-1]):
        if isinstance(node, list):
            node = _tier_by_name(node, key, path, source)
        elif isinstance(node, dict):
            node = node.setdefault(key, {})
        if not isinstance(node, dict | list):
            section = ".".join(keys[: depth + 1])
            raise ScenarioError(f"{source}: {path}: {section} is a value, not a section; shorten the path")
    if not isinstance(node, dict):
        raise ScenarioError(f"{source}: {path}: name a tier and a field, such as tiers.device.uplink")
    if value is None:
        node.pop(keys[-1], None)
        return
    if path == "training.strategy":
        for other in ("cuts", "intervals"):  # they belong to the one that was there
            node.pop(other, None)
    group = _ALTERNATIVES.get(keys[0], []) if len(keys) == 2 else []
    if any(keys[-1] in names for names in group):
        for names in group:
            if keys[-1] not in names:
                for other in names:
                    node.pop(other, None)
    node[keys[-1]] = value


def _tier_by_name(tiers: list[Any], key: str, path: str, source: str) -> Any:
    names = [t.get("name") if isinstance(t, dict) else None for t in tiers]
    if key in names:
        return tiers[names.index(key)]
    if key.isdecimal() and 1 <= int(key) <= len(tiers):
        return tiers[int(key) - 1]
    known = ", ".join(str(n) for n in names)
    raise ScenarioError(f"{source}: {path}: no tier {key!r}{nearest(key, map(str, names))}; the tiers are {known}")

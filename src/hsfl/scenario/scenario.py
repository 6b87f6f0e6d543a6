"""A checked scenario, and what it says in numbers: machines, layers, constants, the planning problem."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from hsfl.display import table
from hsfl.errors import HsflError, ScenarioError, nearest
from hsfl.problem.problem import Constants, Problem
from hsfl.problem.profile import FloatArray, LayerProfile
from hsfl.problem.system import System
from hsfl.scenario.catalog import CLASSES, DEFAULT_INPUT_SHAPES, shipped_profile
from hsfl.scenario.caveats import caveat
from hsfl.scenario.checking import check_averaging, check_chunks, checked_spec, listed_tiers, tier_names
from hsfl.scenario.data_section import DataSection
from hsfl.scenario.draw import draw_system
from hsfl.scenario.objects import given_fields, still_named
from hsfl.scenario.overrides import with_fields
from hsfl.scenario.schema import ModelSection, ScenarioFile
from hsfl.scenario.toml_format import toml_value
from hsfl.theory.coding import of_all_codes, usual_coding_noise
from hsfl.theory.convergence import loss_target, target_after

DEFAULT_MOMENTUM = 0.9
#: Builds and profiles a model that has no profile in a file; the folder is where its module is looked for first, and
#: what follows was given from Python instead, or None.
Profiler = Callable[[ModelSection, Path | None, Any], LayerProfile]


@dataclass(frozen=True, eq=False, repr=False)
class Scenario:
    """A checked scenario file. `raw` is what the file (with overrides) says, `spec` the same, typed."""

    spec: ScenarioFile
    raw: Mapping[str, Any]
    source: str
    folder: Path | None
    """Where relative paths start; None for a built-in scenario."""
    profiler: Profiler
    objects: Mapping[str, Any] = field(default_factory=dict)
    """What was given from Python in place of names of functions: "model", "data" and "strategy", where they were."""

    @property
    def name(self) -> str:
        return self.spec.name

    def _repr_html_(self) -> str:
        fields = ("entities", "compute", "memory", "uplink", "downlink", "fed_uplink", "fed_downlink", "code")
        used = [field for field in fields if any(field in tier for tier in self.raw["tiers"])]
        rows = [
            (tier["name"], *(str(v) if isinstance(v := tier.get(f, ""), str) else toml_value(v) for f in used))
            for tier in self.raw["tiers"]
        ]
        training = self.spec.training
        kept = "; labels on the devices" if training.labels == "devices" else ""
        several = "" if training.micro_batches == 1 else f" × {toml_value(training.micro_batches)}"
        chunks = "" if training.chunks == 1 else f" in {training.chunks} chunks"
        batch = f"batch {training.batch_size}{several}{chunks}"
        note = f"Model {self._model}; {batch}, learning rate {training.learning_rate:g}{kept}."
        title = f"{self.name}: {self.spec.description}" if self.spec.description else self.name
        return table(title, rows, ["tier", *(field.replace("_", " ") for field in used)], note)

    @property
    def _model(self) -> str:
        return str(self.spec.model.name or self.spec.model.profile or self.spec.model.factory)

    def with_overrides(self, overrides: Mapping[str, Any]) -> Scenario:
        """The scenario with fields replaced, by path: {"tiers.device.uplink": "20 Mbps"}; None removes a field."""
        raw = with_fields(copy.deepcopy(dict(self.raw)), overrides, self.source)
        return scenario_from_dict(raw, self.source, self.folder, self.profiler, self.objects)

    def with_objects(self, objects: Mapping[str, Any]) -> Scenario:
        """The scenario with a "model", "data" or a "strategy" from Python; None is not given."""
        given = {kind: thing for kind, thing in objects.items() if thing is not None}
        raw = with_fields(copy.deepcopy(dict(self.raw)), given_fields(self.raw, given), self.source)
        return scenario_from_dict(raw, self.source, self.folder, self.profiler, {**self.objects, **given})

    def __repr__(self) -> str:
        tiers = " → ".join(f"{tier.entities} {tier.name}" for tier in self.spec.tiers)  # without drawing any
        return f"<Scenario {self.name}: {self._model} over {tiers}>"

    @cached_property
    def system(self) -> System:
        """The machines, with every distribution drawn."""
        return self.system_in(0)

    def system_in(self, epoch: int) -> System:
        """The machines with their link rates drawn for the epoch-th time; everything else as at the start."""
        returns = self.spec.training.labels == "devices"
        system = draw_system(self.spec.tiers, self.spec.seed, self.source, epoch, returns=returns)
        return replace(system, cohort=self._cohort)

    @property
    def tier_names(self) -> list[str]:
        """The tiers of a plan by name: those of the file and, where labels stay on the devices, their tail."""
        return tier_names(self.spec)

    @property
    def _cohort(self) -> int | None:
        """How many clients take part at a time; None for all."""
        given, clients = self.spec.participation.cohort, self.spec.tiers[0].entities
        if given is None:
            return None
        if given > clients:
            raise ScenarioError(
                f"{self.source}: participation.cohort = {given}: there are {clients} clients; give at most so many, or "
                "leave it out for all"
            )
        return given if isinstance(given, int) else max(1, round(given * clients))

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
                shipped = shipped_profile(model.name, model.input_shape) if model.classes in (None, CLASSES) else None
                if shipped is not None:
                    return shipped
            return self.profiler(model, self.folder, self.objects.get("model"))
        except HsflError as error:
            if model.name in DEFAULT_INPUT_SHAPES and model.input_shape is not None:
                kind = "input_shape"  # the model is known, so it is the shape that does not fit
            raise ScenarioError(f"{self.source}: model.{kind} = {toml_value(getattr(model, kind))}: {error}") from None

    @property
    def data(self) -> DataSection:
        """What to train on; ScenarioError where the scenario does not say."""
        if self.spec.data is None:
            raise ScenarioError(
                f'{self.source}: data is missing; add a section [data] with name = "mnist-mini" or another, or give '
                "--set data.name=mnist-mini"
            )
        return self.spec.data

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one sample; empty where nothing says it."""
        return tuple(self.spec.model.input_shape or DEFAULT_INPUT_SHAPES.get(self.spec.model.name or "", ()))

    @property
    def training_seed(self) -> int:
        """The seed of initial weights, partition and mini-batches."""
        return self.spec.seed if self.spec.training.seed is None else self.spec.training.seed

    @cached_property
    def problem(self) -> Problem:
        """The planning problem, in numbers; ScenarioError where a constant of the bound is missing."""
        return self.with_target(self._with_constants(self.spec.convergence.drift or "paper"))

    @cached_property
    def training_problem(self) -> Problem:
        """The problem a training run starts from: without a target, and with the constants as far as they are known.

        All constants are known where the run takes those of the scenario and measures none.
        """
        measured = self.spec.strategy.constants == "measured"
        drift = self.spec.strategy.drift or ("energy" if measured else self.spec.convergence.drift or "refined")
        if not measured:
            return self._with_constants(drift)
        return replace(self.bare_problem, constants=replace(self.bare_problem.constants, drift=drift))

    @property
    def probe_batches(self) -> int:
        """How many mini-batches per client one measurement of the constants takes."""
        return self.spec.strategy.probe_batches or (2 if self.training_problem.constants.by_loss else 4)

    @cached_property
    def bare_problem(self) -> Problem:
        """Machines, layers and training, with the constants of the bound as far as the scenario has them (else NaN)."""
        profile, training, spec = self.profile, self.spec.training, self.spec.convergence
        momentum = 0.0
        if training.optimizer == "momentum":
            momentum = DEFAULT_MOMENTUM if training.momentum is None else training.momentum
        elif training.momentum is not None:
            raise ScenarioError(
                f'{self.source}: training.momentum = {training.momentum}: only with optimizer = "momentum"; remove it'
            )
        check_averaging(self.spec, self.source)
        check_chunks(self.spec, profile, self.source)
        if not profile.optimizer_bits.any():
            profile = profile.with_optimizer(training.optimizer)
        if len(profile) < len(self.tier_names):
            raise ScenarioError(
                f"{self.source}: the model has {len(profile)} layers for {listed_tiers(self.spec)}; each needs "
                "at least one layer: use a deeper model or remove tiers"
            )
        variance = self._per_layer("gradient_variance", None)
        return Problem(
            name=self.name,
            system=self.system,
            profile=profile,
            constants=Constants(
                smoothness=spec.smoothness or np.nan,
                initial_gap=spec.initial_gap or np.nan,
                target=np.nan,
                gradient_variance=np.zeros(len(profile)) if variance is None else variance,
                gradient_second_moment=self._per_layer("gradient_second_moment", None),
                gradient_dissimilarity=self._dissimilarity(needed=False),
                drift=spec.drift or "paper",
                coding_noise=self._coding_noise(variance),
            ),
            batch_size=training.batch_size,
            learning_rate=training.learning_rate,
            momentum=momentum,
            seed=self.spec.seed,
            average_optimizer=training.average_optimizer,
            averaging=training.averaging,
            micro_batches=training.fewest_micro_batches,
            micro_batch_choices=training.micro_batch_choices,
            chunks=training.chunks,
        )

    def _with_constants(self, drift: str) -> Problem:
        """The bare problem, once everything that the bound needs with this drift model is known to be there."""
        spec = self.spec.convergence
        self._per_layer("gradient_variance", "the noise floor")
        if drift == "paper" or self.system.plans_codes:
            what = 'drift = "paper"' if drift == "paper" else "planning codes"
            self._per_layer("gradient_second_moment", what)
        self._dissimilarity(needed=drift in ("refined", "energy"))
        for name in ("smoothness", "initial_gap"):
            if getattr(spec, name) is None:
                raise ScenarioError(f"{self.source}: convergence.{name} is missing; planning needs it: {self._remedy}")
        return replace(self.bare_problem, constants=replace(self.bare_problem.constants, drift=drift))

    @property
    def _remedy(self) -> str:
        """Where the constants of the bound come from."""
        file = self.source if self.folder is not None and Path(self.source).is_file() else "FILE"
        return f"hsfl estimate {file} --write measures what is missing, or start from a similar built-in scenario"

    def _per_layer(self, field: str, needed_for: str | None) -> FloatArray | None:
        values, profile = getattr(self.spec.convergence, field), self.profile
        if values is None:
            column: FloatArray | None = getattr(profile, field)
            if column is None and needed_for:
                raise ScenarioError(
                    f"{self.source}: convergence.{field} is missing and the profile has no such column; {needed_for} "
                    f"needs {len(profile)} numbers, one per layer: {self._remedy}"
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
        """(M, L): dissimilarity, given per tier, or that of clients grouped at random, (J_m - 1) / (N - 1) zeta_l^2."""
        field, tiers, profile = "gradient_dissimilarity", len(self.spec.tiers), self.profile
        values = self.spec.convergence.gradient_dissimilarity
        if values is not None and isinstance(values[0], list):
            lengths = {len(v) for v in values if isinstance(v, list)}
            if len(values) != tiers or lengths != {len(profile)}:
                raise ScenarioError(
                    f"{self.source}: convergence.{field} has {len(values)} lists of {sorted(lengths)} numbers; it "
                    f"needs {tiers} lists, one per tier, of {len(profile)}, one per layer"
                )
            return np.array([*values, *values[: self.system.num_tiers - tiers]], dtype=float)
        clients = self._per_layer(field, 'drift = "refined"' if needed else None)
        if clients is None:
            return None
        entities = np.array(self.system.entities)
        return (entities[:, None] - 1) / max(1, self.system.num_clients - 1) * clients

    def _coding_noise(self, variance: FloatArray | None) -> FloatArray | None:
        """(2, C, L): the noise of codes, from what int4 adds, given or usual; None where no code is planned."""
        if not self.system.plans_codes:
            return None
        noise = usual_coding_noise(np.zeros(len(self.profile)) if variance is None else variance)
        for row, link in zip(noise, ("up", "down"), strict=True):
            values = getattr(self.spec.convergence, f"coding_noise_{link}")
            if values is not None and len(values) != len(row):
                raise ScenarioError(
                    f"{self.source}: convergence.coding_noise_{link} has {len(values)} numbers; the model has "
                    f"{len(row)} layers and needs one for each, or none at all"
                )
            row[:] = row if values is None else values
        return of_all_codes(noise)

    @property
    def caveat(self) -> str | None:
        """What a plan for this scenario rests on that does not hold, in a sentence; None where all does."""
        return caveat(self.spec)

    def with_target(self, problem: Problem) -> Problem:
        """Fill in epsilon, as given or by the rounds that full synchronisation would need with these constants.

        These rounds are at the given learning rate, or at 1/smoothness where that is less: above it the bound ends. All
        clients take part in them, with one mini-batch each, so that plans for cohorts of any size, and for any number
        of mini-batches, have one target.
        """
        spec = self.spec.convergence
        if problem.constants.by_loss:
            return replace(problem, constants=replace(problem.constants, target=loss_target(problem)))
        if (spec.target is None) == (spec.rounds is None):
            given = "neither target nor rounds" if spec.target is None else "both target and rounds"
            raise ScenarioError(
                f"{self.source}: convergence has {given}; give exactly one of them, as what a plan is to reach: rounds "
                "= 1000 in [convergence] is what full synchronisation reaches in so many (when training ends is in "
                "[stopping])"
            )
        if spec.rounds is None:
            assert spec.target is not None
            if spec.slack is not None:
                raise ScenarioError(f"{self.source}: convergence.slack = {spec.slack}: only with rounds; remove it")
            return replace(problem, constants=replace(problem.constants, target=spec.target))
        everyone = replace(problem, system=replace(problem.system, cohort=None), micro_batches=1)
        valid = everyone.with_step(min(problem.step, 1 / problem.constants.smoothness))
        target = target_after(valid, spec.rounds, spec.slack or 0.0)
        return replace(problem, constants=replace(problem.constants, target=target))


def scenario_from_dict(
    raw: Mapping[str, Any],
    source: str,
    folder: Path | None,
    profiler: Profiler,
    objects: Mapping[str, Any] | None = None,
) -> Scenario:
    """Check what a file says; ScenarioError names the first field that is wrong. Objects go where others are named."""
    return Scenario(checked_spec(raw, source), raw, source, folder, profiler, still_named(raw, objects or {}))

"""What `import hsfl` offers: load a scenario, plan it, evaluate a plan of your own, compare."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hsfl.errors import HsflError, InfeasibleError, ScenarioError
from hsfl.planner.baselines import Comparison, alternatives
from hsfl.planner.result import Evaluation, PlanResult, evaluate_plan
from hsfl.planner.solve import best_at, check_order, completed, solve, solve_with_step
from hsfl.problem.plan import Plan, make_plan
from hsfl.runs.profiling import profile_model
from hsfl.scenario.reading import read_scenario
from hsfl.scenario.scenario import Scenario

if TYPE_CHECKING:
    from hsfl.distributed.cluster import Cluster
    from hsfl.engine import Backend
    from hsfl.engine.losses import Loss, Metric
    from hsfl.problem.problem import Constants
    from hsfl.problem.strategy import Strategy
    from hsfl.runs.callback import Callback
    from hsfl.runs.reading import Run


#: One that is loaded, its file, the name of a built-in one, or a dictionary with what a file would say.
SomeScenario = Scenario | str | Path | Mapping[str, Any]


def load_scenario(
    scenario: str | Path | Mapping[str, Any],
    overrides: Mapping[str, Any] | None = None,
    *,
    model: Any = None,
    data: Any = None,
    strategy: Strategy | None = None,
) -> Scenario:
    """Read and check a scenario: a file, a built-in one by name, or a dictionary with what a file would say.

    `overrides` replaces fields by path before the check, for example ``{"tiers.device.uplink": "20 Mbps"}``. Raises
    `hsfl.HsflError` with one sentence when anything is wrong. The constants of the convergence bound may be absent:
    planning says that it needs them, training measures its own.

    Objects may take the place of what the scenario names: `model`, an nn.Module, trained from the weights it has, or a
    function that makes one; `data`, four tensors or two torch Datasets, or a function that returns them; `strategy`, an
    object as `hsfl.problem.strategy.Strategy` describes it. Whatever is done with the scenario uses these objects.
    """
    found = read_scenario(scenario, profile_model, overrides, {"model": model, "data": data, "strategy": strategy})
    with _naming(found):
        _ = found.bare_problem
    return found


def plan(
    scenario: SomeScenario,
    method: str = "exact",
    *,
    allow_empty_tiers: bool = False,
    optimize_learning_rate: bool = False,
    time_limit_s: float = 60.0,
) -> PlanResult:
    """The best cuts and intervals for a scenario.

    `method` is "exact" (proven optimal) or "bcd" (the paper's Algorithm 2). `allow_empty_tiers` lets tiers above the
    devices hold no layer.
    `optimize_learning_rate` chooses the learning rate too. Beyond `time_limit_s` the exact method returns the best
    plan so far with a true lower bound and the gap between them. A warning says where the bound does not hold for the
    scenario's optimiser.
    """
    scenario = _loaded(scenario)
    if scenario.caveat is not None:
        warnings.warn(scenario.caveat, stacklevel=2)
    with _naming(scenario):
        if optimize_learning_rate:
            if method != "exact":
                raise ScenarioError(
                    "only the exact method can optimise the learning rate; leave out --method or the option"
                )
            return solve_with_step(scenario.problem, allow_empty_tiers=allow_empty_tiers, time_limit_s=time_limit_s)
        return solve(scenario.problem, method, allow_empty_tiers=allow_empty_tiers, time_limit_s=time_limit_s)


def evaluate(
    scenario: SomeScenario,
    cuts: Iterable[int],
    intervals: Iterable[int] | None = None,
    *,
    allow_empty_tiers: bool = False,
) -> Evaluation:
    """The numbers of a plan of your own: M-1 cuts (counts of layers) and M intervals (rounds).

    Without `intervals` the best ones for the cuts are taken; so are codes and mini-batches that are left to plans. A
    plan that misses the target or the memories is evaluated all the same and says so.
    """
    scenario = _loaded(scenario)
    problem = scenario.problem
    with _naming(scenario):
        chosen = make_plan(
            cuts,
            (1,) * problem.system.num_tiers if intervals is None else intervals,
            entities=problem.system.entities,
            num_layers=problem.num_layers,
            allow_empty_tiers=allow_empty_tiers,
            returns=problem.system.returns,
        )
        if intervals is None:
            return evaluate_plan(problem, best_at(problem, chosen.cuts))
        check_order(problem.system, chosen.intervals)
        chosen = completed(problem, chosen)
        return evaluate_plan(problem, chosen)


def plan_sweep(
    scenario: SomeScenario, field: str, values: Iterable[Any], **options: Any
) -> list[PlanResult | HsflError]:
    """The plan for every value of a field, such as "tiers.device.uplink", or the error that says why there is none.

    The options are those of `plan`.
    """
    scenario = _loaded(scenario)

    def planned(value: Any) -> PlanResult | HsflError:
        try:
            return plan(scenario.with_overrides({field: value}), **options)
        except HsflError as error:
            return error

    return [planned(value) for value in values]


def compare(scenario: SomeScenario, chosen: Plan | PlanResult, *, allow_empty_tiers: bool = False) -> Comparison:
    """What other ways of choosing would cost: full synchronisation, random plans, AMS, PSL, one tier less.

    All rows are at the learning rate of the result, or of the scenario for a bare plan.
    """
    problem = _loaded(scenario).problem
    if isinstance(chosen, PlanResult):
        problem = replace(problem, learning_rate=chosen.evaluation.learning_rate)
        chosen = chosen.plan
    check_order(problem.system, chosen.intervals)
    objective_s = evaluate_plan(problem, chosen).objective_s
    return Comparison(alternatives(problem, chosen, allow_empty_tiers=allow_empty_tiers), objective_s)


def backend(
    kind: str,
    layers: Sequence[Any],
    hosts: Sequence[Sequence[int]],
    cuts: Sequence[int],
    optimizer: Mapping[str, Any],
    **options: Any,
) -> Backend:
    """An executor of training rounds: "stacked" (fast) or "reference" (slow, reads like the paper); same numbers.

    `layers` is the model as a list of torch modules, such as the children of `hsfl.models.chain`, `hosts[m][n]` the
    entity of tier m that serves client n (a last tier like the first: devices that hold the last layers, too),
    `cuts` M-1 counts of layers, `optimizer` for example ``{"name": "sgd", "lr": 0.01, "momentum": 0.9}``, where `clip`
    is the largest norm of an entity's gradient and `schedule` a function of the round that gives a factor of `lr`.
    Options: `loss` (of outputs and targets, for every sample; default cross entropy), `metrics` (the same by name),
    `weights` (what every client counts), `averaging` ("plain", "corrected", "fedadam" and the like, or a rule of
    `hsfl.engine.averaging`), `codes` ("int8" for all links, or for each tier a name or a table such as ``{"up":
    "int4", "down": "int8"}``), `micro_batches` (how many mini-batches of every client `step` is given), `dtype`,
    `device`, `precision` ("fp32", "tf32", "bf16"), `seed` (of dropout), `capture` (False: no CUDA graphs) and `data`
    (what `train_round` trains on). Tiers, entities, clients, layers and rounds count from 0 here. Needs torch.
    """
    from hsfl.engine import BACKENDS

    if kind not in BACKENDS:
        raise ScenarioError(f"backend {kind!r}: it must be one of {', '.join(BACKENDS)}")
    return BACKENDS[kind](layers, hosts, cuts, optimizer, **options)


def _loaded(scenario: SomeScenario) -> Scenario:
    return scenario if isinstance(scenario, Scenario) else load_scenario(scenario)


def train(
    scenario: SomeScenario,
    *,
    strategy: str | Strategy | None = None,
    loss: str | Loss | None = None,
    metrics: Mapping[str, Metric] | Iterable[str | Metric] | None = None,
    callbacks: Sequence[Callback] = (),
    out: str | Path | None = None,
    data: str | Path | None = None,
) -> Run:
    """Train a scenario into a run folder (default: the next free runs/NAME-STRATEGY-N) and read it back.

    `strategy` is a name, such as "HSFL", or an object of your own (see `hsfl.problem.strategy.Strategy`); default:
    the scenario's. `loss`, a name or a function, and `metrics`, a list of such or a dictionary of functions, are used
    instead of the scenario's: functions of outputs and targets that give a number for every sample, such as torch's
    losses with ``reduction="none"``. `callbacks` are subclasses of `hsfl.Callback`. `data` is a folder with data sets.
    Ctrl-C finishes the round, writes a checkpoint and raises KeyboardInterrupt; `hsfl.resume` goes on from there.
    """
    scenario = _chosen(_loaded(scenario), strategy)
    _check_extra()
    from hsfl.runs.learning import Given, naming
    from hsfl.runs.training import start

    if isinstance(loss, str):
        scenario, loss = scenario.with_overrides({"training.loss": loss}), None
    elif loss is not None:
        scenario = naming(scenario, loss)
    return start(scenario, _path(out), given=Given(loss, metrics), callbacks=callbacks, data_folder=_path(data))


def run(
    scenario: SomeScenario,
    *,
    cluster: str = "local",
    strategy: str | Strategy | None = None,
    callbacks: Sequence[Callback] = (),
    out: str | Path | None = None,
    data: str | Path | None = None,
    token: str | Path | None = None,
    certificates: str | Path | None = None,
    listen: str | None = None,
    state: str | Path | None = None,
    as_measured: bool = False,
) -> Run:
    """Run a scenario on machines into a run folder, like `train`, with measured times and the same weights.

    This process is the coordinator. `cluster` is one of

    - "local": every entity and the fed server a process beside it;
    - "ray": each an actor of a Ray cluster, one of its own or that of RAY_ADDRESS; "ray:HOST:6379" or
      "ray://HOST:10001" name a cluster. `listen`, HOST:PORT, is where its nodes reach this process, if that cannot be
      found out; `state` a folder that they share, for what machines save. Needs the extra "ray";
    - HOST:PORT, where it listens for machines that join (`hsfl node`); these need a `token`, a file with it, and/or
      `certificates`, a folder that `hsfl certificates` wrote.

    `as_measured`: plans are made for the machines and links as they are measured, not as the scenario has them. Needs
    the extra "run".
    """
    scenario = _chosen(_loaded(scenario), strategy)
    where = (cluster, _path(data), _path(token), _path(certificates), listen, _path(state), as_measured)
    with _machines(scenario, *where) as (scenario, executor):
        from hsfl.runs.training import start

        return start(scenario, _path(out), executor=executor, callbacks=callbacks, data_folder=_path(data))


def resume(
    folder: str | Path,
    overrides: Mapping[str, Any] | None = None,
    *,
    model: Any = None,
    strategy: Strategy | None = None,
    loss: Loss | None = None,
    metrics: Mapping[str, Metric] | Iterable[str | Metric] | None = None,
    callbacks: Sequence[Callback] = (),
    data: Any = None,
    cluster: str | None = None,
    token: str | Path | None = None,
    certificates: str | Path | None = None,
    listen: str | None = None,
    state: str | Path | None = None,
    as_measured: bool = False,
) -> Run:
    """Go on with a run from its last checkpoint; `overrides` may change when it ends (stopping.rounds and the like).

    A run with a model, data, a strategy, a loss or metrics of your own, given from Python, needs them again here;
    `data` may also be a folder with data sets. `cluster` and what follows it are those of `run`; without a cluster it
    goes on in this process.
    """
    _check_extra()
    from hsfl.runs import resuming
    from hsfl.runs.training import resume as go_on

    scenario, data_folder = resuming.read(Path(folder), profile_model)
    if overrides:
        changed = scenario.with_overrides(overrides)
        resuming.check_same(scenario, changed, Path(folder))
        scenario = changed
    if isinstance(data, str | Path):
        data_folder, data = Path(data), None
    scenario = scenario.with_objects({"model": model, "data": data, "strategy": strategy})
    options: Any = {"callbacks": callbacks, "data_folder": data_folder}
    if cluster is None:
        from hsfl.runs.learning import Given

        return go_on(Path(folder), scenario, given=Given(loss, metrics), **options)
    if loss is not None or metrics is not None:
        raise HsflError("loss, metrics: machines find theirs by name; give training.loss and training.metrics")
    where = (cluster, data_folder, _path(token), _path(certificates), listen, _path(state), as_measured)
    with _machines(scenario, *where) as (scenario, executor):
        return go_on(Path(folder), scenario, executor=executor, **options)


def _chosen(scenario: Scenario, strategy: str | Strategy | None) -> Scenario:
    """A strategy that is given, by its name or as an object, belongs to the scenario."""
    if isinstance(strategy, str):
        return scenario.with_overrides({"strategy.name": strategy})
    return scenario.with_objects({"strategy": strategy})


@contextmanager
def _machines(scenario: Scenario, *where: Any) -> Iterator[tuple[Scenario, Cluster]]:
    """The machines of a run, and its scenario as they train it."""
    _check_extra()
    from hsfl.distributed.choosing import Where, cluster_of

    def notify(text: str) -> None:
        warnings.warn(text, stacklevel=2)

    with cluster_of(scenario, Where(*where), notify) as machines:
        yield machines.scenario, machines


def estimate(
    scenario: SomeScenario, *, rounds: int = 100, batches: int = 16, data: str | Path | None = None
) -> Constants:
    """Measure the convergence constants of a scenario: the largest of three points of a short synchronised training.

    The points are the start, the middle and the end, after `rounds` rounds; each is measured on `batches` mini-batches
    per client. The dissimilarity is that between the entities of every tier, (M, L).
    """
    _check_extra()
    from hsfl.runs.estimating import measure_constants

    return measure_constants(_loaded(scenario), rounds, batches, _path(data))


def _check_extra() -> None:
    """MissingExtraError where a package that training needs is not installed; Python's own error names no remedy."""
    import hsfl.engine  # noqa: F401


def _path(path: str | Path | None) -> Path | None:
    return None if path is None else Path(path)


@contextmanager
def _naming(scenario: Scenario) -> Iterator[None]:
    """Put the scenario's name in front of what goes wrong."""
    try:
        yield
    except HsflError as error:
        if str(error).startswith(scenario.source):
            raise
        raise type(error)(f"{scenario.source}: {error}") from None
    except MemoryError:
        raise InfeasibleError(
            f"{scenario.source}: there is not enough memory for a problem of this size; use fewer entities or layers"
        ) from None

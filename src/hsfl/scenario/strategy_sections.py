"""The sections of a scenario file that say who chooses cuts and intervals while training, and when training ends.

Like those of `scenario.schema`, they are all that `hsfl init`, docs/scenario.md and error messages are made from.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hsfl.scenario.field_types import Duration, Positive, Round, Section


class StoppingSection(Section):
    """When training ends: at the first of these that is met; with none of them, after 1000 rounds."""

    rounds: Round | None = Field(
        None,
        description="Train for so many rounds.",
        examples=[2000],
    )
    time_limit: Duration | None = Field(
        None, description='Train for so much simulated time: "90 s", "2 h", or seconds.', examples=["2 h"]
    )
    until_accuracy: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None, description="Train until an evaluation reaches this test accuracy.", examples=[0.9]
    )
    until_loss: Positive | None = Field(
        None,
        description="Train until the training loss, averaged over the last tenth of the rounds, is at this at an "
        "evaluation; until then, evaluations and plans forecast how long it takes.",
        examples=[0.1],
    )
    until_converged: bool = Field(
        False,
        description="Train until the test accuracy, averaged over 10 evaluations, gains less than 0.02 points on the "
        "10 before.",
    )


class StrategySection(Section):
    """Who chooses cuts and intervals while training, and what is known when they are chosen."""

    name: str = Field(
        "HSFL",
        description="Who chooses cuts and intervals: HSFL (the planner, again whenever every tier has been averaged), "
        "fixed (cuts and intervals as given), one of the paper's benchmarks (RMA+MS, MA+RMS, RMA+RMS, DAMA+RMS, "
        "RMA+AMS, PSL), the variant RMA+AMS-averages, FedAvg (every layer on the devices, see local_steps), or your "
        'own: "package.module:Class".',
    )
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = Field(
        None,
        description="Seed of what a strategy draws at random, apart from what training draws; default: training's.",
        examples=[1],
    )
    cuts: list[int] | None = Field(
        None,
        description="With name = fixed and PSL: M-1 counts of layers, after which the model is cut; M of them with "
        "labels = devices. With HSFL: keep these and plan the intervals only.",
        examples=[[1, 3]],
    )
    intervals: list[int] | None = Field(
        None,
        description="With name = fixed: M intervals in rounds, one per tier and, with labels = devices, one for the "
        "tail; 1 for a tier with one machine. With HSFL: keep these and plan the cuts only.",
        examples=[[10, 5, 1]],
    )
    local_steps: Round | None = Field(
        None,
        description="With name = FedAvg: the rounds, each one step, that devices train on their own before they are "
        "averaged; by default 1.",
        examples=[5],
    )
    planner: Literal["exact", "bcd"] = Field(
        "exact",
        description="With name = HSFL: exact (the proven optimum) or bcd (the paper's Algorithm 2).",
    )
    allow_empty_tiers: bool = Field(False, description="A planned tier above the devices may only relay.")
    replan_every: int = Field(
        100,
        ge=0,
        le=10**9,
        description="The fewest rounds from one plan to the next; 0 keeps the first plan. With the drift model energy "
        "the second plan may come after 16 rounds, the next ones after twice as many each time.",
    )
    constants: Literal["measured", "scenario"] = Field(
        "measured",
        description="What the planner knows while training: measured (the loss and gradient statistics are measured "
        "before the first plan and again before every other) or scenario (those of [convergence]).",
    )
    drift: Literal["energy", "refined", "paper"] | None = Field(
        None,
        description="The drift model of plans made while training: energy (drift is weighed against the loss of the "
        "moment; no target is needed), or those of [convergence] with its target; default: energy where constants are "
        "measured, else that of [convergence].",
        examples=["energy"],
    )
    probe_batches: int | None = Field(
        None,
        ge=2,
        le=1000,
        description="Mini-batches per client that one measurement of the constants takes; its time is charged like "
        "that of as many rounds, and of twice as many with the drift models refined and paper; default: 2, and 4 with "
        "these.",
        examples=[4],
    )

"""From the tiers of a scenario file to machines: every distribution drawn, every machine with one above it."""

from __future__ import annotations

import numpy as np

from hsfl.errors import ScenarioError
from hsfl.problem.codes import tier_codes
from hsfl.problem.profile import FloatArray
from hsfl.problem.system import System, Tier
from hsfl.problem.topology import IntArray
from hsfl.scenario.quantity import Quantity
from hsfl.scenario.schema import MAX_ENTITIES, TierSection

#: Position of each drawn field in a tier's random streams; append only, so that draws stay what they are.
_STREAMS = ("compute", "memory", "uplink", "downlink", "fed_uplink", "fed_downlink")
LINKS = ("uplink", "downlink", "fed_uplink", "fed_downlink")
#: The most numbers about clients that are held: 2 GB of them.
MAX_COEFFICIENTS = 250_000_000


def draw_system(sections: list[TierSection], seed: int, source: str, epoch: int, *, returns: bool = False) -> System:
    """The machines, with link rates drawn for the epoch-th time; ScenarioError names what does not fit together.

    `returns`: the devices have the last layers, too.
    """
    each = 3 * (len(sections) + returns) - 2
    coefficients = each * sections[0].entities
    if coefficients > MAX_COEFFICIENTS or sum(s.entities for s in sections) > 2 * MAX_ENTITIES:
        raise ScenarioError(
            f"{source}: tiers.{sections[0].name}.entities = {sections[0].entities}: too many for {len(sections)} tiers "
            f"to be planned in memory; use at most {MAX_COEFFICIENTS // each:,} devices"
        )
    tiers = []
    for m, section in enumerate(sections):
        top = m == len(sections) - 1
        label = f"{source}: tiers.{section.name}"
        for field in ("uplink", "downlink"):
            if (getattr(section, field) is None) != top:
                if top:
                    raise ScenarioError(f"{label}.{field}: the top tier has no machine above it; remove the field")
                raise ScenarioError(f'{label}.{field} is missing; every tier below the top needs it, such as "80 Mbps"')
        for field in ("fed_uplink", "fed_downlink"):
            if section.entities > 1 and getattr(section, field) is None:
                raise ScenarioError(
                    f"{label}.{field} is missing; with {section.entities} entities the fed server averages this tier, "
                    'so give its rate, such as "80 Mbps"'
                )
        drawn = {
            field: _draw(section, field, [seed, m, k, *([epoch] if epoch and field in LINKS else [])], label)
            for k, field in enumerate(_STREAMS)
        }
        parents = None if top else _parents(section, sections[m + 1], label)
        if top and section.parents is not None:
            raise ScenarioError(f"{label}.parents: the top tier has no machine above it; remove the field")
        tiers.append(
            Tier(
                name=section.name,
                compute_flops=drawn["compute"],
                memory_bits=drawn["memory"],
                uplink_bps=drawn["uplink"],
                downlink_bps=drawn["downlink"],
                fed_uplink_bps=drawn["fed_uplink"],
                fed_downlink_bps=drawn["fed_downlink"],
                parents=parents,
                codes=tier_codes(section.code, f"{label}.code", top=top and not returns, entities=section.entities),
            )
        )
    return System.returning(tiers) if returns else System(tuple(tiers))


def _draw(section: TierSection, field: str, seed: list[int], label: str) -> FloatArray:
    quantity: Quantity | None = getattr(section, field)
    if quantity is None:
        return np.full(section.entities, np.inf)
    if quantity.form == "list" and len(quantity.numbers) != section.entities:
        raise ScenarioError(
            f"{label}.{field} has {len(quantity.numbers)} values; the tier has {section.entities} entities and needs "
            "one for each"
        )
    # A stream of its own for every field of every tier: other fields never shift these draws.
    values = quantity.draw(section.entities, np.random.default_rng(seed))
    if not np.isfinite(values).all() or not (values > 0).all():
        raise ScenarioError(
            f"{label}.{field}: the distribution draws values that are not positive and finite; narrow it"
        )
    return values


def _parents(section: TierSection, above: TierSection, label: str) -> IntArray:
    count, hosts = section.entities, above.entities
    if section.parents is None:
        if hosts > count:
            raise ScenarioError(
                f"{label}.entities = {count}: fewer than the {hosts} of tier {above.name} above, so that some would "
                "have no clients; lower those or raise these"
            )
        return np.arange(count) * hosts // count
    if len(section.parents) != count:
        raise ScenarioError(
            f"{label}.parents has {len(section.parents)} entries; the tier has {count} entities and needs one for each"
        )
    if wrong := [p for p in section.parents if not 0 <= p < hosts]:
        raise ScenarioError(
            f"{label}.parents: {wrong[0]} is not an entity of tier {above.name}; they count from 0 to {hosts - 1}"
        )
    parents = np.array(section.parents, dtype=np.int64)
    if len(idle := np.setdiff1d(np.arange(hosts), parents)):
        raise ScenarioError(
            f"{label}.parents leaves entity {idle[0]} of tier {above.name} (counted from 0) without clients; give it "
            "one, or lower its tier's entities"
        )
    return parents

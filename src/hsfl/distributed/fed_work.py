"""The fed server: means of sub-models, weighted by clients, in the order of the entities.

What the rule of averages wants kept there, and what coded averages have left unsent, is all that it keeps. States of
entities pass through it to and from the coordinator, so that no machine of the tree sees another's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hsfl.distributed import wire_pb2 as wire
from hsfl.distributed.membership import Send
from hsfl.distributed.places import COORDINATOR, FED, Places
from hsfl.distributed.saves import Saves
from hsfl.distributed.tensors import Named, Packed, WireError, pack_by_name, unpacked_by_name
from hsfl.distributed.work import PROBE, Work, pack_average, unpacked_average
from hsfl.engine.averaging import Tensors
from hsfl.engine.entities import EntityBackend, ServerState, drift, mean
from hsfl.engine.entity import add_share
from hsfl.engine.entity_probe import summed
from hsfl.engine.layer_copy import State


class FedWork(Work):
    """The part of the fed server in commands."""

    server: ServerState

    def __init__(self, parts: EntityBackend, places: Places, saves: Saves) -> None:
        super().__init__(parts, places, FED, saves)
        self._average: wire.Average | None = None
        self._contributed: dict[int, Tensors] = {}
        """By entity."""
        self._shapes: dict[int, tuple[object, Tensors]] = {}
        """What an entity contributes, by tier, for the cuts and layers of the last average."""
        self._all = False
        """Whether states are passed on whole."""
        self._probe: str | None = None
        """The part of a measurement that is under way."""
        self._back = False
        """Whether the mean gradient goes back to the entities."""
        self._gradients: dict[str, Tensors] = {}
        """Mean gradients of entities, by name."""
        self._states: dict[str, Named] = {}
        """On their way."""
        self._wanted: set[str] = set()
        self._passed: set[str] = set()
        """Whose states were passed on."""

    def drop(self) -> None:
        super().drop()
        self._average, self._contributed = None, {}
        self._states, self._wanted, self._passed = {}, set(), set()
        self._probe, self._gradients = None, {}

    def _make(self) -> None:
        self.server = self.parts.server_state(self.parts.cuts)

    def kept(self) -> dict[str, torch.Tensor]:
        by_layer = self.parts._tier_by_layer()
        return {
            f"{slot}.{by_layer[layer]}.{layer}.{name}": tensor
            for slot, by_number in self.server.items()
            for layer, tensors in by_number.items()
            for (name, _), tensor in zip(self.parts._layers[layer].named_parameters(), tensors, strict=True)
        }

    def _begin(self, kind: str, command: Any) -> list[Send]:
        self._probe = kind if kind in PROBE else None
        if kind == "probe":
            self._all = False
            return []
        if kind == "probe_means":
            self._back = command.back
            return []
        if kind == "average":
            self._average = command
            return []
        if kind == "move":
            self.parts.cuts = tuple(command.cuts)
            self.server = self.parts.server_state(self.parts.cuts, self.server)
        elif kind == "recode":
            self._use(command.codes)
        elif kind == "save":
            return self._save(command.position)
        elif kind == "collect":
            self._all = command.all
            return []
        elif kind == "install":
            return []
        return self._finish()

    # --- averages ---

    def _take_contribution(self, source: str, given: wire.Contribution, tensors: Sequence[Packed]) -> list[Send]:
        if self._probe is not None:
            return self._take_gradient(source, given, tensors)
        tier, number = self.places.entities.get(source, (-1, -1))
        if tier != given.tier or number in self._contributed:
            raise WireError(f"a contribution to tier {given.tier + 1}")
        if any(layer not in self.parts.layers_of(tier, self.parts.cuts) for layer in given.layers):
            raise WireError("a contribution of layers that it does not have")
        like = self._like(tier, list(given.layers))
        codec = self.parts.links[tier].average if self.parts.coded[tier] else None
        self._contributed[number] = unpacked_average(tensors, like, codec, self._sizes(list(given.layers)))
        return self._if_all_contributed()

    def waited_for(self) -> list[str]:
        if self._average is None:
            return super().waited_for()
        tier = self._average.tier
        missing = set(range(self.places.topology.entities[tier])) - set(self._contributed)
        return [self.places.name(tier, number) for number in sorted(missing)]

    def _if_all_contributed(self) -> list[Send]:
        if self._average is None or len(self._contributed) < self.places.topology.entities[self._average.tier]:
            return []
        tier, layers = self._average.tier, list(self._average.layers)
        shares = [float(share) for share in self.parts.topology.shares[tier]]
        contributed = [self._contributed[number] for number in range(len(shares))]
        sizes, codec = self._sizes(layers), self.parts.links[tier].average if self.parts.coded[tier] else None
        weights = [values[: sum(sizes)] for values in contributed]
        self._done.drift = float(drift(shares, weights, torch.device("cpu")))
        average = self.parts.answer(tier, layers, mean(shares, contributed), self._average.rounds, self.server)
        message = self._message(mean=wire.Mean())
        tensors = pack_average(average, codec, sizes)
        self._average, self._contributed = None, {}
        names = [self.places.name(tier, number) for number in range(len(shares))]
        return [*(Send(name, message, tensors) for name in names), *self._finish()]

    def _sizes(self, layers: list[int]) -> list[int]:
        return [len(list(self.parts._layers[layer].parameters())) for layer in layers]

    def _like(self, tier: int, layers: list[int]) -> Tensors:
        """What an entity of a tier contributes, in its shapes and types."""
        at = (self.parts.cuts, tuple(layers))
        if self._shapes.get(tier, (None, []))[0] != at:
            entity = self.parts.new_entity(tier, 0)
            entity.codec = None
            self._shapes[tier] = at, [tensor.to("meta") for tensor in entity.contribute(layers)]
        return self._shapes[tier][1]

    # --- measurements ---

    def _spread_average(self) -> list[Send]:
        """Send every entity the virtual average of its layers, once all states are here."""
        if len(self._states) < len(self.places.entities):
            return []
        average, self._states = self._virtual_average(), {}
        sent = []
        for name, (tier, _) in self.places.entities.items():
            layers = {str(layer) for layer in self.parts.layers_of(tier, self.parts.cuts)}
            own = {key: value for key, value in average.items() if key.partition(".")[0] in layers}
            sent.append(self._state(name, name, pack_by_name(own)))
        return [*sent, *self._finish()]

    def _take_gradient(self, source: str, given: wire.Contribution, tensors: Sequence[Packed]) -> list[Send]:
        """Take the mean gradient of an entity."""
        tier, _ = self.places.entities.get(source, (-1, -1))
        layers = self.parts.layers_of(tier, self.parts.cuts) if tier == given.tier else range(0)
        if self._probe != "probe_means" or source in self._gradients or list(given.layers) != list(layers):
            raise WireError("gradients that nobody asked for")
        like = [weight for layer in layers for weight in self._trained(layer)]
        self._gradients[source] = unpacked_average(tensors, like, None, ())
        if len(self._gradients) < len(self.places.entities):
            return []
        gradients, self._gradients = self._gradients, {}
        return self._summed(gradients)

    def _summed(self, gradients: dict[str, Tensors]) -> list[Send]:
        """Sum up once the gradients of all entities are here: what tiers' are like and, where wanted, their mean."""
        topology, count = self.parts.topology, len(self.parts._layers)
        of_entities = torch.zeros(topology.num_tiers, count, dtype=torch.float64)
        overall = torch.zeros(count, dtype=torch.float64)
        sent = []
        for tier, layers in enumerate(self.parts._tier_layers()):
            names = [self.places.name(tier, number) for number in range(topology.entities[tier])]
            layer_of = torch.tensor([n for n, layer in enumerate(layers) for _ in self._trained(layer)])
            spread, mean_gradient = summed(topology, tier, [gradients[n] for n in names], layer_of.long(), len(layers))
            of_entities[tier + 1 :, layers.start : layers.stop] = spread.of_entities
            overall[layers.start : layers.stop] = spread.overall
            message, tensors = self._message(mean=wire.Mean()), pack_average(mean_gradient, None, ())
            sent += [Send(name, message, tensors) for name in names if self._back]
        found = self._done.found[FED]
        found.of_entities.extend(of_entities.flatten().tolist())
        found.overall.extend(overall.tolist())
        return [*sent, *self._finish()]

    def _trained(self, layer: int) -> Tensors:
        return [weight for weight in self.parts._layers[layer].parameters() if weight.requires_grad]

    # --- states ---

    def _take_held(self, source: str, held: wire.Held, tensors: Sequence[Packed]) -> list[Send]:
        given: Named = held.names, tensors
        if source == COORDINATOR:
            return self._install(held.name, given)
        if held.name != source or source in self._passed or source in self._states:
            raise WireError(f"the state of {held.name[:60]}")
        sent = []
        if self._all:
            self._passed.add(source)
            sent.append(self._state(COORDINATOR, source, given))
        else:
            self._states[source] = given
        if self._probe is not None:
            return self._spread_average()
        if len(self._passed) + len(self._states) == len(self.places.entities):
            values = self.kept() if self._all else self._virtual_average()
            sent.append(self._state(COORDINATOR, FED, pack_by_name(values)))
            self._passed, self._states = set(), {}
            self._finish()
        return sent

    def _state(self, to: str, name: str, state: Named) -> Send:
        """Pass the state of a machine on to another."""
        return Send(to, self._message(held=wire.Held(name=name, names=state[0])), state[1])

    def _virtual_average(self) -> State:
        """The virtual average, summed as `Backend.global_state` sums it."""
        total = State()
        for name, (tier, number) in self.places.entities.items():
            share = float(self.parts.topology.shares[tier][number])
            layers = self.parts.layers_of(tier, self.parts.cuts)
            like = {f"{n}.{key}": value for n in layers for key, value in self.parts._layers[n].state_dict().items()}
            add_share(total, State(unpacked_by_name(self._states[name], like)), share)
        return total

    def _install(self, name: str, given: Named) -> list[Send]:
        if name == FED:
            self._fill(unpacked_by_name(given, self.kept()))
            self._passed.add(FED)
        else:
            self._states[name] = given
        return self._hand_out()

    def _take_wanted(self, source: str, wanted: wire.Wanted, tensors: Sequence[Packed]) -> list[Send]:
        self._wanted.add(source)
        return self._hand_out()

    def _hand_out(self) -> list[Send]:
        names = [name for name in self._states if name in self._wanted]
        sent = [self._state(name, name, self._states.pop(name)) for name in names]
        self._passed |= set(names)
        if len(self._passed) == len(self.places.entities) + 1:
            self._wanted, self._passed = set(), set()
            self._finish()
        return sent

"""Which samples every client trains on in every round."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]
Codes = npt.NDArray[np.uint8]

#: Pixels that a crop can shift an image by, either way.
SHIFT = 4
#: What separates the random streams that one seed feeds.
_TRAINING, _PROBE = 101, 102
#: Samples that are drawn at a time; a generator costs about as much to make as a thousand samples to shuffle.
_PAGE = 2048


class Sampler:
    """Mini-batches without a state: a client's batch in a round follows from the seed, the client and the round.

    Client n has an endless stream of samples, one shuffle of its own samples after the other, and round t takes the
    stream's samples from t b to (t + 1) b; with k mini-batches in a round, from t k b to (t + 1) k b. So nothing needs
    to be saved to resume training, and it does not matter how rounds are grouped or what other clients there are. A
    page of the stream holds a whole number of shuffles and comes from one generator, seeded by (seed, n, page).
    """

    def __init__(self, parts: Sequence[Indices], batch_size: int, seed: int, augment: Sequence[str] = ()) -> None:
        """`parts` are the training samples of each client, `augment` the changes that are drawn with each sample.

        What is drawn for a client that has no samples, because they are elsewhere, means nothing.
        """
        self.batch_size = batch_size
        self.augment = frozenset(augment)
        self._parts, self._seed = parts, seed
        self._last: dict[int, tuple[int, Indices, Codes]] = {}

    def draw(
        self, first_round: int, count: int, clients: Sequence[int] | None = None, micro_batches: int = 1
    ) -> Indices:
        """The batches of `count` rounds, (count, clients, micro_batches * batch_size, K), of some clients or all.

        K is 1, the sample's index in the training set; with augmentation it is 4: index, downward and rightward offset
        of the window that a crop cuts out of the padded image (0..8, where 4 is no shift), and flip (0 or 1).
        """
        chosen, each = range(len(self._parts)) if clients is None else clients, micro_batches * self.batch_size
        size = count * each
        samples = np.zeros((len(chosen), size), dtype=np.int64)
        codes = np.zeros((len(chosen), size if self.augment else 0), dtype=np.uint8)
        self._last = {n: self._last[n] for n in chosen if n in self._last}  # who is not asked for is forgotten
        for i, client in enumerate(chosen):
            if len(part := np.asarray(self._parts[client], dtype=np.int64)):
                self._fill(client, part, first_round * each, samples[i], codes[i])
        draws = self._decode(samples, codes) if self.augment else samples[..., None]
        return np.ascontiguousarray(draws.reshape(len(chosen), count, each, -1).swapaxes(0, 1))

    def probe(self, round_: int, batches: int, clients: Sequence[int] | None = None) -> Indices:
        """Samples for measuring gradients in a round, (clients, batches, batch_size), that training does not depend on.

        A client's samples repeat only where it has fewer than asked for, and then equally often, give or take one.
        """
        chosen, size = range(len(self._parts)) if clients is None else clients, batches * self.batch_size
        probe = np.zeros((len(chosen), size), dtype=np.int64)
        for i, client in enumerate(chosen):
            if len(part := np.asarray(self._parts[client], dtype=np.int64)):
                generator = np.random.default_rng([self._seed, _PROBE, client, round_])
                shuffles = [generator.permutation(part) for _ in range(-(-size // len(part)))]
                probe[i] = np.concatenate(shuffles)[:size]
        return probe.reshape(len(chosen), batches, self.batch_size)

    def _fill(self, client: int, part: Indices, start: int, samples: Indices, codes: Codes) -> None:
        """Copy the client's stream from `start` on."""
        length = len(part) * _shuffles(part)
        filled = 0
        while filled < len(samples):
            page, offset = divmod(start + filled, length)
            shuffled, code = self._page(client, part, page)
            stop = min(len(samples), filled + length - offset)
            samples[filled:stop] = shuffled[offset : offset + stop - filled]
            if len(codes):
                codes[filled:stop] = code[offset : offset + stop - filled]
            filled = stop

    def _page(self, client: int, part: Indices, page: int) -> tuple[Indices, Codes]:
        """A page of the client's stream and of its changes; the last one is kept, since the next block begins there."""
        last = self._last.get(client)
        if last is None or last[0] != page:
            generator = np.random.default_rng([self._seed, _TRAINING, client, page])
            shuffled = generator.permuted(np.tile(part, (_shuffles(part), 1)), axis=1).ravel()
            size = shuffled.size if self.augment else 0
            codes = generator.integers(2 * (2 * SHIFT + 1) ** 2, size=size, dtype=np.uint8)
            last = self._last[client] = page, shuffled, codes
        return last[1:]

    def _decode(self, samples: Indices, codes: Codes) -> Indices:
        """Index, offsets and flip of every sample; one code holds both offsets and the flip."""
        draws = np.empty((*samples.shape, 4), dtype=np.int64)
        draws[..., 0] = samples
        shift, draws[..., 3] = np.divmod(codes, 2)
        draws[..., 1], draws[..., 2] = np.divmod(shift, 2 * SHIFT + 1)
        if "crop" not in self.augment:
            draws[..., 1:3] = SHIFT
        if "flip" not in self.augment:
            draws[..., 3] = 0
        return draws


def _shuffles(part: Indices) -> int:
    """How many shuffles of a client's samples are in a page."""
    return max(1, _PAGE // len(part))

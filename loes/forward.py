"""Forward passes of a model, and what they leave: one pooled vector a sample and layer."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from loes.families import Family, inference, offer_modules
from loes.features import LayerFeatures
from loes.pooling import name_of, pool
from loes.readers import Batch, Reader


def first_tensor(output: Any) -> torch.Tensor | None:
    """Return the first tensor of what a module returns: a tensor, tuple or mapping."""
    if isinstance(output, torch.Tensor):
        return output
    values = output.values() if isinstance(output, Mapping) else output
    return next((value for value in values or () if isinstance(value, torch.Tensor)), None)


def hidden_states(
    run: Callable[..., Any], norm: torch.nn.Module | None, final_norm: str
) -> tuple[torch.Tensor, ...] | None:
    """Return the hidden states of a forward pass, the last one before or behind a norm.

    Parameters
    ----------
    run : calls the model with the keywords that it is given.
    norm : the final norm; None leaves the states as they are.
    final_norm : ``"apply"`` or ``"skip"``.
    """
    last = None

    def keep(_, args, output):
        nonlocal last
        last = args[0] if final_norm == "skip" else output

    with nullcontext() if norm is None else norm.register_forward_hook(keep):
        states = run(output_hidden_states=True).hidden_states
    return states if norm is None or states is None else (*states[:-1], last)


@dataclass
class Forward:
    """A model with everything that decides its features.

    Attributes
    ----------
    model : what reads the inputs.
    family : its family.
    reader : what turns inputs into batches.
    pooling : one that the family knows, or a function.
    final_norm : ``"as_is"``, ``"apply"`` or ``"skip"``.
    norm : the final norm; None where it is not asked for or does not exist.
    watched : modules whose outputs are taken, by name; None for the hidden states.
    device : where to run; None for where the model is.
    """

    model: torch.nn.Module
    family: Family
    reader: Reader
    pooling: str | Callable
    final_norm: str = "as_is"
    norm: torch.nn.Module | None = None
    watched: dict[str, torch.nn.Module] | None = None
    device: str | torch.device | None = None

    @property
    def dtype(self) -> torch.dtype | None:
        """Precision of the weights; None for a model without any."""
        weights = (p.dtype for p in self.model.parameters() if p.is_floating_point())
        return next(weights, None)

    def features(
        self, inputs: Sequence, numbers: range, advance: Callable[[int], Any]
    ) -> LayerFeatures:
        """Return the features of some inputs.

        Parameters
        ----------
        inputs : all inputs, of which no more are read than are needed at once.
        numbers : which of them.
        advance : told the number of samples after each batch.
        """
        if self.device is not None:
            self.model.to(self.device)
        arrays: dict[str, np.ndarray] = {}
        with inference(self.model, self.reader.heard):
            for batch in self.reader.batches(inputs, numbers):
                pooled = self._run(batch)
                widths = [part.shape[1] for part in pooled.values()]
                # One transfer a batch, since each waits for the device.
                together = torch.cat(list(pooled.values()), dim=1).cpu().numpy()
                parts = np.split(together, np.cumsum(widths)[:-1], axis=1)
                if not np.isfinite(together).all():
                    self._blame(pooled, parts)
                for name, part in zip(pooled, parts, strict=True):
                    if name not in arrays:
                        arrays[name] = np.empty((len(numbers), part.shape[1]), np.float32)
                    arrays[name][batch.rows] = part
                advance(len(batch.rows))
        return LayerFeatures(list(arrays), list(arrays.values()), name_of(self.pooling))

    def _run(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Return the pooled (batch, d) vectors of each layer."""
        if batch.mask is not None:
            batch = batch._replace(mask=batch.mask.to(self._place))
        return self._hidden_states(batch) if self.watched is None else self._outputs(batch)

    def _hidden_states(self, batch: Batch) -> dict[str, torch.Tensor]:
        on_tokens = self.norm is not None and self.family.norm_on == "tokens"
        states = hidden_states(
            partial(self._call, batch), self.norm if on_tokens else None, self.final_norm
        )
        if states is None:
            raise ValueError(
                f"{type(self.model).__name__} returns no hidden states; {offer_modules(self.model)}"
            )
        names = ["embedding", *(f"layer{i}" for i in range(1, len(states)))]
        pooled = {
            name: self._pool(name, state, batch) for name, state in zip(names, states, strict=True)
        }
        if self.norm is not None and not on_tokens and self.final_norm == "apply":
            pooled[names[-1]] = self.norm(pooled[names[-1]].to(self.dtype)).float()
        return pooled

    def _outputs(self, batch: Batch) -> dict[str, torch.Tensor]:
        pooled = {}

        def keep(_, args, output, name):
            # Pooled at once: the next module may work in place, as ReLU does.
            pooled[name] = self._pool(name, first_tensor(output), batch)

        with ExitStack() as hooks:
            for name, module in self.watched.items():
                hooks.enter_context(module.register_forward_hook(partial(keep, name=name)))
            self._call(batch)
        if silent := [name for name in self.watched if name not in pooled]:
            raise ValueError(
                f"{', '.join(silent)} took no part in the forward pass; name modules that "
                f"{type(self.model).__name__} runs."
            )
        return {name: pooled[name] for name in self.watched}

    def _call(self, batch: Batch, **flags: bool) -> Any:
        if "use_cache" in self.reader.accepted:
            flags["use_cache"] = False  # keys and values of decoders, which nobody will read
        if isinstance(batch.tensors, torch.Tensor):
            return self.model(self._move(batch.tensors), **flags)
        moved = {key: self._move(value) for key, value in batch.tensors.items()}
        return self.model(**moved, **flags)

    def _move(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self._place, self.dtype if tensor.is_floating_point() else None)

    @property
    def _place(self) -> torch.device:
        return next(self.model.parameters(), torch.empty(0)).device

    def _pool(self, name: str, hidden: torch.Tensor | None, batch: Batch) -> torch.Tensor:
        """Pool what a layer gives, or say why it cannot be."""
        shape = () if hidden is None else tuple(hidden.shape)
        n = len(batch.rows)
        if len(shape) not in (2, 3, 4) or shape[0] != n:
            raise ValueError(
                f"{name} gives {shape or 'no tensor'} for {n} samples; wanted (n, d), "
                "(n, tokens, d) or (n, d, height, width). Name another module."
            )
        if len(shape) == 3 and batch.mask is not None and batch.mask.shape[1] != shape[1]:
            raise ValueError(
                f"{name} gives {shape[1]} tokens a sample where {batch.mask.shape[1]} are known "
                "to be true or padding; name another module."
            )
        return pool(hidden, batch.mask, self.pooling, self.family.special)

    def _blame(self, names: Iterable[str], parts: list[np.ndarray]) -> None:
        """Name the first layer that is not finite."""
        name = next(n for n, part in zip(names, parts, strict=True) if not np.isfinite(part).all())
        raise ValueError(
            f"{name} has non-finite features ({self.dtype} on {self._place}): half precision has "
            "overflowed or the weights are damaged. Load the model in float32 or bfloat16."
        )

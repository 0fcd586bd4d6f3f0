# SPDX-License-Identifier: Apache-2.0
"""MaskedParameters: the masks of a model's parameters, by name."""

from __future__ import annotations

import logging
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Tuple, Union, cast

import numpy as np
import torch
from torch import nn

from ..errors import InvalidArgument, Unsupported
from ..masks import MaskSpec

__all__ = ["MaskedParameters"]

_log = logging.getLogger("prunex.torch")
Named = Iterable[Tuple[str, torch.Tensor]]


_UNBOUND = (
    "these masks were loaded or copied, and have no model: call bind(model) or state.attach(model) "
    "first"
)


def plain_model(model: nn.Module) -> nn.Module:
    """The model inside DistributedDataParallel and torch.compile wrappers."""
    while True:
        if isinstance(model, nn.parallel.DistributedDataParallel):
            model = model.module
        elif hasattr(model, "_orig_mod"):
            model = cast(nn.Module, model._orig_mod)
        else:
            return model


def _named(source: Union[nn.Module, Mapping[str, torch.Tensor], Named]) -> Dict[str, torch.Tensor]:
    if isinstance(source, nn.Module):
        return dict(plain_model(source).named_parameters())
    wanted = "wanted a module, {name: parameter} or pairs, as model.named_parameters() gives them"
    if torch.is_tensor(source):
        raise InvalidArgument(f"MaskedParameters of a {type(source).__name__}: {wanted}")
    pairs = list(source.items() if isinstance(source, Mapping) else source)
    for pair in pairs:
        fits = isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str)
        if not fits or not torch.is_tensor(pair[1]):
            raise InvalidArgument(f"MaskedParameters of a list of {type(pair).__name__}: {wanted}")
    return dict(pairs)


def _unknown(name: str, params: Mapping[str, torch.Tensor]) -> InvalidArgument:
    """The error for a name that no parameter has, with what may have been meant."""
    if not isinstance(name, str):
        own = next((known for known, p in params.items() if p is name), None)
        meant = "its name in model.named_parameters()" if own is None else repr(own)
        return InvalidArgument(f"a mask is set by name, not by {type(name).__name__}: use {meant}")
    plain = name.replace("_orig_mod.", "")
    plain = plain[len("module.") :] if plain.startswith("module.") else plain
    for meant, why in ((plain, "without wrappers' prefixes"), (name + "_orig", "it is pruned")):
        if meant in params:
            return InvalidArgument(f"there is no parameter {name!r}; use {meant!r}: {why}")
    if not params:
        return InvalidArgument(f"{name!r} has no parameter: {_UNBOUND}")
    known = ", ".join(list(params)[:8])
    return InvalidArgument(f"there is no parameter {name!r}; the first ones are: {known}")


class MaskedParameters:
    """Masks keyed by parameter, as names in the model (without DDP's ``module.``).

    model_or_named: a module (DDP and torch.compile wrappers are looked through), a mapping of names
    to parameters, or pairs. comm: a Communicator kept at hand as ``.comm``; not used here.

    Parameters are recognised by identity, never by address. ``version`` grows with every change.
    Pickles with its masks but without parameters and communicator; call :meth:`bind` afterwards.
    Not for use by two threads at once.
    """

    def __init__(
        self, model_or_named: Union[nn.Module, Mapping[str, torch.Tensor], Named], comm: Any = None
    ) -> None:
        self.comm = comm
        self.version = 0
        self._specs: Dict[str, MaskSpec] = {}
        self._params: Dict[str, torch.Tensor] = {}
        self._names: Dict[int, str] = {}
        self.bind(model_or_named)

    def bind(
        self, model_or_named: Union[nn.Module, Mapping[str, torch.Tensor], Named], comm: Any = None
    ) -> "MaskedParameters":
        """Takes the parameters of a model (again): after unpickling, or when they were replaced.

        InvalidArgument if a mask's parameter is missing or has another shape. Returns itself.
        """
        params = _named(model_or_named)
        for name, spec in self._specs.items():
            self._check(name, spec, params)
        self._params = params
        self._names = {id(parameter): name for name, parameter in params.items()}
        self.comm = comm if comm is not None else self.comm
        self.version += 1
        return self

    @staticmethod
    def _check(name: str, spec: MaskSpec, params: Mapping[str, torch.Tensor]) -> None:
        parameter = params.get(name) if isinstance(name, str) else None
        if parameter is None:
            raise _unknown(name, params)
        if not isinstance(spec, MaskSpec):
            raise InvalidArgument(
                f"mask of {name!r} is a {type(spec).__name__}; wanted a prunex.MaskSpec, such as "
                "MaskSpec.infer(array of booleans)"
            )
        if type(parameter).__name__ == "DTensor" or hasattr(parameter, "_local_tensor"):
            raise InvalidArgument(
                f"{name!r} is a DTensor (FSDP): masks of sharded parameters are not supported; use "
                "DistributedDataParallel"
            )
        try:
            spec.kept(tuple(parameter.shape))
        except InvalidArgument as error:
            raise InvalidArgument(f"mask of {name!r}: {error}") from None

    # ---- masks

    def set(self, name: str, spec: Optional[MaskSpec]) -> None:
        """The mask of one parameter from the next call on; None: dense. Same on all ranks."""
        self.set_all({name: spec})

    def set_all(self, specs: Mapping[str, Optional[MaskSpec]]) -> None:
        """Several masks at once: either all take effect or, with InvalidArgument, none."""
        for name, spec in specs.items():
            if spec is not None:
                self._check(name, spec, self._params)
            elif not isinstance(name, str) or name not in self._params:
                raise _unknown(name, self._params)
        for name, spec in specs.items():
            if spec is None:
                self._specs.pop(name, None)
            else:
                self._specs[name] = spec
        self.version += 1

    def spec(self, name: str) -> Optional[MaskSpec]:
        """The mask of a parameter; None: dense."""
        return self._specs.get(name)

    def specs(self) -> Dict[str, MaskSpec]:
        """All masks by name; a copy."""
        return dict(self._specs)

    def masked_names(self) -> List[str]:
        """Names of the parameters that have a mask, in the order in which they got one."""
        return list(self._specs)

    def name_of(self, parameter: torch.Tensor) -> Optional[str]:
        """The name of a parameter of the model, by identity; None: not of this model."""
        return self._names.get(id(parameter))

    def parameter(self, name: str) -> torch.Tensor:
        """A parameter of the model."""
        if name not in self._params:
            raise _unknown(name, self._params)
        return self._params[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._params)

    def __len__(self) -> int:
        return len(self._specs)

    def density(self) -> float:
        """Kept elements over all elements of all parameters, masked or not."""
        total = sum(p.numel() for p in self._params.values())
        dropped = sum(
            self.parameter(name).numel() - spec.kept(tuple(self._params[name].shape))
            for name, spec in self._specs.items()
        )
        return 1.0 - dropped / total if total else 1.0

    def _dropped(self, name: str) -> Optional[torch.Tensor]:
        """True where the parameter drops, on its device; None: nowhere."""
        spec, parameter = self._specs[name], self.parameter(name)
        keep = spec.to_array(tuple(parameter.shape))
        if keep.all():
            return None
        return torch.from_numpy(np.ascontiguousarray(~keep)).to(parameter.device)

    @torch.no_grad()
    def apply_mask(self, optimizer: Optional[torch.optim.Optimizer] = None) -> None:
        """Writes zeros into the dropped weights, in place, and into the optimizer's state there.

        Without the optimizer, momentum and Adam's averages revive pruned weights at the next steps,
        though their gradients are zero; with it, weight decay and momentum leave them at zero.
        """
        if optimizer is not None and not hasattr(optimizer, "state"):
            raise InvalidArgument(f"a {type(optimizer).__name__} is not an optimizer")
        for name in self._specs:
            dropped = self._dropped(name)
            if dropped is None:
                continue
            parameter = self._params[name]
            parameter.masked_fill_(dropped, 0)
            if optimizer is None or parameter not in optimizer.state:
                continue
            for value in optimizer.state[parameter].values():
                if torch.is_tensor(value) and value.shape == parameter.shape:
                    value.masked_fill_(dropped.to(value.device), 0)

    def hold(self, optimizer: torch.optim.Optimizer) -> Any:
        """Applies the masks after every step of the optimizer. Returns a handle with ``remove()``.

        Needs an optimizer with register_step_post_hook (torch 2.0 and later).
        """
        if not hasattr(optimizer, "register_step_post_hook"):
            if not hasattr(optimizer, "state"):
                raise InvalidArgument(f"a {type(optimizer).__name__} is not an optimizer")
            raise Unsupported(
                f"optimizers of torch {torch.__version__} have no hooks after a step (2.0 has): call "
                "masks.apply_mask(optimizer) after optimizer.step()"
            )
        return optimizer.register_step_post_hook(lambda *_: self.apply_mask(optimizer))

    def revived(self) -> List[str]:
        """Names of parameters that have a weight other than zero in a dropped place."""
        out = []
        for name in self._specs:
            dropped = self._dropped(name)
            if dropped is not None and bool((self._params[name][dropped] != 0).any()):
                out.append(name)
        return out

    # ---- masks from elsewhere

    def from_prune(
        self, model: nn.Module, contract: str = "lossless", epoch: int = 0
    ) -> "MaskedParameters":
        """Takes the masks of torch.nn.utils.prune: of every ``NAME_mask`` buffer with its
        ``NAME_orig`` parameter. Masks that are a product of dimensions (ln_structured,
        random_structured) become dims, others elements. Returns itself.
        """
        found: Dict[str, MaskSpec] = {}
        for prefix, module in plain_model(model).named_modules():
            for buffer_name, mask in module.named_buffers(recurse=False):
                if not buffer_name.endswith("_mask"):
                    continue
                own = buffer_name[: -len("_mask")] + "_orig"
                parameter = module._parameters.get(own)
                if parameter is None or mask.shape != parameter.shape:
                    continue
                name = self.name_of(parameter)
                if name is None:
                    raise InvalidArgument(
                        f"{prefix}.{own} is not a parameter this object knows: make it (or bind) "
                        "after pruning, not before"
                    )
                found[name] = MaskSpec.infer(mask, contract, epoch)
        if not found:
            raise InvalidArgument("the model has no pruned parameters (no *_mask beside a *_orig)")
        self.set_all(found)
        return self

    def from_groups(
        self, model: nn.Module, groups: Iterable[Any], contract: str = "project", epoch: int = 0
    ) -> "MaskedParameters":
        """Takes dependency groups of channels to prune, as Torch-Pruning's DepGraph gives them.

        groups: of items ``(dependency, pruned indices)`` where ``dependency.target.module`` is the
        layer and the name of ``dependency.handler`` says in or out channels; or of plain items
        ``(module or its name, "out" | "in", pruned indices)``. Groups on one parameter add up.
        Returns itself.
        """
        from .groups_io import dims_of_groups

        keep = dims_of_groups(plain_model(model), groups, self.name_of)
        self.set_all({name: MaskSpec.dims(dims, contract, epoch) for name, dims in keep.items()})
        return self

    # ---- pickling

    def __getstate__(self) -> Dict[str, Any]:
        return {"specs": dict(self._specs), "version": self.version}

    def __setstate__(self, state: Dict[str, Any]) -> None:
        self.comm = None
        self.version = state["version"]
        self._specs = dict(state["specs"])
        self._params = {}
        self._names = {}

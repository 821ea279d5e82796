"""How far a selection can be trusted: other samples, other weights, and all subsets tried."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from math import comb, nan

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike
from tqdm import tqdm

from loes.checks import Layers, check_varying, check_whole
from loes.selection import LOES, RankWarning, SelectionWarning, candidate_terms, choose, weigh
from loes.solver import Dual, Primal, Samples, Spectrum, Stack, open_stack

# A layer that takes the place of a pick in this share of the resamples is as good as tied with it.
NEAR_TIE = 0.1
# Default weights of `sensitivity`, as multiples of the criterion's own.
MULTIPLES = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)
MAX_SUBSETS = 5000


def _bar(progress: bool, **options) -> tqdm:
    """Return a progress bar; `disable` stays unsaid where it can, so that TQDM_DISABLE is heard."""
    return tqdm(**options, **({} if progress else {"disable": True}))


@dataclass(frozen=True)
class Stability:
    """What `stability` found.

    Chapter 8 reads one.

    Attributes
    ----------
    selected : list of int, the picks on all samples, in the order of picking.
    resampled : one such list a resample.
    frequency : DataFrame, one row a layer by name; columns 1, 2, ... hold the share of the
        resamples that picked the layer at that step, "selected" the share that picked it at all.
    """

    selected: list[int]
    resampled: list[list[int]]
    frequency: pd.DataFrame

    @property
    def near_ties(self) -> pd.DataFrame:
        """The layers that took the place of a pick in at least 10 % of the resamples.

        One row each: step, layer (the pick on all samples), rival and share. Two layers that swap
        their steps are rivals at both: their order is in doubt, not that they are picked.
        """
        names = self.frequency.index
        rows = [
            (step, names[pick], names[rival], share)
            for step, pick in enumerate(self.selected, start=1)
            for rival, share in enumerate(self.frequency[step])
            if rival != pick and share >= NEAR_TIE
        ]
        ties = pd.DataFrame(rows, columns=["step", "layer", "rival", "share"])
        return ties.sort_values(["step", "share"], ascending=[True, False], ignore_index=True)


def _resamples(samples: Samples, n_boot: int, seed: int) -> Iterator[torch.Tensor]:
    """Yield the rows of each bootstrap sample, once each; every class keeps some of its own."""
    rng = np.random.default_rng(seed)
    strata = [np.arange(samples.n)]
    if samples.counts is not None:
        labels = samples.targets.argmax(1).cpu().numpy()
        strata = [np.flatnonzero(labels == k) for k in range(samples.n_targets)]
    for _ in range(n_boot):
        rows = np.unique(np.concatenate([rng.choice(stratum, len(stratum)) for stratum in strata]))
        yield torch.from_numpy(rows).to(samples.layers[0].device)


def _take(samples: Samples, rows: torch.Tensor) -> Samples:
    """Return some of the samples."""
    targets = None if samples.targets is None else samples.targets[rows]
    counts = samples.counts
    if counts is not None:
        counts = torch.bincount(targets.argmax(1), minlength=len(counts)).to(counts.dtype)
    elif targets is not None and (targets == targets[:1]).all():
        raise ValueError("the target is constant there, so there is nothing to explain.")
    return Samples.of([X[rows] for X in samples.layers], targets, counts)


def stability(
    layers: Layers,
    y: ArrayLike | None = None,
    n_boot: int = 50,
    *,
    seed: int = 0,
    progress: bool = True,
    **parameters,
) -> Stability:
    r"""Repeat a selection on bootstrap samples, to see which picks hang on the luck of the sample.

    A resample draws n samples with replacement, class by class, and keeps each once: a copy would
    stand on both sides of leave-one-out. About :math:`1 - 1/e` or 63 % of the samples remain, so
    that the picks vary somewhat more than between samples of size n.

    Chapter 8 shows it at work.

    Parameters
    ----------
    layers, y : as for `LOES.fit`.
    n_boot : how many resamples.
    seed : which samples are drawn.
    progress : False for no progress bar.
    **parameters : those of `LOES`.

    Returns
    -------
    Stability, with the picks on all samples, the share of the resamples that picked each layer at
    each step, and the near-ties.

    Raises
    ------
    ValueError as `LOES.fit`, and when a layer or the target does not vary over a resample.

    Warns
    -----
    SelectionWarning as `LOES.fit`, each kind once, with the number of selections that raised it.

    References
    ----------
    Meinshausen and Bühlmann, "Stability selection", JRSS B 72(4), 2010.
    """
    check_whole("n_boot", n_boot)
    selector = LOES(**parameters)
    samples, names = selector._samples(layers, y)
    criterion = selector._check_parameters(len(names))
    runs = [None, *_resamples(samples, n_boot, seed)]
    selections: list[list[int]] = []
    raised: dict[type[Warning], dict[int, Warning]] = {}
    for run, rows in enumerate(_bar(progress, iterable=runs, unit="selection")):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", SelectionWarning)
            try:
                moments = samples if rows is None else _take(samples, rows)
                if selector.standardize:
                    moments = moments.standardized()
                selections.append(selector._select(moments, criterion, names).selected_)
            except ValueError as error:
                if rows is None:
                    raise
                raise ValueError(
                    f"resample {run} holds {len(rows)} of the {samples.n} samples: {error} Use "
                    "more samples, or another seed."
                ) from error
        for warning in caught:
            raised.setdefault(warning.category, {}).setdefault(run, warning.message)
    for category, cases in raised.items():
        warnings.warn(
            f"in {len(cases)} of {len(runs)} selections (1 on all samples, {n_boot} on resamples), "
            f"of which the first says: {next(iter(cases.values()))}",
            category,
            stacklevel=2,
        )
    selected, *resampled = selections
    times = np.zeros((len(names), max(map(len, selections))))
    for selection in resampled:
        times[selection, np.arange(len(selection))] += 1
    frequency = pd.DataFrame(times, names, range(1, times.shape[1] + 1))
    return Stability(selected, resampled, frequency.assign(selected=times.sum(1)) / n_boot)


def sensitivity(
    layers: Layers,
    y: ArrayLike | None = None,
    *,
    n_layers: int = 3,
    alphas: Sequence[float] | None = None,
    gammas: Sequence[float] | None = None,
    etas: Sequence[float] | None = None,
    progress: bool = True,
    **parameters,
) -> pd.DataFrame:
    """Select with every combination of weights, to see which picks hang on them.

    The terms depend on the layers picked before, not on the weights: weightings that agree on their
    first picks share the work, and the samples are read once for each distinct beginning.

    Chapter 8 shows it at work.

    Parameters
    ----------
    layers, y : as for `LOES.fit`.
    n_layers : how many layers to pick; "auto" is refused, as selections of several sizes would be
        compared.
    alphas, gammas, etas : weights to combine; None for 0, 1/4, 1/2, 1, 2 and 4 times the
        criterion's own.
    progress : False for no progress bar.
    **parameters : the other parameters of `LOES`.

    Returns
    -------
    DataFrame with one row a weighting: alpha, gamma, eta, selected (tuple of int, in the order of
    picking), names (theirs), and default, True for the criterion's own weights. It equals what
    `LOES` picks with these weights.

    Raises
    ------
    ValueError as `LOES.fit`; TypeError for alpha, gamma or eta instead of their plurals.

    Warns
    -----
    RankWarning as `LOES.fit`, once. TermDominanceWarning is not raised: the table shows what a
    weight decides.
    """
    for weight in ("alpha", "gamma", "eta"):
        if weight in parameters:
            raise TypeError(f"sensitivity takes {weight}s, a sequence of weights, not {weight}.")
    selector = LOES(n_layers, **parameters)
    samples, names = selector._samples(layers, y)
    default = selector._check_parameters(len(names))
    if n_layers == "auto":
        raise ValueError("sensitivity compares selections of one size; give n_layers as a number.")
    own = (default.alpha, default.gamma, default.eta)
    grids = [
        [w * multiple for multiple in MULTIPLES] if grid is None else list(np.atleast_1d(grid))
        for grid, w in zip((alphas, gammas, etas), own, strict=True)
    ]
    if not all(grids):
        raise ValueError("alphas, gammas and etas must hold at least one weight each.")
    weightings = [
        LOES(n_layers, alpha=a, gamma=g, eta=e, **parameters)._check_parameters(len(names))
        for a, g, e in product(*grids)
    ]
    selections: list[tuple[int, ...]] = [()] * len(weightings)
    moments = samples.standardized() if selector.standardize else samples
    stack = open_stack(moments, [l for l in range(len(names)) if l not in selector.exclude])
    check_varying(stack.spectra, moments, names)
    empty = set()  # weightings whose in-sample Loss was small whatever the picked layer held

    def grow(stack: Stack, picked: tuple[int, ...], group: list[int]) -> None:
        """Go on from `picked`, on which the weightings of `group` agree."""
        terms = candidate_terms(stack, default) if len(picked) < n_layers else pd.DataFrame()
        if terms.empty:
            for weighting in group:
                selections[weighting] = picked
            bar.update(len(group))
            return
        branches: dict[int, list[int]] = {}
        for weighting in group:
            score = weigh(terms, weightings[weighting]).sum(axis=1, skipna=True)
            pick = choose(score, len(picked) + 1, selector.include, names)
            branches.setdefault(pick, []).append(weighting)
        for pick, branch in branches.items():
            free = moments.n - 1 - stack.rank
            if moments.n_targets and default.in_sample and free <= stack.spectra[pick].width:
                empty.update(branch)
            last = len(picked) + 1 == n_layers
            after = stack if last else stack.pick(pick, terms.loc[pick, "ridge"])
            grow(after, (*picked, pick), branch)

    with _bar(progress, total=len(weightings), unit="weighting") as bar:
        grow(stack, (), list(range(len(weightings))))
    short = sum(len(selection) < n_layers for selection in selections)
    for count, what in (
        (short, f"stopped before {n_layers} layers, as their picks span all that the others hold"),
        (len(empty), "picked a layer with at least as many features as there are free dimensions"),
    ):
        if count:
            warnings.warn(
                f"{count} of {len(weightings)} weightings {what}, with n={moments.n} samples. "
                "Use more samples, reduce the layers by PCA, or ask for fewer layers.",
                RankWarning,
                stacklevel=2,
            )
    return pd.DataFrame(
        {
            "alpha": [float(w.alpha) for w in weightings],
            "gamma": [float(w.gamma) for w in weightings],
            "eta": [float(w.eta) for w in weightings],
            "selected": selections,
            "names": [tuple(names[l] for l in selection) for selection in selections],
            "default": [w == default for w in weightings],
        }
    )


def _joint_stacks(moments: Samples, layers: list[int], k: int) -> Callable[[Sequence[int]], Stack]:
    """Return a function from a subset of k layers to a stack of one layer: them side by side."""
    widths = [len(mean) for mean in moments.means]
    if moments.n < k * np.mean([widths[l] for l in layers]):
        kernels = Dual.open(moments, layers)

        def joint(subset: Sequence[int]) -> Stack:
            spectrum = Spectrum(nan, nan, sum(widths[l] for l in subset))
            K = sum(kernels.kernels[l] for l in subset)
            return replace(kernels, spectra={0: spectrum}, kernels={0: K})

        return joint

    parts = Primal.open(moments, layers)
    crosses = {(l, l): A for l, A in parts.grams.items()}
    for i, j in combinations(layers, 2):
        crosses[i, j] = moments.cross(i, j)
        crosses[j, i] = crosses[i, j].T

    def joint(subset: Sequence[int]) -> Stack:
        X = torch.cat([moments.layers[l] for l in subset], dim=1)
        mean = torch.cat([moments.means[l] for l in subset])
        A = torch.cat([torch.cat([crosses[i, j] for j in subset], dim=1) for i in subset])
        b = torch.cat([parts.against[l] for l in subset])
        samples = Samples([X], [mean], moments.targets, moments.counts)
        return replace(parts, moments=samples, grams={0: A}, against={0: b})

    return joint


def exhaustive(
    layers: Layers,
    y: ArrayLike,
    n_layers: int = 3,
    *,
    progress: bool = True,
    **parameters,
) -> pd.DataFrame:
    """Judge every subset of `n_layers` layers by one joint probe, to see what greediness costs.

    The objective is the Loss of one ridge probe of the layers side by side: in-sample mean squared
    error for "paper", the leave-one-out share left unexplained for "bounded". The greedy selection
    minimises another score, with isotropy, redundancy and triangle area, and a probe a layer.

    Chapter 8 compares both.

    Parameters
    ----------
    layers, y : as for `LOES.fit`, y not None.
    n_layers : size of the subsets. At most 5000 subsets are tried.
    progress : False for no progress bar.
    **parameters : the other parameters of `LOES`; the subsets hold all of `include` and none of
        `exclude`.

    Returns
    -------
    DataFrame with one row a subset, the best first: selected (tuple of int, ascending), names,
    loss, gap (loss above that of the best subset), and greedy, True for what `LOES` picks with the
    same parameters. Its index is the rank, from 0.

    Raises
    ------
    ValueError as `LOES.fit`, without a target, and for more than 5000 subsets.

    Warns
    -----
    SelectionWarning as `LOES.fit`, for the greedy selection; RankWarning when the in-sample Loss of
    "paper" has no meaning, since some subset has at least as many features as there are free
    dimensions.
    """
    selector = LOES(n_layers, **parameters)
    if y is None or n_layers == "auto":
        raise ValueError(
            "exhaustive compares subsets of one size by how they explain y; give both."
        )
    samples, names = selector._samples(layers, y)
    criterion = selector._check_parameters(len(names))
    candidates = [l for l in range(len(names)) if l not in selector.exclude]
    free = [l for l in candidates if l not in selector.include]
    count = comb(len(free), n_layers - len(selector.include))
    if count > MAX_SUBSETS:
        raise ValueError(
            f"there are {count} subsets of {n_layers} of {len(candidates)} layers, more than the "
            f"{MAX_SUBSETS} that exhaustive tries; exclude layers or ask for fewer."
        )
    moments = samples.standardized() if selector.standardize else samples
    greedy = selector._select(moments, criterion, names).selected_
    widest = sum(sorted(len(moments.means[l]) for l in candidates)[-n_layers:])
    if criterion.in_sample and moments.n - 1 <= widest:
        warnings.warn(
            f"{n_layers} layers side by side have up to {widest} features, no fewer than the "
            f"{moments.n - 1} dimensions of n={moments.n} centred samples, so that their in-sample "
            "Loss is small whatever they hold. Use more samples, reduce the layers by PCA, or use "
            "criterion='bounded'.",
            RankWarning,
            stacklevel=2,
        )
    joint = _joint_stacks(moments, candidates, n_layers)
    rows = []
    subsets = combinations(free, n_layers - len(selector.include))
    for others in _bar(progress, iterable=subsets, total=count, unit="subset"):
        subset = tuple(sorted((*selector.include, *others)))
        loss, _ = criterion.losses(joint(subset), [0])[0]
        rows.append((subset, tuple(names[l] for l in subset), loss, set(subset) == set(greedy)))
    table = pd.DataFrame(rows, columns=["selected", "names", "loss", "greedy"])
    table = table.sort_values("loss", ignore_index=True, kind="stable")
    table.insert(3, "gap", table["loss"] - table["loss"].min())
    return table


def redundancies(
    layers: Layers, criterion: str = "bounded", *, standardize: bool = False
) -> pd.DataFrame:
    """Return the redundancy of every pair of layers, as a criterion defines it.

    Chapter 6 shows it at work.

    Parameters
    ----------
    layers : as for `LOES.fit`.
    criterion : ``"bounded"`` for linear CKA, ``"paper"`` for the Frobenius alignment of the
        features not centred.
    standardize : divide each feature by its standard deviation first.

    Returns
    -------
    (L, L) DataFrame by the names of the layers, symmetric, each entry in [0, 1]. The diagonal is 1
    for "bounded" only.

    Raises
    ------
    ValueError as `LOES.fit`.
    """
    selector = LOES(1, criterion=criterion, standardize=standardize)
    samples, names = selector._samples(layers, None)
    weights = selector._check_parameters(len(names))
    moments = samples.standardized() if standardize else samples
    stack = open_stack(moments, range(len(names)))
    check_varying(stack.spectra, moments, names)
    values = np.empty((len(names), len(names)))
    for i in range(len(names)):
        for j in range(i + 1):
            alignment = stack.align(i, j)
            values[i, j] = values[j, i] = weights.redundancy(stack, j, alignment)
    return pd.DataFrame(values, names, names)

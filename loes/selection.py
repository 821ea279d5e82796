"""LOES: greedy selection of the layers that together explain a target, Eq. 7."""

import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from numbers import Integral, Real

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from loes.checks import TASKS, Layers, as_indices, as_layers, as_targets, check_varying
from loes.criteria import CRITERIA, Criterion, mean_triangle_area
from loes.solver import RANK_TOLERANCE, Samples, Stack, open_stack
from loes.statistics import LayerStatistics

# A term whose spread over the candidates is this many times that of Loss has decided alone.
DOMINANCE = 20
TERMS = ["loss", "iso", "red", "tri"]
PATH = ["step", "layer", *TERMS, "score", "chosen", "rank"]


class SelectionWarning(UserWarning):
    """Something about a selection that its result does not show.

    Chapter 9 shows the kinds of it.
    """


class TermDominanceWarning(SelectionWarning):
    """One term of the score has overruled the Loss, the only term that looks at the target.

    Chapter 9 shows when it comes.
    """


class RankWarning(SelectionWarning):
    """Too few samples: the picks span, or fit, whatever there is.

    Chapter 9 shows when it comes.
    """


def weigh(terms: pd.DataFrame, weights: Criterion) -> pd.DataFrame:
    """Return the signed contributions to the score; NaN where a term does not enter."""
    return pd.DataFrame(
        {
            "loss": terms["loss"],
            "iso": weights.alpha * (1 - terms["iso"]),
            "red": weights.gamma * terms["red"],
            "tri": -weights.eta * terms["tri"],
        }
    )


def candidate_terms(stack: Stack, criterion: Criterion) -> pd.DataFrame:
    """Return the terms of Eq. 7 of every candidate that still holds something, one row each.

    Indexed by layer, with the columns loss, iso, red, tri and ridge, that of the probe. Red and Tri
    are NaN before the first pick, Loss and Tri without a target, Tri for regression.
    """
    moments, rows = stack.moments, {}
    # What `whitening` drops as noise of a pick may remain in other layers: up to d directions.
    layers = [
        layer
        for layer in stack.candidates
        if stack.energy(layer)
        > RANK_TOLERANCE**2 * stack.spectra[layer].width * stack.spectra[layer].trace
    ]
    losses = criterion.losses(stack, layers) if moments.n_targets else {}
    for layer in layers:
        loss, ridge = losses.get(layer, (np.nan, np.nan))
        alignments = stack.alignments[layer]
        tri = np.nan
        if alignments and moments.counts is not None:
            area = mean_triangle_area(stack.centroid_gram(layer))
            tri = criterion.triangle(stack, layer, area)
        rows[layer] = {
            "loss": loss,
            "iso": criterion.isotropy(stack.spectra[layer], moments.n),
            "red": max((criterion.redundancy(stack, layer, a) for a in alignments), default=np.nan),
            "tri": tri,
            "ridge": ridge,
        }
    return pd.DataFrame.from_dict(rows, orient="index", columns=[*TERMS, "ridge"])


def choose(score: pd.Series, step: int, include: Sequence[int], names: Sequence[str]) -> int:
    """Return the layer to pick at a step: the next of `include`, and then the lowest score."""
    if step > len(include):
        return int(score.idxmin())
    pick = include[step - 1]
    if pick not in score.index:
        raise ValueError(
            f"include names {names[pick]}, which holds nothing beyond the layers before it "
            "in the list; leave it out."
        )
    return pick


def dominance(parts: pd.DataFrame) -> dict[str, object]:
    """Say which weighted term spreads most over the candidates, and how many times Loss does.

    Without a target, the ratio is that of the largest spread to the next.
    """
    spread = (parts.max() - parts.min()).dropna()
    largest = spread.idxmax()
    others = (
        spread[["loss"]] if "loss" in spread else spread[spread > 0].drop(largest, errors="ignore")
    )
    if not len(others) or not spread[largest]:
        ratio = np.nan  # one candidate, or one term only
    else:
        ratio = spread[largest] / others.max() if others.max() else np.inf
    return {**spread, "decided_by": largest, "ratio": ratio}


class LOES(TransformerMixin, BaseEstimator):
    r"""Layer-wise optimal embedding selection: greedily pick the layers a task needs.

    At each step the layer with the lowest score is picked,

    .. math:: \text{Score} = \text{Loss} + \alpha (1 - \text{Iso})
              + \gamma \text{Red} - \eta \text{Tri},

    then a ridge probe on it is subtracted from the residual targets and the span of its features
    is projected out of the remaining candidates. Red and Tri enter from the second step on.

    Chapter 8 derives the loop, Chapter 5 its projections.

    Parameters
    ----------
    n_layers : how many layers to pick, K; or ``"auto"``, to stop before the first pick whose
        leave-one-out gain is within one standard error of nothing.
    criterion : ``"paper"``, the terms of Batra et al. (2026); or ``"bounded"``, the same four
        ideas with every term in [0, 1]: pure noise then wins only where no layer explains much.
    alpha, gamma, eta : weights of isotropy, redundancy and triangle area; None for the
        criterion's own: 1, 0.5, 0.1 ("paper") or 0.1, 0.1, 0.1 ("bounded").
    ridge : added to the unnormalised Gram matrix by "paper"; "bounded" chooses its own by
        leave-one-out.
    task : ``"classification"``, ``"regression"``, or ``"auto"`` to tell from `y`: text, truth
        values and whole numbers are classes, fractional numbers are values. Counts, prices and
        ages are whole numbers, too: name their task.
    standardize : divide each feature by its standard deviation first. Tames layers in which a few
        features hold all variance (massive activations), but gives up that rotating a layer
        changes nothing.
    include : layers to pick first, in this order, whatever their score.
    exclude : layers never to pick.
    triangles : ``"distinct"`` averages Tri over triples of distinct classes; ``"authors"`` expects
        their sampling with replacement, (c - 1)(c - 2) / c^2 times as much.
    layer_sizes : widths of the layers, to take them side by side as one (n, sum) matrix, as inside
        a scikit-learn pipeline; None for a sequence of layers.

    Attributes
    ----------
    selected_ : list of int, the picked layers in the order of picking.
    path_ : DataFrame with one row a step and candidate: step (from 1), layer, loss, iso, red, tri,
        score, chosen, and rank, the dimensions that the picks before that step leave free among
        the n - 1 of centred samples. A term that does not enter a score is NaN.
    dominance_ : DataFrame with one row a step: the spread over the candidates of each weighted
        term, the term with the largest, and how many times that of Loss it is.
    names_ : list of str, the names of all layers.

    Warns
    -----
    TermDominanceWarning when isotropy, redundancy or triangle area outweighs Loss more than 20
    times at some step; RankWarning when selection stops early since nothing is left to pick, or
    when the in-sample Loss of "paper" has no meaning since features outnumber free dimensions.
    Silence them with ``warnings.simplefilter("ignore", loes.SelectionWarning)``.

    References
    ----------
    Batra, Gumber, Khandelwal, Khemani and Gupta, "Uncovering the Latent Potential of Deep
    Intermediate Representations", ICML 2026, arXiv 2605.23033, Eq. 7.

    Examples
    --------
    >>> import numpy as np
    >>> from loes import LOES
    >>> rng = np.random.default_rng(0)
    >>> y = np.repeat([0, 1, 2], 50)
    >>> signal = np.eye(3)[y] + 0.1 * rng.normal(size=(150, 3))
    >>> noise = rng.normal(size=(150, 3))
    >>> LOES(n_layers=1, criterion="bounded").fit([noise, signal], y).selected_
    [1]
    """

    def __init__(
        self,
        n_layers: int | str = 3,
        *,
        criterion: str = "paper",
        alpha: float | None = None,
        gamma: float | None = None,
        eta: float | None = None,
        ridge: float = 1e-3,
        task: str = "auto",
        standardize: bool = False,
        include: Sequence[int] = (),
        exclude: Sequence[int] = (),
        triangles: str = "distinct",
        layer_sizes: Sequence[int] | None = None,
    ):
        self.n_layers = n_layers
        self.criterion = criterion
        self.alpha = alpha
        self.gamma = gamma
        self.eta = eta
        self.ridge = ridge
        self.task = task
        self.standardize = standardize
        self.include = include
        self.exclude = exclude
        self.triangles = triangles
        self.layer_sizes = layer_sizes

    def fit(self, layers: Layers, y: ArrayLike | None = None) -> "LOES":
        """Pick the layers.

        Parameters
        ----------
        layers : LayerFeatures, a sequence of (n, d_l) arrays or tensors, or one (n, L, d) array
            or tensor; with `layer_sizes`, one (n, sum of d_l) matrix. Tensors are worked on where
            they are, on an accelerator too.
        y : (n,) class labels, or (n,) or (n, c) regression targets; None to select without a
            target, by isotropy and redundancy alone.

        Raises
        ------
        ValueError for features or targets that no term is defined on, and for a budget larger
        than the number of layers.
        """
        moments, names = self._samples(layers, y)
        criterion = self._check_parameters(len(names))
        if self.standardize:
            moments = moments.standardized()
        return self._select(moments, criterion, names)

    def fit_statistics(
        self, statistics: LayerStatistics, batches: Callable[[], Iterable] | None = None
    ) -> "LOES":
        """Pick the layers from accumulated statistics instead of from samples.

        Parameters
        ----------
        statistics : what `LayerStatistics` has gathered.
        batches : called for a fresh iterable over the same (layers, y) batches, about once a step.
            Leave-one-out needs them: "bounded" with a target, and ``n_layers="auto"``. Otherwise
            they are optional, for layers so alike that their moments differ by rounding only.

        Raises
        ------
        ValueError as `fit`, and when leave-one-out is asked for without `batches`.
        """
        if not isinstance(statistics, LayerStatistics):
            raise TypeError(
                f"statistics must be LayerStatistics; got {type(statistics).__name__}. Pass layers "
                "and targets to fit."
            )
        moments = statistics.moments(batches)
        criterion = self._check_parameters(len(moments.means))
        if self.standardize:
            moments = moments.standardized()
        return self._select(moments, criterion, statistics.names)

    def transform(self, layers: Layers) -> np.ndarray | torch.Tensor:
        """Concatenate the selected layers, in the order of picking, into (n, sum of d_l).

        Raises
        ------
        ValueError when `layers` has another number of layers, or other widths, than `fit` saw.
        """
        check_is_fitted(self)
        tensors, _ = as_layers(layers, self.layer_sizes)
        if len(tensors) != len(self.names_):
            raise ValueError(
                f"fit saw {len(self.names_)} layers; got {len(tensors)}. Pass all layers of the "
                "same model, not the selected ones."
            )
        widths = [X.shape[1] for X in tensors]
        if widths != self._widths:
            raise ValueError(
                f"fit saw layers of widths {self._widths}; got {widths}. Pass the layers of the "
                "same model in the same order."
            )
        fused = torch.cat([tensors[layer] for layer in self.selected_], dim=1)
        given = layers if hasattr(layers, "ndim") else layers[0]
        return fused if isinstance(given, torch.Tensor) else fused.numpy()

    def get_feature_names_out(self, input_features=None) -> np.ndarray:
        """Name the columns of `transform`: the layer's name and the position in the layer."""
        check_is_fitted(self)
        return np.array(
            [f"{self.names_[l]}_{j}" for l in self.selected_ for j in range(self._widths[l])],
            dtype=object,
        )

    def _samples(self, layers: Layers, y: ArrayLike | None) -> tuple[Samples, list[str]]:
        """Return checked samples, as they came, and the names of the layers."""
        tensors, names = as_layers(layers, self.layer_sizes)
        if len(tensors[0]) < 2:
            raise ValueError("selection needs at least two samples; got 1.")
        targets = counts = None
        if y is not None:
            targets, counts = (
                None if part is None else torch.from_numpy(part).to(tensors[0].device)
                for part in as_targets(y, len(tensors[0]), self.task)
            )
        return Samples.of(tensors, targets, counts), names

    def _check_parameters(self, n_candidates: int | None) -> Criterion:
        """Return the criterion with its weights, or say which parameter is wrong.

        `n_candidates` is None as long as nobody knows how many layers there are.
        """
        for name, allowed in (
            ("criterion", list(CRITERIA)),
            ("task", TASKS),
            ("triangles", ["distinct", "authors"]),
            ("standardize", [True, False]),
        ):
            if (value := getattr(self, name)) not in allowed:
                raise ValueError(f"{name} must be one of {allowed}; got {value!r}.")
        forced = as_indices("include", self.include, n_candidates)
        banned = as_indices("exclude", self.exclude, n_candidates)
        if set(forced) & set(banned):
            raise ValueError(
                f"layers {sorted(set(forced) & set(banned))} are in include and exclude."
            )
        k, largest = self.n_layers, (n_candidates or sys.maxsize) - len(banned)
        if not largest:
            raise ValueError(f"exclude={banned} leaves no layer to pick; leave one out of it.")
        whole = isinstance(k, Integral) and not isinstance(k, bool)
        if k != "auto" and not (whole and 1 <= k <= largest):
            raise ValueError(
                f"n_layers={k!r} cannot be picked from {largest} layers; choose a whole number, "
                f"1 <= n_layers <= {largest}, or 'auto'."
            )
        if k != "auto" and k < len(forced):
            raise ValueError(
                f"include={forced} holds more layers than n_layers={k}; raise n_layers to "
                f"{len(forced)} or shorten include."
            )
        given = {name: getattr(self, name) for name in ("alpha", "gamma", "eta", "ridge")}
        given = {name: value for name, value in given.items() if value is not None}
        for name, value in given.items():
            if not isinstance(value, Real) or not (np.isfinite(value) and value >= 0):
                raise ValueError(f"{name} must be a finite number >= 0; got {value!r}.")
        return CRITERIA[self.criterion](**given, triangles=self.triangles)

    def _select(self, moments: Samples, criterion: Criterion, names: list[str]) -> "LOES":
        """Run the greedy loop and keep its path."""
        include, exclude = (as_indices("", part, None) for part in (self.include, self.exclude))
        layers = [layer for layer in range(len(names)) if layer not in exclude]
        stack = open_stack(moments, layers)
        check_varying(stack.spectra, moments, names)
        automatic = self.n_layers == "auto"
        if automatic and not moments.n_targets:
            raise ValueError("n_layers='auto' needs a target; pass y, or a number of layers.")
        wanted = len(layers) if automatic else self.n_layers
        selected, steps, decisions, empty = [], [], [], []
        while len(selected) < wanted:
            terms = candidate_terms(stack, criterion)
            if terms.empty:
                self._warn_exhausted(selected, wanted, moments)
                break
            parts = weigh(terms, criterion)
            score = parts.sum(axis=1, skipna=True)
            step, free = len(selected) + 1, moments.n - 1 - stack.rank
            pick = choose(score, step, include, names)
            stop = False
            if automatic and step > max(1, len(include)):
                fit = stack.loo([pick])[pick]
                stop = 1 - fit.loss <= fit.error
            chosen = (terms.index == pick) & (not stop)
            rows = terms.assign(step=step, score=score, rank=free, chosen=chosen)
            steps.append(rows.rename_axis("layer").reset_index()[PATH])
            decisions.append({"step": step, **dominance(parts)})
            if stop:
                break
            selected.append(pick)
            if moments.n_targets and criterion.in_sample and free <= stack.spectra[pick].width:
                empty.append(step)
            if len(selected) < wanted:
                stack = stack.pick(pick, terms.loc[pick, "ridge"])
        self.path_ = pd.concat(steps, ignore_index=True)
        self.dominance_ = pd.DataFrame(decisions)
        self.selected_ = selected
        self.names_ = list(names)
        self._widths = [len(mean) for mean in moments.means]
        self.n_features_in_ = sum(self._widths)
        self._warn_decided(empty, moments)
        return self

    def _warn_exhausted(self, selected: list[int], wanted: int, moments: Samples) -> None:
        picked = sum(len(moments.means[layer]) for layer in selected)
        warnings.warn(
            f"selection stopped after {len(selected)} of {wanted} layers: the {picked} features "
            f"already picked span everything the other layers hold over n={moments.n} samples. Use "
            "more samples, reduce the layers by PCA, or ask for fewer layers.",
            RankWarning,
            stacklevel=4,
        )

    def _warn_decided(self, empty: list[int], moments: Samples) -> None:
        outweighed = self.dominance_.query("ratio > @DOMINANCE")
        if len(outweighed):
            against = "Loss" if moments.n_targets else "the other term"
            said = ", ".join(
                f"{row.decided_by} at step {row.step} "
                + (
                    f"({row.ratio:.0f} times)"
                    if np.isfinite(row.ratio)
                    else f"({against} is the same for all)"
                )
                for row in outweighed.itertuples()
            )
            other = ", or use criterion='bounded'" if self.criterion == "paper" else ""
            warnings.warn(
                f"one term decided alone: {said}. So many times does its spread over the "
                f"candidates exceed that of {against}; see dominance_. Change the weights{other}; "
                "to silence this: warnings.simplefilter('ignore', loes.TermDominanceWarning).",
                TermDominanceWarning,
                stacklevel=4,
            )
        if empty:
            warnings.warn(
                f"at step {', '.join(map(str, empty))} the picked layer has at least as many "
                f"features as the n={moments.n} samples leave free dimensions, so that its "
                "in-sample Loss is small whatever it holds. Use more samples, reduce the layers by "
                "PCA, or use criterion='bounded'.",
                RankWarning,
                stacklevel=4,
            )

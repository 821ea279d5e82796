"""loes: which layers of a pretrained model hold what a task needs.

Data flows one way: a model's hidden states -> `extract_layers` -> `LayerFeatures` -> `LOES` ->
`train_probe`, which fuses the picked layers; `evaluate` judges the whole way.
"""

from importlib import import_module

from loes import baselines, examples, synthetic, tasks, terms, zoo
from loes.analysis import exhaustive, sensitivity, stability
from loes.encoder import FusedEncoder
from loes.evaluation import Evaluation, evaluate
from loes.extract import extract_layers, stream_layers
from loes.features import LayerFeatures
from loes.georeg import GeoReg
from loes.selection import LOES, RankWarning, SelectionWarning, TermDominanceWarning
from loes.statistics import LayerStatistics
from loes.training import train_probe

__all__ = [
    "LOES",
    "Evaluation",
    "FusedEncoder",
    "GeoReg",
    "LayerFeatures",
    "LayerStatistics",
    "RankWarning",
    "SelectionWarning",
    "TermDominanceWarning",
    "baselines",
    "evaluate",
    "examples",
    "exhaustive",
    "extract_layers",
    "sensitivity",
    "stability",
    "stream_layers",
    "synthetic",
    "tasks",
    "terms",
    "train_probe",
    "zoo",
]
__version__ = "0.1.0"


def __getattr__(name: str):
    """Load `loes.plots`, which needs matplotlib and seaborn, when it is first asked for."""
    if name == "plots":
        return import_module("loes.plots")
    raise AttributeError(f"module 'loes' has no attribute {name!r}")

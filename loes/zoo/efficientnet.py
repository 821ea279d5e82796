"""EfficientNet-Lite0: a small convolutional network, as a model of transformers."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from transformers import AutoConfig, AutoModel, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import ImageClassifierOutputWithNoAttention

from loes.zoo.convert import save_image_processor, save_model

# Of each stage: blocks, kernel size, stride of the first block, expansion, channels.
STAGES = [
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
]


class EfficientNetLiteConfig(PretrainedConfig):
    """Lite0 is the only member of the family here: nothing to configure but the classes."""

    model_type = "efficientnet_lite"


class ConvNorm(nn.Module):
    """Convolution, padded as TensorFlow does, and batch normalisation."""

    def __init__(self, n_in: int, n_out: int, kernel_size: int, stride: int = 1, groups: int = 1):
        super().__init__()
        self.conv = nn.Conv2d(n_in, n_out, kernel_size, stride, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(n_out, eps=1e-3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, n_in, h, w) -> (batch, n_out, ceil(h / stride), ceil(w / stride))."""
        (kernel, _), (stride, _) = self.conv.kernel_size, self.conv.stride
        padding = []
        for size in (x.shape[3], x.shape[2]):
            missing = max((-(-size // stride) - 1) * stride + kernel - size, 0)
            padding += [missing // 2, missing - missing // 2]
        return self.norm(self.conv(F.pad(x, padding)))


class Block(nn.Module):
    """Inverted residual: expand, convolve each channel, project."""

    def __init__(self, n_in: int, n_out: int, kernel_size: int, stride: int, expansion: int):
        super().__init__()
        inner = n_in * expansion
        self.expand = ConvNorm(n_in, inner, 1) if expansion > 1 else None
        self.depthwise = ConvNorm(inner, inner, kernel_size, stride, groups=inner)
        self.project = ConvNorm(inner, n_out, 1)
        self.residual = stride == 1 and n_in == n_out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, n_in, h, w) -> (batch, n_out, h / stride, w / stride)."""
        y = F.relu6(self.expand(x)) if self.expand else x
        y = self.project(F.relu6(self.depthwise(y)))
        return x + y if self.residual else y


class EfficientNetLite(PreTrainedModel):
    """EfficientNet-Lite0 with its ImageNet classifier; `blocks` are its 16 layers.

    Reference: Tan and Le, "EfficientNet: Rethinking Model Scaling for Convolutional Neural
    Networks", ICML 2019; the Lite variants have no squeeze-and-excitation and use ReLU6.
    """

    config_class = EfficientNetLiteConfig
    main_input_name = "pixel_values"

    def __init__(self, config: EfficientNetLiteConfig):
        super().__init__(config)
        self.stem = ConvNorm(3, 32, 3, stride=2)
        self.blocks = nn.ModuleList()
        n_in = 32
        for repeats, kernel_size, stride, expansion, n_out in STAGES:
            for repeat in range(repeats):
                first = repeat == 0
                self.blocks.append(
                    Block(n_in, n_out, kernel_size, stride if first else 1, expansion)
                )
                n_in = n_out
        self.head = ConvNorm(n_in, 1280, 1)
        self.classifier = nn.Linear(1280, 1000)
        self.post_init()

    def forward(
        self, pixel_values: torch.Tensor, output_hidden_states: bool = False
    ) -> ImageClassifierOutputWithNoAttention:
        """Return logits (batch, 1000) and, if asked, 17 feature maps (batch, channels, h, w)."""
        x = F.relu6(self.stem(pixel_values))
        hidden_states = [x]
        for block in self.blocks:
            x = block(x)
            hidden_states.append(x)
        pooled = F.relu6(self.head(x)).mean((2, 3))
        return ImageClassifierOutputWithNoAttention(
            logits=self.classifier(pooled),
            hidden_states=tuple(hidden_states) if output_hidden_states else None,
        )


AutoConfig.register(EfficientNetLiteConfig.model_type, EfficientNetLiteConfig, exist_ok=True)
AutoModel.register(EfficientNetLiteConfig, EfficientNetLite, exist_ok=True)

# Published name -> name here. A block without expansion has no `_expand_conv` and `_bn0`.
MODULES = {
    "_conv_stem": "stem.conv",
    "_bn0": "stem.norm",
    "_conv_head": "head.conv",
    "_bn1": "head.norm",
    "_fc": "classifier",
}
BLOCK_MODULES = {
    "_expand_conv": "expand.conv",
    "_bn0": "expand.norm",
    "_depthwise_conv": "depthwise.conv",
    "_bn1": "depthwise.norm",
    "_project_conv": "project.conv",
    "_bn2": "project.norm",
}


def rename(name: str) -> str:
    """Return the name here of a published weight, such as ``_blocks.3._bn1.bias``."""
    *block, module, kind = name.split(".")
    if not block:
        return f"{MODULES[module]}.{kind}"
    return f"blocks.{block[1]}.{BLOCK_MODULES[module]}.{kind}"


def convert(files: Sequence[Path], folder: Path) -> None:
    """Write the published state dict into a checkpoint folder."""
    (path,) = files
    state = torch.load(path, map_location="cpu", weights_only=True)
    weights = {rename(name): value.numpy() for name, value in state.items()}
    save_model(EfficientNetLite, EfficientNetLiteConfig(), weights, folder)
    # The Lite models scale pixels of 0 to 255 by (x - 127) / 128, and not as most ImageNet models.
    save_image_processor(folder, mean=[127 / 255] * 3, std=[128 / 255] * 3)

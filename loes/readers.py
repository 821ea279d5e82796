"""From inputs to batches of tensors: tokens, pixels or samples, and which of them are true."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from itertools import groupby
from os import PathLike
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    AutoFeatureExtractor,
    AutoImageProcessor,
    AutoTokenizer,
    BaseImageProcessor,
    FeatureExtractionMixin,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    ProcessorMixin,
)

from loes.families import WHISPER_TOKEN, Family, longest_text, up_to, whisper_frames
from loes.inputs import read_audio, read_image

READ_AHEAD = 16  # batches of clips that are sorted by length together


class Batch(NamedTuple):
    """What goes through a model at once.

    Attributes
    ----------
    rows : (batch,) positions in the range that was read.
    tensors : the arguments of the model, or the only one.
    mask : (batch, tokens) true where a token is pooled; None for every one but special ones.
    """

    rows: np.ndarray
    tensors: Mapping[str, torch.Tensor] | torch.Tensor
    mask: torch.Tensor | None = None


class Kind(NamedTuple):
    """What reads a modality: the attribute of a processor, its class and what loads it."""

    attribute: str
    base: type
    loader: type


KINDS = {
    "text": Kind("tokenizer", PreTrainedTokenizerBase, AutoTokenizer),
    "image": Kind("image_processor", BaseImageProcessor, AutoImageProcessor),
    "audio": Kind("feature_extractor", FeatureExtractionMixin, AutoFeatureExtractor),
}


def modality_read_by(processor: Any) -> str | None:
    """Return what a tokenizer, image processor or feature extractor reads; None for a callable."""
    kinds = (modality for modality, kind in KINDS.items() if isinstance(processor, kind.base))
    return next(kinds, None)


def load_processor(name: str | PathLike, modality: str, **options: Any) -> Any:
    """Load tokenizer, image processor or feature extractor of a folder or hub id.

    Raises
    ------
    ValueError for a folder without a tokenizer, for which transformers may make an empty one up;
    and whatever transformers raises.
    """
    processor = KINDS[modality].loader.from_pretrained(name, **options)
    if modality == "text" and len(processor) <= len(processor.all_special_ids):
        raise ValueError(
            f"{name} holds no tokenizer; save that of the model beside its weights: "
            f"tokenizer.save_pretrained({str(name)!r})."
        )
    return processor


def find_processor(
    processor: Any,
    model: torch.nn.Module,
    modality: str | None,
    folder: str | PathLike | None,
    trust_remote_code: bool,
) -> Callable:
    """Return what turns items into tensors for a model: the given one, its own, or a stack.

    Parameters
    ----------
    processor : what was given; of one that holds several, the part for the modality is taken.
    model : the model that is read.
    modality : what the model reads, if that is known.
    folder : the folder or id that the model came from, if any.
    trust_remote_code : as in `loes.extract_layers`.

    Raises
    ------
    ValueError if there is none, TypeError if it is for something else.
    """
    if processor is None and folder is not None:
        return load_processor(folder, modality, trust_remote_code=trust_remote_code)
    if processor is None and isinstance(model, PreTrainedModel):
        raise ValueError(
            "a loaded model says nothing about its processor: pass processor=..., "
            "or pass the model's folder or hub id instead of the model."
        )
    if processor is None:
        return stack_tensors
    if modality is not None:
        part = getattr(processor, KINDS[modality].attribute, processor)
        if isinstance(part, KINDS[modality].base):
            return part
    if modality_read_by(processor) or isinstance(processor, ProcessorMixin):
        wanted = KINDS[modality].attribute.replace("_", " ") if modality else "own callable"
        raise TypeError(
            f"{type(model).__name__} needs its {wanted} as processor; got "
            f"{type(processor).__name__}."
        )
    if not callable(processor):
        raise TypeError(f"processor must be callable; got {type(processor).__name__}.")
    return processor


def describe_processor(processor: Any) -> str:
    """Return the class and a SHA-256 over the settings; the name of a callable that tells none."""
    if isinstance(processor, PreTrainedTokenizerBase):
        settings = {
            "special": processor.special_tokens_map,
            "max_length": processor.model_max_length,
        }
        if backend := getattr(processor, "backend_tokenizer", None):
            settings["backend"] = json.loads(backend.to_str())  # the vocabulary is in it
            for state in ("padding", "truncation"):  # of the latest call
                del settings["backend"][state]
        else:
            settings["vocabulary"] = processor.get_vocab()
    elif hasattr(processor, "to_dict"):
        settings = processor.to_dict()
    else:
        return getattr(processor, "__qualname__", type(processor).__qualname__)
    content = json.dumps(settings, sort_keys=True, default=str)
    return f"{type(processor).__name__} {hashlib.sha256(content.encode()).hexdigest()}"


def stack_tensors(items: Sequence) -> torch.Tensor:
    """Stack items of one shape, the processor of a model that has none of its own."""
    return torch.stack([torch.as_tensor(item) for item in items])


@dataclass
class Reader:
    """Turns items into batches for one model.

    Attributes
    ----------
    model : what the batches are for.
    family : its family.
    processor : a tokenizer, image processor, feature extractor, or any other callable from a list
        of items to a tensor or to a mapping of tensors.
    batch_size : items a batch, at most.
    max_length : tokens a text or seconds a clip; None for what processor and model allow.
    """

    model: torch.nn.Module
    family: Family
    processor: Callable
    batch_size: int
    max_length: float | None = None
    accepted: set[str] = field(init=False)

    def __post_init__(self):
        self.accepted = set(signature(self.model.forward).parameters)

    def batches(self, inputs: Sequence, numbers: range) -> Iterator[Batch]:
        """Yield batches that hold each of the inputs with these numbers once."""
        read = {
            "text": self._text_batches,
            "image": self._image_batches,
            "audio": self._audio_batches,
            None: self._other_batches,
        }
        return read[modality_read_by(self.processor)](inputs, numbers)

    @property
    def samples(self) -> int | None:
        """How many samples of a clip are read; None for all."""
        if self.max_length is None or modality_read_by(self.processor) != "audio":
            return None
        return max(1, round(self.max_length * self.processor.sampling_rate))

    @property
    def heard(self) -> int | None:
        """How many tokens a Whisper encoder is to hear; None for all, and for other models."""
        if self.samples is None or self.family.frames is not whisper_frames:
            return None
        return min(-(-self.samples // WHISPER_TOKEN), self.model.config.max_source_positions)

    def _by_length(self, lengths: np.ndarray, equal: bool) -> Iterator[np.ndarray]:
        """Yield the rows of each batch, longest first: too large a batch fails at once."""
        order = np.argsort(-lengths, kind="stable")
        groups = [order]
        if equal:
            groups = [np.array(list(rows)) for _, rows in groupby(order, lengths.__getitem__)]
        for group in groups:
            yield from self._chunks(group)

    def _chunks(self, rows: np.ndarray) -> Iterator[np.ndarray]:
        for start in range(0, len(rows), self.batch_size):
            yield rows[start : start + self.batch_size]

    def _accepted(self, tensors: Mapping) -> dict[str, Any]:
        return {key: tensors[key] for key in tensors if key in self.accepted}

    def _text_batches(self, inputs: Sequence[str], numbers: range) -> Iterator[Batch]:
        # A tokenizer that was never told its limit answers with a huge number: ask the model then.
        # A model without a limit may answer with None or -1, and the library counts in 32 bits.
        told = self.processor.model_max_length
        limits = (self.max_length, told, longest_text(self.model), 2**31 - 1)
        longest = int(min(limit for limit in limits if limit is not None and limit > 0))
        texts = [inputs[number] for number in numbers]
        tokens = self.processor(
            texts, truncation=True, max_length=longest, return_attention_mask=True
        )
        lengths = np.array([len(ids) for ids in tokens["input_ids"]])
        if not lengths.all():
            where = int(lengths.argmin())
            raise ValueError(
                f"inputs[{numbers[where]}] ({texts[where]!r}) has no token; leave it out."
            )
        # The mask hides padding, so that any token will do where the tokenizer has none for it.
        padding = {"input_ids": self.processor.pad_token_id or 0}
        accepted = self._accepted(tokens)
        for rows in self._by_length(lengths, equal="attention_mask" not in accepted):
            # On the right even for decoders: padding on the left would shift the positions.
            tensors = {
                key: pad_sequence(
                    [torch.tensor(values[row]) for row in rows],
                    batch_first=True,
                    padding_value=padding.get(key, 0),
                )
                for key, values in accepted.items()
            }
            yield Batch(rows, tensors, up_to(lengths[rows], lengths[rows].max()))

    def _image_batches(self, inputs: Sequence, numbers: range) -> Iterator[Batch]:
        for rows in self._chunks(np.arange(len(numbers))):
            pixels = [_read(read_image, inputs, numbers[row]) for row in rows]
            tensors = self._accepted(self.processor(images=pixels, return_tensors="pt"))
            if "noise" in self.accepted:  # a masked autoencoder orders its patches by it
                n_patches = self.model.embeddings.patch_embeddings.num_patches
                tensors["noise"] = torch.arange(float(n_patches)).expand(len(rows), -1)
            yield Batch(rows, tensors)

    def _audio_batches(self, inputs: Sequence, numbers: range) -> Iterator[Batch]:
        rate = self.processor.sampling_rate
        ahead = READ_AHEAD * self.batch_size  # not all at once: hours of sound are gigabytes
        for start in range(0, len(numbers), ahead):
            waves = [
                _read(read_audio, inputs, number, rate)[: self.samples]
                for number in numbers[start : start + ahead]
            ]
            lengths = np.array([len(wave) for wave in waves])
            for rows in self._by_length(lengths, self.family.equal_lengths):
                some = [waves[row] for row in rows]
                yield Batch(start + rows, *self._encode(some, numbers[0] + start + rows))

    def _encode(
        self, waves: list[np.ndarray], numbers: np.ndarray
    ) -> tuple[dict[str, torch.Tensor], torch.Tensor | None]:
        """Return the tensors and the mask of some clips, which have these numbers."""
        lengths = np.array([len(wave) for wave in waves])
        mask = self.family.frames and self.family.frames(lengths, self.model.config)
        if mask is not None and not mask.any(1).all():
            raise ValueError(
                f"inputs[{numbers[lengths.argmin()]}] of {lengths.min()} samples is too short for "
                "the model to make a frame of it; leave it out."
            )
        options = {"padding": True}
        if self.family.frames is whisper_frames:  # 30 s, or what `inference` has left of them
            size = WHISPER_TOKEN * self.model.config.max_source_positions
            options = {"padding": "max_length", "max_length": size}
        tensors = self._accepted(
            self.processor(
                waves,
                sampling_rate=self.processor.sampling_rate,
                return_attention_mask=True,
                return_tensors="pt",
                **options,
            )
        )
        if self.family.equal_lengths:
            tensors.pop("attention_mask", None)
        return tensors, mask

    def _other_batches(self, inputs: Sequence, numbers: range) -> Iterator[Batch]:
        for rows in self._chunks(np.arange(len(numbers))):
            tensors = self.processor([inputs[numbers[row]] for row in rows])
            mask = tensors.get("attention_mask") if isinstance(tensors, Mapping) else None
            yield Batch(rows, tensors, mask)


def _read(read: Callable, inputs: Sequence, number: int, *options: Any) -> Any:
    try:
        return read(inputs[number], *options)
    except (OSError, TypeError, ValueError) as error:
        error.add_note(f"This is inputs[{number}].")
        raise

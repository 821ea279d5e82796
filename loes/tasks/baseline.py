"""What is reached without any pretrained model, to be shown beside every other accuracy."""

import numpy as np
from scipy.signal import spectrogram
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from loes.inputs import read_audio, read_image
from loes.tasks.task import Task

RATE = 8000  # Hz


def trivial_baseline(task: Task) -> float:
    """Return the test accuracy of a logistic regression on features that know nothing.

    Texts: character 1- to 4-grams, TF-IDF. Pictures: 16 x 16 grey pixels. Sounds: mean and
    standard deviation over time of the log spectrum up to 4 kHz. The train part is fitted, the
    validation part is not used: nothing is tuned.

    Chapter 13 shows what it can reach.
    """
    features, strength = {
        "text": (
            TfidfVectorizer(analyzer="char_wb", ngram_range=(1, 4), sublinear_tf=True),
            10.0,
        ),
        "image": (make_pipeline(FunctionTransformer(_pixels), StandardScaler()), 0.01),
        "audio": (make_pipeline(FunctionTransformer(_spectra), StandardScaler()), 0.01),
    }[task.modality]
    probe = make_pipeline(features, LogisticRegression(C=strength, max_iter=1000))
    inputs = {part: [task.inputs[row] for row in getattr(task, part)] for part in ("train", "test")}
    probe.fit(inputs["train"], task.labels[task.train])
    return float(probe.score(inputs["test"], task.labels[task.test]))


def _pixels(images: list) -> np.ndarray:
    small = [read_image(image).convert("L").resize((16, 16)) for image in images]
    return np.stack([np.asarray(image, dtype=float).ravel() for image in small])


def _spectra(sounds: list) -> np.ndarray:
    return np.stack([_spectrum(read_audio(sound, RATE)) for sound in sounds])


def _spectrum(sound: np.ndarray) -> np.ndarray:
    _, _, power = spectrogram(sound, RATE, nperseg=256)
    level = np.log(power + 1e-10)
    return np.concatenate([level.mean(1), level.std(1)])

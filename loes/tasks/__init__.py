"""Labelled data sets from packages or the hub, with splits that do not leak.

Chapter 1 loads the first.
"""

import inspect
from collections.abc import Callable

from loes.checks import check_whole
from loes.tasks import hub, speech, text, vision
from loes.tasks.baseline import trivial_baseline
from loes.tasks.task import Task

__all__ = ["TASKS", "Task", "load", "trivial_baseline"]

TASKS: dict[str, Callable[..., Task]] = {
    "20newsgroups": text.newsgroups,
    "animals": vision.animals,
    "clipart": vision.clipart,
    "digits": vision.digits,
    "emoji": vision.emoji,
    "hub": hub.hub,
    "intents": text.intents,
    "names": text.names,
    "spoken-language": speech.spoken_language,
    "spoken-words": speech.spoken_words,
    "synthetic-speech": speech.synthetic_speech,
}


def load(name: str, *, per_class: int | None = None, seed: int = 0, **options: object) -> Task:
    """Load a sample of a task of `TASKS`, whose functions describe them and their options.

    Chapter 1 loads the first.

    Parameters
    ----------
    name : a key of `TASKS`, such as ``"20newsgroups"``.
    per_class : training samples a class; a quarter as many for validation, half for test. Classes
        that have fewer give all they have. None for 100.
    seed : which samples are drawn, and which groups go to which part.
    **options : what the task's function takes beyond these, such as ``language="ur"``.

    Raises
    ------
    ValueError for an unknown name, option or value, or a sample larger than the data;
    FileNotFoundError when the package that holds the data is missing and cannot be fetched;
    ModuleNotFoundError when a library that reads it is missing.
    """
    if name not in TASKS:
        raise ValueError(f"unknown task {name!r}; choose one of {sorted(TASKS)}.")
    parameters = inspect.signature(TASKS[name]).parameters
    for option in options:
        if option not in parameters:
            raise ValueError(f"{name} has no option {option!r}; its options are {[*parameters]}.")
    for option in [*parameters][2:]:  # behind per_class and seed
        if parameters[option].default is inspect.Parameter.empty and option not in options:
            raise ValueError(f"{name} needs the option {option!r}; pass {option}=... to load.")
    for key, value, least in (("per_class", per_class, 4), ("seed", seed, 0)):
        if value is not None or key == "seed":
            check_whole(key, value, least)
    return TASKS[name](per_class, seed, **options)

"""Tasks of speech: which language, which kind of word, person or synthesiser."""

import io
import random
from importlib import metadata
from pathlib import Path

import numpy as np

from loes.inputs import read_audio
from loes.packages import debian_folder, debian_version, package_file
from loes.tasks.espeak import speak
from loes.tasks.task import Task, build, choose, need

PROMPTS = {
    "en": "CC-BY-SA-3.0",
    "es": "CC-BY-SA-3.0",
    "fr": "CC-BY-SA-3.0",
    "it": "CC-BY-3.0",
    "ru": "CC-BY-3.0",
}
NO_SPEECH = ["beep", "beeperr", "ascending-2tone", "descending-2tone", "tt-monkeys"]

STAMPS = "usr/share/tuxpaint/stamps"
# Not Greek, whose recordings tell the kinds apart by how they sound: a spectrum gets three of four.
LANGUAGES = ["bg", "ca", "es", "fr", "ro", "ru"]
# The folders whose words say what they are, with enough clips each.
WORDS = ["animals", "food", "household", "symbols", "town", "vehicles"]

# Of espeak-ng, men and women; as many texts each.
VARIANTS = [f"m{number}" for number in range(1, 9)] + [f"f{number}" for number in range(1, 6)]
# Its second synthesiser, after Klatt, makes the sound in another way, from the same phonemes.
KLATT = ["klatt", *(f"klatt{number}" for number in range(2, 7))]
TEXTS = 260
RATE = 16_000  # Hz

# Seconds: a shorter clip says nothing, a longer one costs as much as ten words.
SHORTEST, LONGEST = 0.15, 10.0


def spoken_language(
    per_class: int | None, seed: int, *, languages: tuple[str, ...] = tuple(PROMPTS)
) -> Task:
    """Which language a telephone prompt of 8 kHz is spoken in; no prompt is in two parts.

    Each language has one voice, so language and voice are confounded: a model may tell the
    speaker instead.
    """
    if not isinstance(languages, list | tuple) or len(languages) < 2:
        raise ValueError(f"languages must be two or more of {list(PROMPTS)}; got {languages!r}.")
    for language in languages:
        choose("languages", language, list(PROMPTS))
    rows = []
    for language in languages:
        package = f"asterisk-core-sounds-{language}-wav"
        folder = debian_folder(package, megabytes=20, twin="google/fleurs")
        (voice,) = (folder / "usr/share/asterisk/sounds").iterdir()
        for path in sorted(voice.glob("**/*.wav")):
            prompt = path.relative_to(voice).with_suffix("").as_posix()
            if prompt not in NO_SPEECH and not prompt.startswith("silence/") and _fits(path):
                rows.append((path, language, prompt))
    return build(
        "spoken-language",
        *map(list, zip(*rows, strict=True)),
        per_class=per_class,
        seed=seed,
        modality="audio",
        licence=" and ".join(sorted({PROMPTS[language] for language in languages})),
        source="Debian packages asterisk-core-sounds-*-wav "
        f"{debian_version(folder)}; one voice a language: language and voice are confounded",
    )


def spoken_words(per_class: int | None, seed: int, *, language: str = "fr") -> Task:
    """Which of six kinds of things a spoken description is about; no item is in two parts."""
    folder, clips = _stamps(language)
    rows = []
    for path, english, _ in clips:
        label = path.relative_to(folder / STAMPS).parts[0]
        if label in WORDS and _fits(path):
            rows.append((path, label, english))
    return build(
        f"spoken-words in {language!r}",
        *map(list, zip(*rows, strict=True)),
        per_class=per_class,
        seed=seed,
        modality="audio",
        licence="GPL-2.0",
        source=f"Debian package tuxpaint-stamps-default {debian_version(folder)}, "
        f"language {language}",
    )


def synthetic_speech(
    per_class: int | None, seed: int, *, language: str = "fr", synthesiser: str = "espeak"
) -> Task:
    """Whether a person or a synthesiser speaks; its variants are other ones in each part.

    Both say the same texts, and both are resampled, trimmed, scaled and coded alike (the persons'
    recordings for the second time). Even so a mean spectrum tells nearly all of them apart: all
    variants are of one synthesiser, and what is learned here need not hold for another: with
    ``synthesiser="klatt"`` the same texts, in the same parts, are spoken by the second one of
    espeak-ng.
    """
    choose("synthesiser", synthesiser, ["espeak", "klatt"])
    folder, clips = _stamps(language)
    texts = {text: path for path, _, text in clips if text and _fits(path)}
    chosen = random.Random(seed).sample(sorted(texts), TEXTS)
    variants = [VARIANTS[number % len(VARIANTS)] for number in range(TEXTS)]
    voices = variants
    if synthesiser == "klatt":
        voices = [KLATT[number % len(KLATT)] for number in range(TEXTS)]
    spoken, rate = speak(
        package_file("espeakng-loader", "espeakng_loader/libespeak-ng.so"),
        [(text, f"{language}+{voice}") for text, voice in zip(chosen, voices, strict=True)],
    )
    human = [_alike(texts[text]) for text in chosen]
    synthetic = [_alike((samples, rate)) for samples in spoken]
    return build(
        f"synthetic-speech in {language!r}",
        human + synthetic,
        ["human"] * TEXTS + ["synthetic"] * TEXTS,
        variants + variants,
        per_class=per_class,
        seed=seed,
        modality="audio",
        licence="GPL-2.0 (recordings), GPL-3.0 (synthesiser)",
        source=f"Debian package tuxpaint-stamps-default {debian_version(folder)} and espeak-ng of "
        f"espeakng-loader {metadata.version('espeakng-loader')}, language {language}",
    )


def _stamps(language: str) -> tuple[Path, list[tuple[Path, str, str]]]:
    """Return the package's folder, and each clip with its text in English and in its language.

    The English text is equal for stamps of one thing.
    """
    choose("language", language, LANGUAGES)
    folder = debian_folder("tuxpaint-stamps-default", megabytes=161, twin="google/speech_commands")
    clips = []
    for path in sorted((folder / STAMPS).glob(f"**/*_desc_{language}.ogg")):
        texts = path.with_name(path.name.replace(f"_desc_{language}.ogg", ".txt"))
        if texts.exists():
            english, *others = texts.read_text(encoding="utf-8", errors="replace").split("\n")
            own = [line for line in others if line.startswith(f"{language}.utf8=")]
            clips.append((path, english, own[0].split("=", 1)[1].strip() if own else ""))
    return folder, clips


def _fits(path: Path) -> bool:
    return SHORTEST <= need("soundfile").info(path).duration <= LONGEST


def _alike(sound: object) -> tuple[np.ndarray, int]:
    """Give a sound the rate, the silences, the level and the traces of coding that all have."""
    soundfile = need("soundfile")
    samples = read_audio(sound, RATE)
    frame = RATE // 100
    power = (samples[: len(samples) // frame * frame].reshape(-1, frame) ** 2).mean(1)
    (loud,) = np.nonzero(power > power.max() / 3000)  # less than 35 dB below the peak
    samples = samples[loud[0] * frame : (loud[-1] + 1) * frame]
    samples = (samples * 0.06 / np.sqrt((samples**2).mean())).clip(-0.98, 0.98)
    file = io.BytesIO()
    soundfile.write(file, samples, RATE, format="OGG", subtype="VORBIS")
    file.seek(0)
    return soundfile.read(file, dtype="float32")

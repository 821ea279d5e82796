"""The speech synthesiser espeak-ng, called in the library that a package carries.

It runs in a process of its own: how it says something depends on all that it has said before, and
on a seed that it takes from the clock, so only a fresh one with a seed of ours is repeatable.
"""

import ctypes
import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np

# Names and numbers of espeak-ng's speak_lib.h.
AUDIO_OUTPUT_SYNCHRONOUS = 2
INITIALIZE_DONT_EXIT = 0x8000
CHARS_UTF8 = 1
CALLBACK = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p
)


def speak(library: Path, lines: list[tuple[str, str]]) -> tuple[list[np.ndarray], int]:
    """Speak texts, one after the other.

    Parameters
    ----------
    library : libespeak-ng, with its folder espeak-ng-data beside it.
    lines : n pairs of a text and a voice, which is a language and a variant such as ``"fr+f2"``.

    Returns
    -------
    n arrays (samples,) of float32 in [-1, 1), and their rate in Hz.

    Raises
    ------
    ValueError for a voice that espeak-ng does not have, or a library that cannot be used.
    """
    # -P: no module of this folder may stand in for one of the standard library.
    command = [sys.executable, "-P", __file__, library]
    process = subprocess.run(command, input=json.dumps(lines).encode(), capture_output=True)
    if process.returncode:
        reason = process.stderr.decode().strip() or f"it ended with {process.returncode}"
        raise ValueError(f"espeak-ng failed: {reason.splitlines()[-1]}")
    with np.load(io.BytesIO(process.stdout)) as file:
        rate, *spoken = (file[key] for key in file)
    return [samples.astype(np.float32) / 32768 for samples in spoken], int(rate)


def main() -> None:
    """Read pairs of a text and a voice from stdin, write the rate and int16 samples to stdout."""
    path = Path(sys.argv[1])
    library = ctypes.CDLL(path)
    library.espeak_Initialize.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_int]
    library.espeak_Synth.argtypes = [
        *(ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint, ctypes.c_int, ctypes.c_uint),
        *(ctypes.c_uint, ctypes.c_void_p, ctypes.c_void_p),
    ]
    rate = library.espeak_Initialize(
        AUDIO_OUTPUT_SYNCHRONOUS, 0, bytes(path.parent), INITIALIZE_DONT_EXIT
    )
    if rate <= 0:
        sys.exit(f"there is no usable espeak-ng-data beside {path}.")
    library.espeak_ng_SetRandSeed(1)
    pieces = []

    @CALLBACK
    def keep(samples, length, _events):
        if samples and length > 0:
            pieces.append(np.ctypeslib.as_array(samples, shape=(length,)).copy())
        return 0

    library.espeak_SetSynthCallback(keep)
    spoken = []
    for text, voice in json.load(sys.stdin.buffer):
        if library.espeak_SetVoiceByName(voice.encode()) != 0:
            sys.exit(f"it has no voice {voice!r}.")
        data = text.encode()
        library.espeak_Synth(data, len(data) + 1, 0, 0, 0, CHARS_UTF8, None, None)
        spoken.append(np.concatenate(pieces))
        pieces.clear()
    np.savez(sys.stdout.buffer, rate, *spoken)


if __name__ == "__main__":
    main()

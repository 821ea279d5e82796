"""What all tests share: no hub, few threads, and tiny models with random weights."""

import os
import shutil
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import pytest
import torch
from hypothesis import HealthCheck, settings
from playwright.sync_api import sync_playwright
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

# The matrices are tiny, and threads that wait for a busy core made this 25 times slower.
torch.set_num_threads(1)

# The same examples in every run, however slow: a failure is a fault of the code, not of the day.
settings.register_profile(
    "loes",
    derandomize=True,
    deadline=None,
    max_examples=30,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("loes")

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
VOCABULARY = [*SPECIAL, "the", "cat", "sat", "on", "mat", "a", "dog", "ran", "far", "away"]


@pytest.fixture(params=["cpu", "cuda"])
def device(request):
    """Return each device in turn; one that the machine lacks is skipped."""
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    return request.param


def lacking(reason):
    """Skip the test, or fail it on CI."""
    (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)


@pytest.fixture(scope="session")
def site():
    """Return the folder of the built site."""
    folder = Path(__file__).parents[1] / "_build/html"
    if not (folder / "index.html").exists():
        lacking("the site is not built: make site")
    return folder


@pytest.fixture(scope="module")
def browser():
    """Return a headless Chromium."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        lacking("there is no Chromium here: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def make_tokenizer():
    """Return a function that builds a word-level tokenizer over VOCABULARY."""

    def make(*, special=True, **options):
        words = {word: index for index, word in enumerate(VOCABULARY)}
        tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        if special:
            tokenizer.post_processor = TemplateProcessing(
                single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
            )
        options = {"pad_token": "[PAD]", "unk_token": "[UNK]", **options}
        return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **options)

    return make

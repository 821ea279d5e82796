"""Every family from a saved checkpoint, against one sample at a time, pooled by hand."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
import transformers as hf
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from loes import extract_layers
from loes.extract import stream_layers
from loes.families import FAMILIES, resolve_pooling

# Of WavLM's own attention, between transformers and torch.
pytestmark = pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask")

# As in RoBERTa, padding is not token 0, so that positions begin behind it.
WORDS = ["<s>", "<pad>", "</s>", "<unk>", "the", "cat", "sat", "on", "mat", "a", "dog", "ran"]
WORDS += ["far", "away"]
TEXTS = ["the cat", "a dog ran far away on the mat", "sat", "the dog sat on a mat", "cat cat cat"]
RATE = 16_000
CLIPS = [
    (np.random.default_rng(n).normal(size=n).astype(np.float32) * 0.1, RATE)
    for n in (2000, 900, 3000, 900, 1441)
]
IMAGES = [
    Image.fromarray(np.random.default_rng(n).integers(0, 256, (n, 16, 3), np.uint8))
    for n in (16, 20, 12, 16, 31)
]

WIDTH = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
BLOCKS = {**WIDTH, "intermediate_size": 32}
TOKENS = {
    "vocab_size": 14,
    "bos_token_id": 0,
    "pad_token_id": 1,
    "eos_token_id": 2,
    "max_position_embeddings": 20,
}
SPECIAL = {"cls_token_id": 0, "sep_token_id": 2}
PATCHES = {**BLOCKS, "image_size": 16, "patch_size": 4}
DECODER_HALF = {"decoder_start_token_id": 0, "decoder_layers": 1, "decoder_attention_heads": 2}
CONVOLUTIONS = {
    **BLOCKS,
    "conv_dim": (16, 16),
    "conv_kernel": (10, 3),
    "conv_stride": (5, 2),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
}
LARGE = {"feat_extract_norm": "layer", "do_stable_layer_norm": True}
CLIP = {"projection_dim": 8}
CLIP_TEXT = {**BLOCKS, **TOKENS, **CLIP}

CONFIGS = {
    "bert": hf.BertConfig(**BLOCKS, **TOKENS),
    "electra": hf.ElectraConfig(**BLOCKS, **TOKENS, embedding_size=8),
    "roberta": hf.RobertaConfig(**BLOCKS, **TOKENS),
    "camembert": hf.CamembertConfig(**BLOCKS, **TOKENS),
    "xlm-roberta": hf.XLMRobertaConfig(**BLOCKS, **TOKENS),
    "mpnet": hf.MPNetConfig(**BLOCKS, **TOKENS),
    "distilbert": hf.DistilBertConfig(**TOKENS, dim=16, n_layers=2, n_heads=2, hidden_dim=32),
    "modernbert": hf.ModernBertConfig(**BLOCKS, **TOKENS, **SPECIAL),
    "deberta-v2": hf.DebertaV2Config(
        **BLOCKS, **TOKENS, relative_attention=True, pos_att_type=["p2c", "c2p"], conv_kernel_size=3
    ),
    "t5": hf.T5Config(
        **TOKENS, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, decoder_start_token_id=0
    ),
    "bart": hf.BartConfig(
        **TOKENS, **DECODER_HALF, d_model=16, encoder_layers=2, encoder_attention_heads=2
    ),
    "gpt2": hf.GPT2Config(
        **{k: v for k, v in TOKENS.items() if k != "max_position_embeddings"},
        n_embd=16,
        n_layer=2,
        n_head=2,
        n_positions=20,
    ),
    "gpt_neox": hf.GPTNeoXConfig(**BLOCKS, **TOKENS),
    "llama": hf.LlamaConfig(**BLOCKS, **TOKENS),
    "mistral": hf.MistralConfig(**BLOCKS, **TOKENS, num_key_value_heads=1),
    "qwen2": hf.Qwen2Config(**BLOCKS, **TOKENS, num_key_value_heads=1),
    "qwen3": hf.Qwen3Config(**BLOCKS, **TOKENS, num_key_value_heads=1, head_dim=8),
    "clip_text_model": hf.CLIPTextConfig(**CLIP_TEXT),
    "vit": hf.ViTConfig(**PATCHES),
    "deit": hf.DeiTConfig(**PATCHES),
    "dinov2": hf.Dinov2Config(**PATCHES),
    "dinov2_with_registers": hf.Dinov2WithRegistersConfig(**PATCHES, num_register_tokens=3),
    "dinov3_vit": hf.DINOv3ViTConfig(**PATCHES, num_register_tokens=2),
    "vit_mae": hf.ViTMAEConfig(**PATCHES, mask_ratio=0.75),
    "clip_vision_model": hf.CLIPVisionConfig(**PATCHES, **CLIP),
    "siglip_vision_model": hf.SiglipVisionConfig(**PATCHES),
    "resnet": hf.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1]),
    "convnext": hf.ConvNextConfig(num_stages=2, hidden_sizes=[8, 16], depths=[1, 1]),
    "convnextv2": hf.ConvNextV2Config(num_stages=2, hidden_sizes=[8, 16], depths=[1, 1]),
    "wav2vec2": hf.Wav2Vec2Config(**CONVOLUTIONS),
    "wav2vec2 large": hf.Wav2Vec2Config(**CONVOLUTIONS, **LARGE),
    "hubert": hf.HubertConfig(**CONVOLUTIONS),
    "hubert large": hf.HubertConfig(**CONVOLUTIONS, **LARGE),
    "wavlm": hf.WavLMConfig(**CONVOLUTIONS, num_buckets=8, max_bucket_distance=16),
    "wavlm large": hf.WavLMConfig(**CONVOLUTIONS, **LARGE, num_buckets=8, max_bucket_distance=16),
    "whisper": hf.WhisperConfig(
        **{k: v for k, v in TOKENS.items() if k != "max_position_embeddings"},
        **DECODER_HALF,
        d_model=16,
        encoder_layers=2,
        encoder_attention_heads=2,
        encoder_ffn_dim=32,
        num_mel_bins=8,
        max_source_positions=12,
    ),
    "audio-spectrogram-transformer": hf.ASTConfig(
        **BLOCKS, patch_size=8, frequency_stride=4, time_stride=4, num_mel_bins=16, max_length=24
    ),
}

# Where hidden_states[-1] lies: behind the final norm, before it, or there is none.
NORMS = {
    "modernbert": ("after", "final_norm"),
    "t5": ("after", "final_layer_norm"),
    "gpt2": ("after", "ln_f"),
    "gpt_neox": ("after", "final_layer_norm"),
    "llama": ("after", "norm"),
    "mistral": ("after", "norm"),
    "qwen2": ("after", "norm"),
    "qwen3": ("after", "norm"),
    "whisper": ("after", "layer_norm"),
    "vit": ("before", "layernorm"),
    "deit": ("before", "layernorm"),
    "dinov2": ("before", "layernorm"),
    "dinov2_with_registers": ("before", "layernorm"),
    "dinov3_vit": ("before", "norm"),
    "vit_mae": ("before", "layernorm"),
    "audio-spectrogram-transformer": ("before", "layernorm"),
    "siglip_vision_model": ("before", "post_layernorm"),
    "clip_text_model": ("before", "final_layer_norm"),
    "wav2vec2 large": ("before", "encoder.layer_norm"),
    "hubert large": ("before", "encoder.layer_norm"),
    "wavlm large": ("before", "encoder.layer_norm"),
    "clip_vision_model": ("pooled", "post_layernorm"),
    "convnext": ("pooled", "layernorm"),
    "convnextv2": ("pooled", "layernorm"),
}
SPECIAL_TOKENS = {"siglip_vision_model": 0, "deit": 2, "dinov2_with_registers": 4, "dinov3_vit": 3}
CAUSAL = {"gpt2", "gpt_neox", "llama", "mistral", "qwen2", "qwen3", "clip_text_model"}
MAPS = {"resnet", "convnext", "convnextv2"}
SPEECH = {family for family in CONFIGS if family.split()[0] in ("wav2vec2", "hubert", "wavlm")}
AUDIO = {*SPEECH, "whisper", "audio-spectrogram-transformer"}
TEXT = set(list(CONFIGS)[: list(CONFIGS).index("vit")])


def inputs_of(family):
    return TEXTS if family in TEXT else CLIPS if family in AUDIO else IMAGES


def make_tokenizer():
    """Return a tokenizer that pads on the left, as those of many decoders do."""
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>", padding_side="left"
    )


def make_processor(family, config):
    if family in TEXT:
        return make_tokenizer()
    if family == "whisper":
        return hf.WhisperFeatureExtractor(feature_size=8, chunk_length=1)
    if family == "audio-spectrogram-transformer":
        return hf.ASTFeatureExtractor(num_mel_bins=16, max_length=24)
    if family in SPEECH:
        return hf.Wav2Vec2FeatureExtractor(return_attention_mask="large" in family)
    return ViTImageProcessorPil(size={"height": 16, "width": 16})


def make_model(config):
    """Return a model whose every weight counts: norms and biases are not what they start as."""
    torch.manual_seed(0)
    model = hf.AutoModel.from_config(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.2 * torch.randn_like(weight))
    return model


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Return a function from a family to the folder of a checkpoint."""
    folders = {}

    def folder_of(family):
        if family not in folders:
            folder = folders[family] = tmp_path_factory.mktemp("model")
            make_model(CONFIGS[family]).save_pretrained(folder)
            make_processor(family, CONFIGS[family]).save_pretrained(folder)
        return folders[family]

    return folder_of


def encode(family, folder, item):
    """Return one sample's tensors and how many of its tokens are true, where it is padded."""
    if family in TEXT:
        tokenizer = hf.AutoTokenizer.from_pretrained(folder)
        return {"input_ids": torch.tensor([tokenizer(item)["input_ids"]])}
    if family in AUDIO:
        extractor = hf.AutoFeatureExtractor.from_pretrained(folder)
        options = {"padding": "max_length", "max_length": 3840} if family == "whisper" else {}
        wave, rate = item
        encoded = extractor([wave], sampling_rate=rate, return_tensors="pt", **options)
        return {key: encoded[key] for key in encoded if key != "attention_mask"}
    processor = hf.AutoImageProcessor.from_pretrained(folder)
    return {"pixel_values": processor(images=[item], return_tensors="pt")["pixel_values"]}


def run_alone(family, folder, item):
    """Return the hidden states of one sample, and what its final norm takes and gives."""
    torch.manual_seed(0)
    model = hf.AutoModel.from_pretrained(folder).eval()
    if family in ("t5", "bart", "whisper"):
        model = model.encoder
    if family == "vit_mae":
        model.config.mask_ratio = 0.0
    seen = {}
    if family in NORMS:
        norm = model.get_submodule(NORMS[family][1])
        norm.register_forward_hook(lambda _, args, output: seen.update(x=args[0], y=output))
    with torch.no_grad():
        output = model(**encode(family, folder, item), output_hidden_states=True)
    return output.hidden_states, seen


def true_tokens(family, item, n_tokens):
    """Return the numbers of the tokens that are of the sample."""
    if family == "whisper":  # 10 ms a mel frame, two of them a token; the last may be cut
        return range(int(np.ceil(len(item[0]) / 320)))
    if family == "audio-spectrogram-transformer":
        # Two special tokens; then 3 rows of patches over 5 columns, 4 mel frames apart, of 8 each.
        n_frames = 1 + (len(item[0]) - 400) // 160
        columns = [c for c in range(5) if 4 * c + 8 <= n_frames] or [0]
        return [2 + 5 * row + column for row in range(3) for column in columns]
    if family in TEXT or family in SPEECH:
        return range(n_tokens)
    return range(SPECIAL_TOKENS.get(family, 1), n_tokens)


def pool_by_hand(family, state, item, pooling):
    state = state[0].double().numpy()
    if family in MAPS:
        return state.mean((1, 2))
    tokens = list(true_tokens(family, item, len(state)))
    if pooling == "cls":
        return state[0]
    if pooling == "last":
        return state[tokens[-1]]
    return state[tokens[1:] if pooling == "mean_without_first" else tokens].mean(0)


def poolings_of(family):
    """Return the poolings that mean something; the first is what "auto" stands for."""
    if family in TEXT:
        if family in CAUSAL:
            return ["mean_without_first", "mean", "last"]
        return ["mean", "last", "mean_without_first", *(["cls"] if family != "t5" else [])]
    if family in AUDIO:
        return ["mean", *(["cls"] if family == "audio-spectrogram-transformer" else [])]
    return ["mean"] if family in MAPS or family == "siglip_vision_model" else ["mean", "cls"]


def test_every_family_of_the_table_is_tested():
    assert {config.model_type for config in CONFIGS.values()} == set(FAMILIES)


@pytest.mark.parametrize("family", CONFIGS)
def test_features_are_those_of_each_sample_alone(checkpoints, family):
    folder, inputs = checkpoints(family), inputs_of(family)
    states = [run_alone(family, folder, item)[0] for item in inputs]
    names = ["embedding", *(f"layer{i}" for i in range(1, len(states[0])))]
    assert len(names) == 3
    for pooling in poolings_of(family):
        features = extract_layers(folder, inputs, pooling=pooling, batch_size=3, progress=False)
        assert features.names == names
        for layer, X in enumerate(features):
            alone = [
                pool_by_hand(family, state[layer], item, pooling)
                for state, item in zip(states, inputs, strict=True)
            ]
            np.testing.assert_allclose(X, alone, atol=2e-5, err_msg=f"{pooling} {names[layer]}")
    automatic = extract_layers(folder, inputs, batch_size=2, progress=False)
    assert automatic.pooling == poolings_of(family)[0]
    for batch_size in (1, 5):
        other = extract_layers(folder, inputs, batch_size=batch_size, progress=False)
        for X, Z in zip(automatic, other, strict=True):
            np.testing.assert_allclose(X, Z, atol=1e-5)
    assert np.ptp(automatic[-1], axis=0).max() > 0.01  # the samples differ


@pytest.mark.parametrize("family", CONFIGS)
def test_the_final_norm_is_where_the_table_says(checkpoints, family):
    folder, inputs = checkpoints(family), inputs_of(family)[:2]
    found = {
        final_norm: extract_layers(folder, inputs, final_norm=final_norm, progress=False)
        for final_norm in ("as_is", "apply", "skip")
    }
    if family not in NORMS:
        for features in found.values():
            np.testing.assert_array_equal(features[-1], found["as_is"][-1])
        return
    place, _ = NORMS[family]
    pooling = poolings_of(family)[0]
    for row, item in enumerate(inputs):
        states, seen = run_alone(family, folder, item)
        expected = {"skip": seen["x"], "apply": seen["y"]}
        if place == "pooled":
            pooled = pool_by_hand(family, states[-1], item, pooling)
            norm = hf.AutoModel.from_pretrained(folder).get_submodule(NORMS[family][1])
            with torch.no_grad():
                normed = norm(torch.tensor(pooled).float()).numpy()
            np.testing.assert_allclose(found["apply"][-1][row], normed, atol=2e-5)
            np.testing.assert_allclose(found["skip"][-1][row], pooled, atol=2e-5)
            np.testing.assert_array_equal(found["skip"][-1], found["as_is"][-1])
            continue
        as_is = expected["apply" if place == "after" else "skip"]
        torch.testing.assert_close(states[-1], as_is)
        for final_norm, state in expected.items():
            by_hand = pool_by_hand(family, state, item, pooling)
            np.testing.assert_allclose(found[final_norm][-1][row], by_hand, atol=2e-5)
    assert np.abs(found["apply"][-1] - found["skip"][-1]).max() > 0.01
    for features in found.values():  # all other layers stay
        np.testing.assert_array_equal(features[1], found["as_is"][1])


def test_padding_changes_clips_behind_a_group_norm(checkpoints):
    """The trap: base models norm over time, so that zeros at the end count as sound."""
    for family, harmless in (("wav2vec2", False), ("hubert", False), ("hubert large", True)):
        folder = checkpoints(family)
        extractor = hf.AutoFeatureExtractor.from_pretrained(folder)
        model = hf.AutoModel.from_pretrained(folder).eval()
        short, long = CLIPS[1][0], CLIPS[2][0]
        batch = extractor([short, long], sampling_rate=RATE, padding=True, return_tensors="pt")
        with torch.no_grad():
            padded = model(**batch, output_hidden_states=True).hidden_states[-1][0]
        alone = run_alone(family, folder, CLIPS[1])[0][-1][0]
        change = (padded[: len(alone)] - alone).abs().max()
        assert change < 1e-5 if harmless else change > 0.01


def test_seconds_cut_clips(checkpoints):
    for family in ("wav2vec2", "wavlm large", "audio-spectrogram-transformer"):
        cut = [(wave[:1600], rate) for wave, rate in CLIPS]
        expected = extract_layers(checkpoints(family), cut, progress=False)
        features = extract_layers(checkpoints(family), CLIPS, max_length=0.1, progress=False)
        for X, Z in zip(features, expected, strict=True):
            np.testing.assert_allclose(X, Z, atol=1e-5)


def test_whisper_hears_no_more_than_the_seconds_asked_for(checkpoints):
    folder = checkpoints("whisper")
    extractor = hf.AutoFeatureExtractor.from_pretrained(folder)
    whole = hf.AutoModel.from_pretrained(folder).eval()
    model, heard = whole.encoder, []
    model.layers[0].register_forward_hook(lambda _, args, output: heard.append(output.shape[1]))
    positions, config = model.embed_positions, model.config.to_dict()
    settings = {"processor": extractor, "progress": False}
    features = extract_layers(whole, CLIPS, max_length=0.11, batch_size=2, **settings)
    assert set(heard) == {6}  # of 1,760 samples, 320 each
    assert model.embed_positions is positions
    assert model.config.to_dict() == config
    for row, (wave, rate) in enumerate(CLIPS):
        mel = extractor(
            [wave[:1760]], sampling_rate=rate, max_length=1920, return_tensors="pt"
        ).input_features
        with torch.no_grad():
            state = torch.nn.functional.gelu(model.conv1(mel))
            state = torch.nn.functional.gelu(model.conv2(state)).transpose(1, 2)
            state = state + positions.weight[:6]
            states = [state]
            for block in model.layers:
                states.append(block(states[-1], None))
        states[-1] = model.layer_norm(states[-1])
        n_true = int(np.ceil(min(len(wave), 1760) / 320))
        for X, state in zip(features, states, strict=True):
            np.testing.assert_allclose(X[row], state[0, :n_true].mean(0).detach(), atol=2e-5)
    longer = extract_layers(whole, CLIPS, max_length=99, **settings)  # than there are positions
    for X, Z in zip(longer, extract_layers(whole, CLIPS, **settings), strict=True):
        np.testing.assert_array_equal(X, Z)


@pytest.mark.parametrize("family", ["wav2vec2", "hubert large", "audio-spectrogram-transformer"])
def test_a_clip_too_short_for_a_frame_is_named(checkpoints, family):
    clips = [CLIPS[0], (np.ones(11, np.float32), RATE)]
    with pytest.raises(ValueError, match=r"inputs\[1\] of 11 samples is too short"):
        extract_layers(checkpoints(family), clips, progress=False)


def test_a_masked_autoencoder_sees_every_patch_in_order(checkpoints):
    model = hf.AutoModel.from_pretrained(checkpoints("vit_mae"))
    orders = []
    model.register_forward_hook(lambda _, args, output: orders.append(output.ids_restore))
    state = torch.get_rng_state()
    processor = make_processor("vit_mae", model.config)
    extract_layers(model, IMAGES, processor=processor, progress=False)
    assert orders[0].tolist() == [list(range(16))] * len(IMAGES)
    assert model.config.mask_ratio == 0.75
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("family", ["roberta", "camembert", "xlm-roberta", "mpnet"])
def test_positions_behind_that_of_padding_limit_the_text(checkpoints, family):
    folder, long = checkpoints(family), " ".join(WORDS[4:] * 4)
    model = hf.AutoModel.from_pretrained(folder).eval()
    ids = make_tokenizer()(long, truncation=True, max_length=18)["input_ids"]  # 20 - 1 - 1
    with torch.no_grad():
        states = model(torch.tensor([ids]), output_hidden_states=True).hidden_states
    features = extract_layers(folder, [long, "the cat"], progress=False)
    for X, state in zip(features, states, strict=True):
        np.testing.assert_allclose(X[0], state[0].mean(0), atol=2e-5)


@pytest.fixture(scope="module")
def two_towers(tmp_path_factory):
    """Return the folders of a CLIP and a SigLIP with both towers and both processors."""
    folders = {}
    for name, config_class in (("clip", hf.CLIPConfig), ("siglip", hf.SiglipConfig)):
        config = config_class(
            text_config={**CLIP_TEXT, "projection_size": 16}, vision_config=PATCHES, **CLIP
        )
        folders[name] = tmp_path_factory.mktemp(name)
        make_model(config).save_pretrained(folders[name])
        make_tokenizer().save_pretrained(folders[name])
        make_processor("vit", config).save_pretrained(folders[name])
    return folders


def test_the_inputs_choose_the_tower(two_towers):
    whole = hf.AutoModel.from_pretrained(two_towers["clip"])
    for inputs, tower, pooling in (
        (TEXTS, whole.text_model, "mean_without_first"),
        (IMAGES, whole.vision_model, "mean"),
    ):
        features = extract_layers(two_towers["clip"], inputs, progress=False)
        assert features.pooling == pooling
        processor = make_tokenizer() if inputs is TEXTS else make_processor("vit", None)
        alone = extract_layers(tower, inputs, processor=processor, progress=False)
        for X, Z in zip(features, alone, strict=True):
            np.testing.assert_allclose(X, Z, atol=1e-6)
    assert len(extract_layers(two_towers["siglip"], IMAGES, progress=False)) == 3
    with pytest.raises(ValueError, match="SiglipTextModel is in no family"):
        extract_layers(two_towers["siglip"], TEXTS, progress=False)


@pytest.mark.parametrize(
    ("family", "headed"),
    [
        ("bert", hf.BertForMaskedLM),
        ("llama", hf.LlamaForCausalLM),
        ("t5", hf.T5EncoderModel),
        ("t5", hf.T5ForConditionalGeneration),
        ("vit_mae", hf.ViTMAEForPreTraining),
        ("whisper", hf.WhisperForConditionalGeneration),
        ("clip_vision_model", hf.CLIPVisionModelWithProjection),
        ("wav2vec2", hf.Wav2Vec2ForCTC),
    ],
)
def test_a_head_changes_nothing(checkpoints, family, headed):
    folder, inputs = checkpoints(family), inputs_of(family)
    model = headed.from_pretrained(folder)
    processor = make_processor(family, model.config)
    features = extract_layers(model, inputs, processor=processor, progress=False)
    for X, Z in zip(features, extract_layers(folder, inputs, progress=False), strict=True):
        np.testing.assert_allclose(X, Z, atol=1e-6)


def test_an_encoder_saved_without_its_decoder_is_read_as_one(checkpoints, tmp_path):
    whole = hf.T5Model.from_pretrained(checkpoints("t5"))
    encoder = hf.T5EncoderModel(whole.config)
    encoder.load_state_dict(whole.state_dict(), strict=False)
    encoder.save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    texts = inputs_of("t5")
    expected = extract_layers(checkpoints("t5"), texts, progress=False)
    for X, Z in zip(extract_layers(tmp_path, texts, progress=False), expected, strict=True):
        np.testing.assert_array_equal(X, Z)


@pytest.mark.parametrize(
    ("family", "pooling", "why"),
    [
        ("llama", "cls", "the first token of a decoder sees no other one"),
        ("clip_text_model", "cls", "the first token of a decoder"),
        ("t5", "cls", "T5 has no cls token"),
        ("wav2vec2", "cls", "no frame of a clip stands for all"),
        ("whisper", "last", "no frame of a clip stands for all"),
        ("vit", "last", "patches have no order"),
        ("dinov2", "mean_without_first", "special tokens are left out of the mean"),
        ("siglip_vision_model", "cls", "SigLIP has no cls token"),
        ("resnet", "cls", "feature maps have no tokens"),
    ],
)
def test_a_pooling_that_means_nothing_is_refused(checkpoints, family, pooling, why):
    message = rf"pooling='{pooling}' means nothing here: .*{why}.*Choose from \('mean"
    with pytest.raises(ValueError, match=message):
        extract_layers(checkpoints(family), inputs_of(family), pooling=pooling)


@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_a_pooling_of_no_name_is_refused(kind):
    family = FAMILIES[kind]
    with pytest.raises(ValueError, match="pooling='x' means nothing here: there is no pooling of"):
        resolve_pooling(family, "x")


@pytest.mark.parametrize(
    ("family", "inputs", "message"),
    [
        ("vit", TEXTS, "ViTModel reads image inputs; got a sequence of text inputs"),
        ("vit", CLIPS, "ViTModel reads image inputs; got a sequence of audio inputs"),
        ("hubert", IMAGES, "HubertModel reads audio inputs; got a sequence of image inputs"),
        ("bert", IMAGES, "BertModel wants a sequence of texts, .*; got Image in it"),
    ],
)
def test_inputs_of_another_kind_are_refused(checkpoints, family, inputs, message):
    with pytest.raises(TypeError, match=message):
        extract_layers(checkpoints(family), inputs)


def test_a_processor_of_another_kind_is_refused(checkpoints):
    vit = hf.AutoModel.from_pretrained(checkpoints("vit"))
    with pytest.raises(TypeError, match="ViTModel needs its image processor as processor; got Tok"):
        extract_layers(vit, IMAGES, processor=make_tokenizer())
    with pytest.raises(TypeError, match="processor must be callable; got str"):
        extract_layers(vit, IMAGES, processor="vit")


@pytest.mark.parametrize(
    ("family", "settings", "message"),
    [
        ("vit", {"max_length": 8}, "max_length cuts texts and clips; leave it out"),
        ("hubert", {"max_length": 0}, r"max_length must be seconds > 0 for clips; got 0"),
        ("hubert", {"max_length": "1 s"}, r"max_length must be seconds > 0 for clips; got '1 s'"),
        ("bert", {"max_length": 0.5}, "max_length must be a whole number >= 1; got 0.5"),
    ],
)
def test_lengths_are_tokens_or_seconds(checkpoints, family, settings, message):
    with pytest.raises(ValueError, match=message):
        extract_layers(checkpoints(family), inputs_of(family), **settings)


def test_a_processor_of_several_gives_its_part(checkpoints):
    folder = checkpoints("clip_vision_model")
    both = hf.CLIPProcessor(make_processor("vit", None), make_tokenizer())
    model = hf.AutoModel.from_pretrained(folder)
    features = extract_layers(model, IMAGES, processor=both, progress=False)
    np.testing.assert_allclose(
        features[-1], extract_layers(folder, IMAGES, progress=False)[-1], atol=1e-6
    )


def test_an_unknown_text_family_is_pooled_by_its_mask(tmp_path):
    make_model(hf.AlbertConfig(**BLOCKS, **TOKENS, embedding_size=8)).save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    features = extract_layers(tmp_path, TEXTS, batch_size=2, progress=False)
    assert features.pooling == "mean"
    for row, text in enumerate(TEXTS):
        for X, state in zip(features, run_alone("bert", tmp_path, text)[0], strict=True):
            np.testing.assert_allclose(X[row], state[0].mean(0), atol=2e-5)
    with pytest.raises(ValueError, match="nothing tells whether AlbertModel has a final norm"):
        extract_layers(tmp_path, TEXTS, final_norm="apply")
    with pytest.raises(ValueError, match="nothing tells whether this model has a cls token"):
        extract_layers(tmp_path, TEXTS, pooling="cls")


def test_an_unknown_image_family_wants_modules(tmp_path):
    model = make_model(
        hf.PoolFormerConfig(depths=[1, 1], hidden_sizes=[8, 16], num_encoder_blocks=2)
    )
    processor = make_processor("vit", None)
    message = r"PoolFormerModel is in no family .* modules=\[\.\.\.\]\. It has encoder, "
    with pytest.raises(ValueError, match=message):
        extract_layers(model, IMAGES, processor=processor)
    features = extract_layers(
        model, IMAGES, processor=processor, modules=["encoder.block.1.0"], progress=False
    )
    assert [X.shape for X in features] == [(5, 16)]


def test_a_family_in_half_precision_stays_near_the_full(checkpoints):
    for family in ("llama", "vit", "vit_mae", "whisper", "hubert large", "convnext"):
        folder, inputs = checkpoints(family), inputs_of(family)
        full = extract_layers(folder, inputs, progress=False)
        for final_norm in ("as_is", "apply"):
            half = extract_layers(
                folder, inputs, dtype="bfloat16", final_norm=final_norm, progress=False
            )
            assert all(X.dtype == np.float32 for X in half)
        half = extract_layers(folder, inputs, dtype=torch.bfloat16, progress=False)
        for X, Z in zip(half, full, strict=True):
            assert 0 < np.abs(X - Z).max() < 0.1 * np.abs(Z).max()


def test_pickled_weights_give_tensors_and_no_code(checkpoints, tmp_path):
    folder = checkpoints("bert")
    model = hf.AutoModel.from_pretrained(folder)
    make_tokenizer().save_pretrained(tmp_path)
    model.config.save_pretrained(tmp_path)
    weights = tmp_path / "pytorch_model.bin"
    torch.save(model.state_dict(), weights)
    features = extract_layers(tmp_path, TEXTS, progress=False)
    np.testing.assert_array_equal(features[-1], extract_layers(folder, TEXTS, progress=False)[-1])

    class Code:
        def __reduce__(self):
            return (open, (str(tmp_path / "written"), "w"))

    torch.save({**model.state_dict(), "x": Code()}, weights)
    with pytest.raises(Exception, match=r"(?i)weights.only"):
        extract_layers(tmp_path, TEXTS, progress=False)
    assert not (tmp_path / "written").exists()


class Lazy(Sequence):
    """Pictures that are made when they are asked for, as a data set decodes them."""

    def __init__(self, events):
        self.events = events

    def __len__(self):
        return 7

    def __getitem__(self, index):
        if not 0 <= index < 7:
            raise IndexError
        self.events.append("read")
        return IMAGES[index % 5]


def test_no_more_is_read_than_a_batch_needs(checkpoints):
    events = []
    model = hf.AutoModel.from_pretrained(checkpoints("vit"))
    model.register_forward_hook(lambda *_: events.append("pass"))
    stream = stream_layers(
        model, Lazy(events), processor=make_processor("vit", None), batch_size=2, shard_size=4
    )
    events.clear()  # of the check of kinds
    shapes = [features[0].shape for _, features in stream]
    assert shapes == [(4, 16), (3, 16)]
    assert " ".join(events) == " ".join(
        ["read read pass"] * 3 + ["read pass"]  # 4 and 3 pictures, at most 2 at a time
    )


def test_an_input_that_cannot_be_read_is_named(checkpoints, tmp_path):
    for family, damaged in (("vit", tmp_path / "a.png"), ("hubert", tmp_path / "a.wav")):
        damaged.write_bytes(b"neither")
        inputs = [inputs_of(family)[0], damaged]
        with pytest.raises(ValueError, match="cannot read") as caught:
            extract_layers(checkpoints(family), inputs, progress=False)
        assert caught.value.__notes__ == ["This is inputs[1]."]


def test_files_in_a_cache_are_known_by_their_content(checkpoints, tmp_path):
    paths = [tmp_path / f"{n}.png" for n in range(2)]
    for path, image in zip(paths, IMAGES, strict=False):
        image.save(path)
    settings = {"cache": tmp_path / "features", "progress": False}
    features = extract_layers(checkpoints("vit"), list(map(str, paths)), **settings)
    expected = extract_layers(checkpoints("vit"), IMAGES[:2], progress=False)
    np.testing.assert_allclose(features[-1], expected[-1], atol=1e-6)
    IMAGES[2].save(paths[1])
    with pytest.raises(ValueError, match=r"inputs: had .*, wanted "):
        extract_layers(checkpoints("vit"), list(map(str, paths)), **settings)

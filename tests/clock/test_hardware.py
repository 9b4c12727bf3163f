"""Tokens that fit, against counts from the published configurations."""

import json

import pytest

from optsched.clock import hardware
from optsched.clock.hardware import GPU_BYTES, MODELS, PAPER_MEMORY, ModelFacts, memory_tokens
from optsched.errors import InstanceError

#: Hidden size, feed-forward size, vocabulary.
SHAPES = {
    "llama-2-7b": (4096, 11008, 32000),
    "llama-2-13b": (5120, 13824, 32000),
    "llama-2-70b": (8192, 28672, 32000),
    "llama-3-8b": (4096, 14336, 128256),
    "llama-3-70b": (8192, 28672, 128256),
    "llama-3.1-8b": (4096, 14336, 128256),
    "llama-3.1-70b": (8192, 28672, 128256),
}


@pytest.mark.parametrize("name", SHAPES)
def test_parameters_add_up_from_the_shape_of_the_layers(name):
    facts, (hidden, inner, vocabulary) = MODELS[name], SHAPES[name]
    keys = hidden * facts.kv_heads * facts.head_size
    layer = 2 * hidden**2 + 2 * keys + 3 * hidden * inner + 2 * hidden
    assert facts.parameters == facts.layers * layer + 2 * vocabulary * hidden + hidden


def test_bytes_per_token_are_those_of_the_profiles(shared_data):
    models = json.loads((shared_data / "batch_time.json").read_text())["models"]
    for ours, theirs in (
        ("llama-2-7b", "llama-2-7b_1xA100-80GB_TP1"),
        ("llama-2-70b", "llama-2-70b_2xA100-80GB_TP2"),
    ):
        assert MODELS[ours].kv_bytes_per_token == models[theirs]["kv_bytes_per_token"]


def test_the_papers_limit_follows_from_no_reading_of_their_formula():
    """160 GB - 140 GB over 2 * 80 * 8192 * 2 bytes, with GB of 10^9 or of 2^30 bytes."""
    decimal = memory_tokens(ModelFacts("printed", 70 * 10**9, 80, 64, 128), 80 * 10**9, gpus=2)
    binary = memory_tokens(ModelFacts("printed", 70 * 2**30, 80, 64, 128), 80 * 2**30, gpus=2)
    shared = memory_tokens(ModelFacts("shared", 70 * 10**9, 80, 8, 128), 80 * 10**9, gpus=2)
    assert (decimal, binary, shared) == (7_629, 8_192, 61_035)
    assert PAPER_MEMORY not in (decimal, binary, shared)


def test_what_does_not_fit_is_refused_in_one_sentence():
    with pytest.raises(InstanceError, match="llama-2-70b does not fit: its weights take 137,953,"):
        memory_tokens(MODELS["llama-2-70b"], GPU_BYTES["a100-80gb"])
    with pytest.raises(InstanceError, match="0 GPUs with 100 bytes"):
        memory_tokens(MODELS["llama-2-7b"], 100, gpus=0)
    with pytest.raises(InstanceError, match="model odd: layers is 0, but must be above 0"):
        ModelFacts("odd", 1, 0, 1, 1)


def test_names_stand_for_facts():
    by_name = memory_tokens("llama-2-70b", "a100-80gb", gpus=2)
    assert (
        by_name == memory_tokens(MODELS["llama-2-70b"], GPU_BYTES["a100-80gb"], gpus=2) == 103_287
    )
    with pytest.raises(InstanceError, match="unknown model 'llama-2-71b': did you mean 'llama-2-7"):
        memory_tokens("llama-2-71b", "a100-80gb")
    with pytest.raises(InstanceError, match="unknown GPU 'a100'"):
        memory_tokens("llama-2-7b", "a100")


#: Configurations as they are published with the weights, without what does not matter here.
CONFIGS = {
    "llama-3.1-8b": {
        **{"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32},
        **{"num_hidden_layers": 32, "num_key_value_heads": 8, "vocab_size": 128256},
        "torch_dtype": "bfloat16",
    },
    "qwen3-30b-a3b": {
        **{"hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768},
        **{"num_attention_heads": 32, "num_hidden_layers": 48, "num_key_value_heads": 4},
        **{"vocab_size": 151936, "head_dim": 128, "num_experts": 128},
    },
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_says_what_is_known_of_the_model(tmp_path, name):
    """But for norms of queries and keys, which have no parameters worth counting."""
    path = tmp_path / name / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(CONFIGS[name]))
    read, known = ModelFacts.from_config(path), MODELS[name]
    assert read.name == name
    assert read.parameters == pytest.approx(known.parameters, rel=1e-5)
    assert read.kv_bytes_per_token == known.kv_bytes_per_token
    assert memory_tokens(str(path), "80GB", share=0.9) == memory_tokens(read, 80 * 10**9, share=0.9)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"kv_lora_rank": 512}, "has kv_lora_rank, for which the memory is not known; pass --mem"),
        ({"quantization_config": {"quant_method": "fp8"}}, "has quantization_config, for which"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "has sliding_attention, for"),
        ({"attention_chunk_size": 8192}, "has attention_chunk_size, for which the memory is not"),
        ({"sliding_window": 4096}, "has sliding_window, for which the memory is not known"),
    ],
)
def test_a_model_of_another_kind_is_refused(tmp_path, more, words):
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS["llama-3.1-8b"] | more))
    with pytest.raises(InstanceError, match=words):
        ModelFacts.from_config(tmp_path / "config.json")
    beside = {"text_config": CONFIGS["llama-3.1-8b"] | dict.fromkeys(more), **more}
    (tmp_path / "config.json").write_text(json.dumps(beside))
    with pytest.raises(InstanceError, match=words):
        ModelFacts.from_config(tmp_path / "config.json")
    plain = {"layer_types": ["full_attention"] * 32, "quantization_config": None}
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS["llama-3.1-8b"] | plain))
    assert ModelFacts.from_config(tmp_path / "config.json").layers == 32


def test_every_outer_key_of_a_nested_config_counts(tmp_path):
    inner = CONFIGS["llama-3.1-8b"] | {"torch_dtype": None, "tie_word_embeddings": None}
    flat = inner | {"torch_dtype": "float32", "tie_word_embeddings": True}
    outer = {name: flat[name] for name in ("torch_dtype", "tie_word_embeddings")}
    found = []
    for at, content in enumerate(
        (flat, outer | {"text_config": inner}, outer | {"thinker_config": {"text_config": inner}})
    ):
        path = tmp_path / f"{at}.json"
        path.write_text(json.dumps(content))
        found.append(ModelFacts.from_config(path))
    assert found[0] == found[1] == found[2]
    assert found[0].bytes_per_number == 4


def test_a_config_without_a_shape_is_refused_in_one_sentence(tmp_path):
    (tmp_path / "config.json").write_text('{"hidden_size": 4096, "num_hidden_layers": "many"}')
    with pytest.raises(InstanceError, match="num_hidden_layers is 'many', but must be a whole num"):
        ModelFacts.from_config(tmp_path / "config.json")


@pytest.mark.parametrize(
    ("gpu", "limits"),
    [
        ("rtx4090-24gb", (256, 2048)),
        ("a100-80gb", (256, 2048)),
        ("h100-80gb", (1024, 8192)),
        ("b200-180gb", (1024, 16_384)),
        ("24GiB", (256, 2048)),
        ("96GB", (1024, 8192)),
    ],
)
def test_vllm_serves_more_at_once_on_large_gpus(gpu, limits):
    assert tuple(hardware.vllm_defaults(gpu).values()) == limits

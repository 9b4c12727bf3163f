"""`--serve`: the command line of a server, what it logged, and its meta.json."""

import json

import pytest

from optsched.errors import OptschedError
from optsched_serving.serve import read_served

MODEL = "meta-llama/Llama-3.1-8B"
FAMILY = "family:chat,n=60,rate=6,seed=1"
UNIT = f"""[Service]
Environment=HF_HOME=/models
ExecStart=/opt/venv/bin/vllm serve {MODEL} \\
    --max-num-seqs=64 --max_num_batched_tokens 4k \\
    --no-async-scheduling -tp 2
"""
LOG = f"""INFO [utils.py:253] non-default args: {{'model_tag': '{MODEL}', 'max_num_seqs': 64}}
INFO [kv_cache_utils.py:1229] GPU KV cache size: 41,408 tokens
"""


MANY = {"max_num_seqs": 8}
API = "vllm.entrypoints.openai.api_server"
DOCKER = f"docker run --gpus all -p 80:80 vllm/vllm-openai:v0.33.0 --model {MODEL}"
TOLD = [
    (f"vllm serve {MODEL}", {}),
    (f"vllm serve {MODEL} --max-num-seqs 8 --port 80", MANY),
    (f"CUDA_VISIBLE_DEVICES=0 vllm serve {MODEL} --max-num-seqs 8 > log 2>&1 &", MANY),
    (f"vllm serve {MODEL} --max-num-seqs 8 | tee --append log", MANY),
    (f"python -m {API} --model {MODEL} --block-size 32", {"block_size": 32}),
    (f"{DOCKER} --watermark .01", {"watermark": 0.01}),
    (f"vllm serve --enable-prefix-caching {MODEL}", {"enable_prefix_caching": True}),
    (f"vllm serve {MODEL} --no-enable-chunked-prefill", {"enable_chunked_prefill": False}),
    (f"vllm serve {MODEL} --max-num-batched-tokens 1K", {"max_num_batched_tokens": 1024}),
    (f"vllm serve {MODEL} --max-model-len auto", {}),
    (f"vllm serve {MODEL} --scheduling-policy priority", {"scheduling_policy": "priority"}),
    (UNIT, {"max_num_seqs": 64, "max_num_batched_tokens": 4000, "async_scheduling": False}),
    (f"vllm serve old --max-num-seqs 1\nvllm serve {MODEL} --max-num-seqs 8", MANY),
    (f": 1764230000:0;vllm serve {MODEL} --max-num-seqs 8", MANY),
    (f"ssh gpu 'nohup /opt/bin/vllm  serve {MODEL} --max-num-seqs 8'", MANY),
    (f"python -m vllm.entrypoints.cli.main serve {MODEL} --max-num-seqs 8", MANY),
    (LOG, {"max_num_seqs": 64}),
]


@pytest.mark.parametrize(("line", "settings"), TOLD)
def test_lines_are_read_as_a_shell_and_vllm_read_them(line, settings, tmp_path):
    (tmp_path / "told.txt").write_text(line)
    for text in (line, str(tmp_path / "told.txt")):
        served = read_served(text)
        assert served.settings == settings
        assert served.llm == "llama-3.1-8b"
        assert served.gpus == (2 if "-tp 2" in line else 1)
        assert served.memory == (41_408 if line == LOG else None)
        assert served.notes == ()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--speculative-config '{}'", None),
        ('--speculative-config \'{"method": "ngram"}\'', "--speculative-config"),
        ("-pp 2", "--pipeline-parallel-size 2"),
        ("--data-parallel-size 4", "--workers"),
        ("--enable-lora", "--enable-lora"),
        ("--cpu-offload-gb 1", "--cpu-offload-gb 1"),
        ("--kv-cache-dtype fp8 --kv-cache-memory-bytes 8G", "--num-gpu-blocks-override N"),
        (f'--max-num-seqs 8 --compilation-config \'{{"x": "{"long" * 99}"}}\'', None),
        ("-pp 1 --data-parallel-size 1", None),
        ("--kv-cache-dtype fp8", "--num-gpu-blocks-override N"),
        ("--quantization=fp8 --num-gpu-blocks-override 100", None),
        ("--scheduler-cls optsched.vllm.PlannedScheduler", "such as vllm:area"),
        ("--max-num-seq 3", "did you mean --max-num-seqs?"),
        ("--max-num-seqs many", "must be a number"),
        ("--config serve.yaml", "put the arguments of that file on the line"),
        ("--chat-template 'left open", "No closing quotation"),
    ],
)
def test_what_the_model_lacks_is_refused_by_name(arguments, said):
    line = f"vllm serve {MODEL} {arguments}"
    if said is None:
        read_served(line)
        return
    with pytest.raises(OptschedError) as refused:
        read_served(line)
    assert said in str(refused.value)


def test_what_is_not_looked_at_is_said():
    served = read_served("vllm serve someone/unheard-of --attention-backend FLASHINFER --host ::")
    first, second = served.notes
    assert first.endswith("were not looked at: --attention-backend")
    assert "the memory of someone/unheard-of is not known; pass --memory M" in second
    with pytest.raises(OptschedError, match="no 'vllm serve MODEL"):
        read_served("vllm bench serve --model x")


@pytest.mark.parametrize(
    "command",
    [
        "simulate --policy vllm",
        "capacity --policies vllm --slo latency:p90<=9s",
        "compare --policies vllm,fcfs",
        "route --policies vllm --workers 2 --routers jsq",
    ],
)
def test_commands_run_as_the_server_was_told(optsched_json, command):
    name, *words = command.split()
    words = (name, FAMILY, *words, "--gpu", "rtx4090-24gb")

    def means(*more):
        found = optsched_json(*words, *more)
        inner = ("policies", "plans", "routers")
        (rows,) = [found[each] for each in inner if each in found] or [[found]]
        return [row.get("mean_latency", row.get("least_limit")) for row in rows]

    line = f"vllm serve {MODEL} --max-num-seqs 4 --max-num-batched-tokens 512"
    typed = ("--llm", "llama-3.1-8b")
    served, plain = means("--serve", line), means(*typed)
    assert served != plain
    assert served == means("--serve", line, *typed)
    if name in ("simulate", "capacity"):
        assert served == means(*typed, "--max-num-seqs", 4, "--max-num-batched-tokens", 512)


def test_a_run_that_was_measured_says_how_it_was_served(
    optsched_command, optsched_json, shared_data
):
    folder = shared_data / "gpus/runs/llama-3.1-8b-rtx4090"
    log, name = folder / "requests.jsonl.gz", "llama-3.1-8b-rtx4090"
    typed = optsched_json("clock", "check", name, log, "--num-gpu-blocks", 2588)
    served = optsched_json("clock", "check", name, log, "--serve", folder / "meta.json")
    again = served.pop("next").replace(f"--serve {folder / 'meta.json'}", "--num-gpu-blocks 2588")
    assert (served | {"next": again}) == typed
    assert served["verdict"] == "holds"
    words = ("simulate", FAMILY, "--policy", "vllm", "--serve", folder / "meta.json")
    code, out, err = optsched_command(*words)
    assert code == 0, err
    assert "on llama-3.1-8b-rtx4090" in out  # the clock of the GPU that is named there
    assert "of 41,392 tokens" in out
    assert "the server was vLLM 0.19.0" in err


def test_limits_that_are_guessed_are_said(optsched_command):
    line = f"vllm serve {MODEL} --num-gpu-blocks-override 900"
    words = ("simulate", FAMILY, "--clock", "llama-3.1-8b-rtx4090", "--serve", line)
    _, out, err = optsched_command(*words, "--policy", "vllm")
    assert "of 14,384 tokens" in out
    assert "as on one below 70 GiB they are 256 and 2,048" in err
    _, _, err = optsched_command(*words, "--policy", "fcfs")
    assert "--serve" in err
    assert "only for the policy vllm, but for the memory that it says" in err


def test_a_gpu_beside_the_memory_that_a_server_says_sets_its_limits(optsched_json):
    line = f"vllm serve {MODEL} --num-gpu-blocks-override 9000"
    words = ("simulate", "family:chat,n=400,rate=400,seed=1", "--policy", "vllm", "--serve", line)
    words = (*words, "--clock", "llama-3.1-8b-rtx4090")
    plain = optsched_json(*words)
    on_h200 = optsched_json(*words, "--gpu", "h200-141gb")
    typed = optsched_json(*words, "--max-num-seqs", 1024, "--max-num-batched-tokens", 8192)
    assert on_h200 == typed != plain


def test_arguments_as_json(tmp_path):
    file = tmp_path / "arguments.json"
    file.write_text(
        json.dumps({"model": MODEL, "max_num_seqs": 16, "enable_prefix_caching": False})
    )
    assert read_served(str(file)).settings == {"max_num_seqs": 16, "enable_prefix_caching": False}
    file.write_text("{")
    with pytest.raises(OptschedError, match="is no JSON"):
        read_served(str(file))


def test_what_is_advised_is_the_command_of_the_server_unless_it_may_be_chance(optsched_command):
    line = "vllm serve meta-llama/Llama-3.1-70B-Instruct -tp 2 --max-num-seqs 64"

    def advised(rate, *words):
        requests = f"family:chat-and-summaries,n=300,rate={rate}"
        policies = ("--policies", "vllm,vllm:area,load+plan+learned")
        words = ("compare", requests, *policies, "--gpu", "h100-80gb", *words)
        code, out, err = optsched_command(*words)
        assert code == 0, err
        return out

    few = advised(4, "--serve", line)
    assert "which may be chance (" in few
    assert "Stay with vLLM as it is, or compare on more requests." in few
    many = advised(20, "--serve", line)
    assert "which may be chance (" not in many
    assert f"Serve so with {line} --scheduler-cls optsched.vllm.PlannedScheduler" in many
    limits = ("--llm", "llama-3.1-70b", "--gpus", "2")
    plain = advised(20, *limits)
    assert "Serve so with vllm serve MODEL --tensor-parallel-size 2 --scheduler-cls" in plain

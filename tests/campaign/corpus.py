"""Valid files of every kind that optsched reads."""

import tempfile
from pathlib import Path

from trace_samples import AZURE_2024, BURST, BURST_SESSIONS, VIDUR, VIDUR_LENGTHS

import optsched
from optsched import HindsightProgram, Instance, Schedule, write_model
from optsched.bounds.configurations import configuration_bound

INSTANCE = Instance(
    [3, 5, 1, 8],
    [4, 6, 2, 3],
    memory=20,
    arrivals=[0, 0, 2, 7],
    weights=[1, 2.5, 1, 1],
    deadlines=[30, 40, 50, 60],
    labels=["a", "b", "c", "d"],
    name="corpus",
)
PLAIN = Instance([3, 5, 1, 8], [4, 6, 2, 3], memory=20, arrivals=[0, 0, 2, 7])

TRACES = {
    "native": (
        "label,deadline,weight,output_upper,output_lower,arrival,output_tokens,prompt_tokens\n"
        "first,90,1.5,9,2,0,4,3\nsecond,95,2,6,6,1,6,5\nthird,99,1,20,1,5,12,0\n"
    ),
    "seconds": "arrival_s,prompt_tokens,output_tokens\n0,3,4\n0.5,5,6\n1.25,7,8\n",
    "azure-2023": (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
        "2023-11-16 18:15:51.2225670,879,55\n"
    ),
    **{"azure-2024": AZURE_2024, "burst": BURST, "burst-sessions": BURST_SESSIONS},
    **{"vidur": VIDUR, "vidur-lengths": VIDUR_LENGTHS},
    "mooncake": (
        '{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47]}\n'
        '{"timestamp": 30535, "input_length": 6472, "output_length": 26, "hash_ids": [46, 48]}\n'
    ),
}
TYPES = (
    "d0 = 0.0085\nd1 = 2.7e-7\nmemory = 16492\nprefill_makes_token = true\n"
    '[[type]]\nprompt = 10\noutput = 10\nrate = 100\nname = "short"\n'
    "[[type]]\nprompt = 10\noutput = 20\nrate = 50.5\n"
)
SWEEP = (
    'name = "few"\nseeds = 2\nbound = true\n'
    '[[instances]]\nfamily = "uniform"\nn = [4, 6]\n'
    '[[instances]]\nfamily = "chat-and-summaries"\nn = 5\nload = 0.9\n'
    '[[policies]]\nname = ["mc-sf", "area"]\nrule = ["prefix", "skip"]\n'
    '[[policies]]\nname = "a-min"\nintervals = "relative:0.5"\n'
    '[[policies]]\nname = "hindsight"\ntime_limit = 1.0\n'
)


def corpus():
    """Return the text of each file by kind and name."""
    plain = PLAIN
    prices = optsched.bound(plain, "lagrangian").certificate
    sizes = configuration_bound(plain, phases=2, iterations=16).certificate
    schedule = Schedule(plain, [0, 7, 2, 13], policy="by hand")
    return {
        **{("trace", name): text for name, text in TRACES.items()},
        ("trace", "json"): INSTANCE.to_json(),
        ("types", "types"): TYPES,
        ("sweep", "sweep"): SWEEP,
        ("certificate", "prices"): prices.to_json(),
        ("certificate", "sizes"): sizes.to_json(),
        ("schedule", "schedule"): schedule.to_json(),
        **{("model", ending): _model(ending) for ending in ("lp", "mps")},
    }


def _model(ending):
    program = HindsightProgram(Instance([1, 2], [2, 1], memory=5)).to_linear()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"model.{ending}")
        write_model(program, path)
        return path.read_text()

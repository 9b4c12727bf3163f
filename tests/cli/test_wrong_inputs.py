"""Wrong inputs to all commands: exit code 2, one sentence that says where, and nothing lost."""

import gzip
import io
import os
import shlex
import sys
from pathlib import Path

import pytest

from optsched.cli import main

TRACE = "prompt_tokens,output_tokens\n12,5\n20,6\n"
FILES = {
    "t.csv": TRACE,
    "empty.csv": "",
    "header.csv": "prompt_tokens,output_tokens\n",
    "nul.csv": "prompt_tokens,output_tokens\n1\0,2\n",
    "digits.csv": "prompt_tokens,output_tokens\n٣,2\n",
    "huge.csv": "prompt_tokens,output_tokens\n1e400,2\n",
    "nan.csv": "prompt_tokens,output_tokens,arrival\n1,2,nan\n",
    "twice.csv": "prompt_tokens,prompt_tokens,output_tokens\n1,1,1\n",
    "quote.csv": 'prompt_tokens,output_tokens\n"1,2\n3,4\n',
    "toks.csv": "input_toks,output_tokens\n1,2\n",
    "gen.csv": "prompt_tokens,gen_tokens\n1,2\n",
    "latin.csv": b"prompt_tokens,output_tokens,label\n1,2,\xff\n",
    "wide.csv": TRACE.encode("utf-16"),
    "cut.csv.gz": gzip.compress(50 * TRACE.encode())[:-9],
    "plain.csv.gz": TRACE,
    "no.jsonl": '{"timestamp": 0, "input_length": 1, "output_length": 1}\n[]\n',
    "key.jsonl": '{"ts": 0, "input_length": 1, "output_length": 1, "x": 1}\n',
    "brace.json": "{",
    "text.json": '{"prompts": [1, "x"], "outputs": [1, 2], "memory": 9}',
    "key.json": '{"prompts": [1], "outputs": [1], "memory": 9, "wieghts": [1]}',
    "name.json": '{"prompts": [1], "outputs": [1], "memory": 9, "name": [1]}',
    "start.json": '{"starts": [0, "x"]}',
    "few.json": '{"starts": [0]}',
    "place.json": '{"starts": [0, 0], "placement": [0, 7], "workers": [99, 99]}',
    "worker.json": '{"starts": [0, 0], "placement": [0, 0], "workers": ["a"]}',
    "nothing.json": "{}",
    "proof.json": '{"format": "optsched-certificate", "prices": [1]}',
    "clock.json": '{"constant": "x"}',
    "no.toml": "x",
    "rate.toml": "[[type]]\nprompt = 1\noutput = 1\nrate = nan\n",
    "clock.toml": "clock = 5\n[[type]]\nprompt = 1\noutput = 1\nrate = 1\n",
    "memory.toml": "memory = 'x'\n[[type]]\nprompt = 1\noutput = 1\nrate = 1\n",
    "types.toml": "d0 = 0.0085\nd1 = 2.7e-7\n[[type]]\nprompt = 10\noutput = 20\nrate = 5\n",
    "sweep.toml": 'instances = [{trace = "t.csv", memory = 99}]\npolicies = [{name = "area"}]\n',
    "none.toml": 'instances = [{family = "nosuch"}]\npolicies = [{name = "area"}]\n',
}
FAMILY = "family:uniform,n=5"
READ = {
    "empty.csv": "empty.csv is empty",
    "header.csv": "header.csv has no request",
    "nul.csv": "nul.csv, line 2, column prompt_tokens, value '1\\x00'",
    "digits.csv": "digits.csv, line 2, column prompt_tokens, value",
    "huge.csv": "value '1e400': must be a whole number",
    "nan.csv": "column arrival, value 'nan'",
    "twice.csv": "column 'prompt_tokens' is there 2 times",
    "quote.csv": "quote.csv, line 2",
    "toks.csv": "unknown column 'input_toks'; name it prompt_tokens",
    "gen.csv": "unknown column 'gen_tokens'; name it output_tokens",
    "latin.csv": "line 2, column label, value '\\\\xff': must be UTF-8",
    "wide.csv": "wide.csv, line 1: this is not UTF-8",
    "cut.csv.gz": "cut.csv.gz is a damaged or truncated gzip file",
    "plain.csv.gz": "is not packed with gzip; rename it",
    "no.jsonl": "no.jsonl, line 2: the line holds no JSON object",
    "key.jsonl": "key.jsonl, line 1: unknown column 'ts'",
    "brace.json": "brace.json",
    "text.json": "text.json: request 1: prompts is 'x', but must be a number",
    "key.json": "key.json: unknown key 'wieghts'; did you mean 'weights'?",
    "name.json": "name.json: name is [1], but must be a text",
    "folder": "folder is a directory; name a file in it",
    "loop.csv": "loop.csv cannot be read",
    "nosuch.csv": "there is no file nosuch.csv",
    "/dev/null": "/dev/null is empty",
}
LINES = {
    **{f"bound {name} --memory 99": said for name, said in READ.items()},
    "check t.csv start.json --memory 99": "start.json: request 1: starts is 'x'",
    "check t.csv few.json --memory 99": "few.json: the schedule has 1 starts for 2",
    "check t.csv place.json --memory 99": "place.json: request 1 is placed on worker 7",
    "check t.csv worker.json --memory 99": "worker.json: memory is 'a'",
    "check t.csv nothing.json --memory 99": "nothing.json has no key 'starts'",
    "check t.csv proof.json --memory 99": "proof.json: the key",
    "check t.csv nosuch.json --memory 99": "there is no nosuch.json",
    "check t.csv folder --memory 99": "cannot read folder: Is a directory",
    "check t.csv brace.json --memory 99": "brace.json is not valid JSON",
    "compare t.csv --memory 99 --clock clock.json": "clock.json",
    "thresholds no.toml": "no.toml is not valid TOML",
    "thresholds rate.toml": "rate.toml: type 1: rate is nan",
    "throughput clock.toml --max-latency 9": "clock.toml: 5 is not a clock",
    "thresholds memory.toml": "memory.toml: memory is 'x'",
    "thresholds nosuch.toml": "there is no nosuch.toml",
    "thresholds types.toml --thresholds 0": "thresholds are [0]",
    "throughput types.toml --max-latency nan": "--max-latency is nan",
    "sweep none.toml --out out": "there is no family 'nosuch'",
    "sweep nosuch.toml --out out": "nosuch.toml",
    "sweep sweep.toml --out t.csv": "is the same file as t.csv",
    "sweep sweep.toml --out out --html t.csv": "--html t.csv is the same file as t.csv",
    "sweep sweep.toml --out out --json sweep.toml": "is the same file as sweep.toml",
    **{
        f"bound family:{name}": said
        for name, said in {
            "uniform,n=1e400": "n is inf",
            "uniform,n=1_0": "'n=1_0' is not understood",
            "uniform,n=٣": "is not understood",
            "uniform,n=5,": "family:uniform: '' is not understood",
            "unifrom,n=5": "did you mean 'uniform'?",
            "uniform,load=1e-300": "load is 1e-300, for which rate is",
            "uniform,rate=nan": "rate is nan, but must be a number of requests per step from",
            "conversations,turns=0": "turns is 0, but must be at least 1",
            "conversations,n=5,pause=-1": "pause is -1, but must be at least 0",
        }.items()
    },
    "bound t.csv --memory nan": "'--memory': 'nan'",
    "bound t.csv --memory -1": "--memory is -1",
    "bound t.csv --memory 99 --limit 0": "--limit is 0",
    "bound t.csv --memory 99 --seconds-per-step inf": "--seconds-per-step is inf",
    f"bound {FAMILY} --workers ''": "workers are ''",
    f"bound {FAMILY} --workers 1x9999999999": "9,999,999,999 workers",
    f"solve {FAMILY} --threads 0": "--threads is 0",
    f"solve {FAMILY} --time-limit nan": "--time-limit is nan",
    f"rolling {FAMILY} --window -1": "--window is -1",
    f"compare {FAMILY} --policies nosuch:thing": "'nosuch:thing': there is no module 'nosuch'",
    f"compare {FAMILY} --policies area,area": "'area' is given twice",
    f"compare {FAMILY} --policies a-min --intervals common:60,1": "common:60,1",
    f"compare {FAMILY} --clock affine:nan,1": "nan",
    f"select {FAMILY} --method scaled-dp --epsilon 0": "--epsilon is 0",
    f"export {FAMILY} --out x.txt": "x.txt: the file must end in .mps or .lp",
    f"export {FAMILY} --out ''": "cannot write ''",
    f"simulate {FAMILY} --policy area --log x.txt": "x.txt",
    f"simulate {FAMILY} --policy area-chance --history nosuch.csv": "nosuch.csv",
    "cluster t.csv --workers 2 --slots 1,2,3": "slots has 3 entries for 2 workers",
    f"route {FAMILY} --workers 2 --routers jsq,jsq": "'jsq' is given twice",
    "regret family:equal-prompts --horizons 0 --seeds 1 --jobs 1": "horizon is 0",
    "library nosuch": "the library has no 'nosuch'",
    "library uniform-8 --submit start.json": "start.json: request 1: starts is 'x'",
    f"capacity {FAMILY} --slo x": "the objective 'x'",
    # Outputs that cannot be written, or would replace what is read.
    f"bound {FAMILY} --json /dev/full": "cannot write /dev/full: No space left on device",
    f"bound {FAMILY} --json folder": "cannot write folder: it is a folder",
    f"bound {FAMILY} --json t.csv/x": "cannot write t.csv/x",
    f"bound {FAMILY} --json loop.csv": "cannot write loop.csv: Symlink loop",
    f"bound {FAMILY} --json nowhere/x": "create it first",
    "compare t.csv --memory 99 --json t.csv": "--json t.csv is the same file as t.csv",
    "compare t.csv --memory 99 --html ./t.csv": "--html t.csv is the same file as t.csv",
    "compare t.csv --memory 99 --json link.csv": "--json link.csv is the same file as t.csv",
    "compare t.csv --memory 99 --json hard.csv": "--json hard.csv is the same file as t.csv",
    "compare here/t.csv --memory 99 --html t.csv": "is the same file as here/t.csv",
    "compare t.csv --memory 99 --html x --json here/x": "is the same file as --html x",
    "compare t.csv --memory 99 --schedules . --json area.json": "same file as --schedules",
    "compare t.csv --memory 99 --clock clock.json --json clock.json": "same file as clock.json",
    "check t.csv few.json --memory 99 --json few.json": "same file as few.json",
    "simulate t.csv --memory 99 --policy vllm --log a.csv --batches a.csv": "the same file",
    "solve t.csv --memory 99 --certificate t.csv": "--certificate t.csv is the same file",
    "export t.csv --memory 99 --out x.lp --json x.lp": "is the same file as",
    "thresholds types.toml --json types.toml": "is the same file as types.toml",
    "library uniform-8 --csv x --schedule x": "is the same file as --csv x",
}


@pytest.fixture
def _files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, content in FILES.items():
        Path(name).write_bytes(content.encode() if isinstance(content, str) else content)
    Path("folder").mkdir()
    Path("link.csv").symlink_to("t.csv")
    Path("here").symlink_to(".")
    Path("loop.csv").symlink_to("loop.csv")
    os.link("t.csv", "hard.csv")


def everything():
    """Return what there is, with what it holds or leads to."""
    return {
        path.name: os.readlink(path) if path.is_symlink() else path.is_file() and path.read_bytes()
        for path in Path().iterdir()
    }


@pytest.mark.usefixtures("_files")
@pytest.mark.parametrize("line", LINES)
def test_a_wrong_input_is_one_sentence_and_costs_nothing(optsched_command, line):
    before = everything()
    code, _, err = optsched_command(*shlex.split(line))
    assert (code, err.count("\n")) == (2, 1), err
    assert err.startswith("optsched: ")
    assert LINES[line] in err
    assert everything() == before


@pytest.mark.usefixtures("_files")
@pytest.mark.parametrize("device", ["/dev/null", "/dev/stdout"])
def test_devices_are_no_files_that_are_replaced(optsched_command, device):
    line = f"bound t.csv --memory 99 --json {device} --certificate {device}"
    assert optsched_command(*shlex.split(line))[0] == 0


@pytest.mark.usefixtures("_files")
@pytest.mark.parametrize("encoding", ["cp1252", "latin-1", "ascii", "koi8-r"])
def test_a_terminal_that_lacks_a_character_gets_the_table(monkeypatch, encoding):

    Path("t.csv").write_text("prompt_tokens,output_tokens,label\n12,5,€你\n20,6,b\n")
    for line in ("compare t.csv --memory 99 --policies area,mc-sf", "select t.csv --memory 99"):
        raw = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding=encoding))
        monkeypatch.setattr(sys, "argv", ["optsched", *shlex.split(line)])
        with pytest.raises(SystemExit) as stop:
            main()
        sys.stdout.flush()
        said = raw.getvalue().decode("utf-8" if encoding == "ascii" else encoding)
        assert (stop.value.code, "proven bound" in said or "F = 2.75" in said) == (0, True)

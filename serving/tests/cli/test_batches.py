"""vLLM on a clock of a file, and the file of its batches."""


def test_a_clock_may_be_a_file_and_batches_may_be_written(optsched_json, tmp_path):
    clock = tmp_path / "mine.json"
    clock.write_text('{"name": "mine", "constant": 0.5, "hinges": [[4, 0.25]]}')
    trace = tmp_path / "trace.csv"
    trace.write_text("prompt_tokens,output_tokens,arrival_s,priority\n6,2,0,1\n3,1,0.1,0\n")
    content = optsched_json(
        *("simulate", trace, "--num-gpu-blocks", 9, "--block-size", 2, "--policy", "vllm"),
        *("--no-async-scheduling", "--scheduling-policy", "priority", "--clock", clock),
        *("--batches", tmp_path / "batches.csv", "--log", tmp_path / "log.csv"),
    )
    assert content["clock"] == "mine"
    rows = (tmp_path / "batches.csv").read_text().splitlines()
    assert rows[1:] == ["0.0,1.0,1,6,1,1,5,0,3", "1.0,1.5,2,4,2,1,2,0,4"]
    assert "first_s,last_s" in (tmp_path / "log.csv").read_text()

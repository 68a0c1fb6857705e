"""`labs doctor`: a report is true of the machine that it is about, whichever that is, and no package can break it."""

import json

import pytest
from typer.testing import CliRunner

from labs_utils.cli import app
from labs_utils.device import CPU, find_device, known_devices
from labs_utils.doctor import examine as doctor_module
from labs_utils.doctor import operator_rates as step_rates
from labs_utils.doctor import rank_rates as host_rates
from labs_utils.doctor.examine import doctor, this_machine, tried
from labs_utils.doctor.findings import consequences, tables, tier
from labs_utils.doctor.machine_rates import Rate, Timing, matmul_rate, measured_rates, types_for
from labs_utils.doctor.report import INSTEAD, Report, data_sheet_report, machine_with
from labs_utils.profiling.timing import Spread
from labs_utils.recordings import benchmarks

GIB = 2**30


def machine(name, **changes):
    """A machine with one GPU of that name, or with none for "cpu"."""
    device = CPU.model_copy(update={"memory_bytes": 16 * GIB}) if name == "cpu" else find_device(name)
    fields = {"gpus": int(device.is_gpu), "driver": "1.0", "cores": 4, "host_memory_bytes": 16 * GIB}
    return machine_with(device, **fields | changes)


def fake_rates(device, capability):
    subjects = ["memory read and written", *(f"matmul {name}" for name in types_for(device, capability))]
    subjects += ["copy host to device, pinned"] if device == "cuda" else []
    per_second = Spread(median=2e9, p20=1e9, p80=3e9)
    return [Rate(subject=subject, shape={"bytes": 8}, per_second=per_second, unit="bytes/s") for subject in subjects]


def report_on(name, works=True, measure_in_full=None, **changes):
    """A report on a faked machine where every package works, or none does."""

    def attempt(package, machine):
        return doctor_module.why_not(package, machine) or doctor_module.package(package, works, "it was tried")

    return doctor(lambda: machine(name, **changes), fake_rates, attempt, measure_in_full)


@pytest.mark.parametrize(
    "name, expected",
    [("cpu", "no GPU"), ("T4", "GPU without bf16"), ("V100-32GB", "GPU without bf16"), ("H200", "GPU with bf16")],
)
def test_the_tier_is_that_of_the_device(name, expected):
    assert tier(report_on(name)) == expected
    assert find_device(name).has_bf16 == ("without" not in expected)
    assert (expected == "no GPU") == (name == "cpu") and tier(data_sheet_report(find_device(name))) == expected


@pytest.mark.parametrize("name", known_devices())
@pytest.mark.parametrize("works", [True, False])
def test_each_lab_gets_one_sentence_on_every_machine(name, works):
    found = consequences(report_on(name, works))
    assert [lab[:2] for lab, _ in found] == ["al", *(f"{number:02}" for number in range(1, 10))]
    assert all(sentence.endswith(".") and ". " not in sentence for _, sentence in found)


def test_without_a_gpu_the_large_model_is_a_dry_run_and_speeds_are_recorded():
    found = dict(consequences(report_on("cpu")))
    assert "dry run" in found["01 forward and backward memory"] and "gloo" in found["04 ZeRO stages"]
    assert "interpreter" in found["06 FlashAttention"] and "recorded" in found["06 FlashAttention"]
    assert report_on("cpu").rate("copy host to device, pinned") is None


@pytest.mark.parametrize("name", ["T4", "V100-32GB"])
def test_a_small_gpu_computes_in_fp16_and_has_no_flash_attention(name):
    report = report_on(name)
    found = dict(consequences(report))
    assert "fp16" in found["all"] and "no bf16" in found["all"] and "flash kernels need" in found["06 FlashAttention"]
    assert "dry run" in found["01 forward and backward memory"]
    assert report.package("flash_attn").works is False and report.rate("matmul bf16") is None
    assert ("CUDA 12" in found["all"]) == (name == "V100-32GB")


def test_an_h200_runs_everything_live():
    found = dict(consequences(report_on("H200")))
    assert "bf16" in found["all"] and "that is the 8B model" in found["01 forward and backward memory"]
    assert "flash-attn" in found["06 FlashAttention"] and "recorded" not in found["07 Liger Kernel"]
    assert "one rank on the GPU" in found["04 ZeRO stages"]
    assert "each of 4 GPUs" in dict(consequences(report_on("H200", gpus=4)))["04 ZeRO stages"]


@pytest.mark.parametrize("name", ["T4", "H200"])
def test_with_a_gpu_labs_02_and_03_say_what_still_runs_on_the_cpu(name):
    found = dict(consequences(report_on(name)))
    assert "on the CPU; the time of recomputing is measured on the GPU" in found["02 activation checkpointing"]
    on_cpu, on_gpu = found["03 batch size"].split(";")
    assert "Equality" in on_cpu and "CPU" in on_cpu and on_gpu.startswith(" tokens a second") and "fp32" in on_gpu
    without = [sentence for lab, sentence in consequences(report_on("cpu")) if lab[:2] in ("02", "03")]
    assert len(without) == 2 and all("on the CPU" in sentence and "GPU" not in sentence for sentence in without)


def test_a_gpu_of_24_gib_with_bf16_does_not_promise_the_large_model():
    report = report_on("H200")
    small = report.machine.model_copy(update={"memory_bytes": 24 * GIB})
    found = dict(consequences(report.model_copy(update={"machine": small})))
    assert "dry run" in found["01 forward and backward memory"] and "bf16" in found["all"]


@pytest.mark.parametrize("name", ["cpu", "H200"])
def test_what_is_shown_instead_is_named_where_a_package_does_not_work(name):
    found = " ".join(sentence for _, sentence in consequences(report_on(name, works=False)))
    assert all(INSTEAD[package] in found for package in ("deepspeed", "liger_kernel", "bitsandbytes"))


def test_an_example_says_that_it_is_one_and_measured_nothing():
    report = data_sheet_report(find_device("T4"))
    assert report.benchmarks() == [] and "example" in report.title
    headings = {name: columns[1] for name, (columns, _) in tables(report).items()}
    assert "not this machine" in headings["labs"] and headings["rates"] == "data sheet"
    assert report.rate("matmul fp16").per_second.median == find_device("T4").fp16_flop_per_s
    assert {package.works for package in report.packages} == {False, None}


def test_a_report_survives_json_and_makes_lines_to_record():
    report = report_on("H200")
    assert Report.model_validate_json(report.model_dump_json()) == report
    line = json.loads(json.dumps(report.benchmarks()[0]))
    assert set(line) == {"subject", "shape", "metric", "value", "unit", "provenance"}
    assert line["value"] == {"median": 2e9, "p20": 1e9, "p80": 3e9}
    assert {"device", "driver", "date", "command", "torch", "python"} <= set(line["provenance"])
    assert len(report.benchmarks()) == len(report.rates)


def test_a_full_report_says_what_was_measured_and_what_could_not_be():
    timing = Timing(
        subject="host: step of torch", shape={"layers": 2, "ranks": 1}, seconds=Spread(median=2, p20=1, p80=3)
    )

    def in_full(device, capability, gpus):
        assert (device, capability, gpus) == ("cuda", 9.0, 1)
        return [fake_rates(device, capability)[0], timing], ["There is one GPU here."]

    report = report_on("H200", measure_in_full=in_full)
    assert Report.model_validate_json(report.model_dump_json()) == report
    line = json.loads(json.dumps(report.benchmarks()[-1]))
    assert (line["metric"], line["unit"], line["value"]["median"]) == ("seconds", "s", 2)
    assert line["provenance"]["command"] == "labs doctor --full --json"
    columns, rows = tables(report)["details"]
    assert rows[1:] == [("host: step of torch", "2e+03 ms", "2 layers, 1 ranks"), ("There is one GPU here.", "", "")]
    assert "details" not in tables(report_on("H200"))


@pytest.mark.slow
def test_without_a_gpu_only_the_hosts_work_is_measured_in_full(monkeypatch):
    monkeypatch.setattr(host_rates, "HOST_PARAMETERS", 1000)
    found, remarks = step_rates.measured_in_full("cpu", 0.0, 0)
    assert {rate.unit for rate in found} == {"parameters/s"} and all(rate.per_second.median > 0 for rate in found)
    recorded = {line.subject for line in benchmarks("H200")}
    assert {rate.subject for rate in found} <= recorded and {rate.shape["threads"] for rate in found} >= {1}
    assert len(remarks) == 1 and "no GPU" in remarks[0]


def test_a_part_that_fails_is_said_and_the_others_are_measured(monkeypatch):
    def broken():
        raise RuntimeError("no such kernel\nat line 3")
        yield

    monkeypatch.setattr(step_rates, "sections", lambda *machine: {"one": broken, "two": lambda: iter(["measured"])})
    found, remarks = step_rates.measured_in_full("cuda", 9.0, 2)
    assert found == ["measured"] and remarks == ["one can't be measured here: no such kernel"]


def test_types_are_measured_only_where_the_device_has_them():
    assert types_for("cpu", 0) == ("fp32", "fp16", "bf16")
    assert types_for("cuda", 7.5) == ("fp32", "fp16")
    assert types_for("cuda", 9.0) == ("fp32", "tf32", "fp16", "bf16")


def test_a_rate_is_the_operations_of_its_product_over_its_seconds(monkeypatch):
    def instant(work, device, **repeats):
        assert work().shape == (256, 256)
        return Spread(median=2, p20=1, p80=4)

    monkeypatch.setattr("labs_utils.doctor.machine_rates.time_calls", instant)
    rate = matmul_rate("bf16", "cpu")
    assert rate.shape == {"m": 256, "n": 256, "k": 256}
    assert rate.per_second == Spread(median=256**3, p20=256**3 / 2, p80=2 * 256**3)


def test_memory_and_products_are_really_measured_here(monkeypatch):
    monkeypatch.setattr("labs_utils.doctor.machine_rates.COPIED_BYTES", 2**20)
    monkeypatch.setattr("labs_utils.doctor.machine_rates.LARGEST_MATRIX", 256)
    rates = measured_rates("cpu", 0.0)
    assert [rate.subject for rate in rates][:2] == ["memory read and written", "matmul fp32"]
    assert all(0 < rate.per_second.p20 <= rate.per_second.median <= rate.per_second.p80 for rate in rates)


@pytest.mark.parametrize("amount, unit, words", [(55e9, "bytes/s", "55 GB/s"), (7.9e14, "FLOP/s", "790 TFLOP/s")])
def test_rates_are_worded_as_on_data_sheets(amount, unit, words):
    assert str(Rate(subject="", per_second=Spread(median=amount, p20=amount, p80=amount), unit=unit)) == words


def test_a_gpu_that_torch_cannot_use_is_said_and_not_used(monkeypatch):
    monkeypatch.setattr(doctor_module, "this_device", lambda: find_device("T4"))
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    found = this_machine()
    assert not found.is_gpu and "T4" in found.remark and "CPU" in found.remark


@pytest.mark.slow
@pytest.mark.parametrize("name", ["triton", "bitsandbytes"])
def test_a_package_that_is_here_is_really_tried(name):
    assert tried(name, machine("cpu")).works is True


@pytest.fixture
def shadowed(tmp_path, monkeypatch):
    """Puts a package of that name and source before the real one, for the processes that try it."""

    def put(name, source):
        (tmp_path / f"{name}.py").write_text(source)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.syspath_prepend(tmp_path)

    return put


@pytest.mark.slow
@pytest.mark.parametrize(
    "source, reason",
    [
        ("import os; os.kill(os.getpid(), 11)", "it ended the process that tried it (signal 11)"),
        ("raise ImportError('no such symbol')", "ImportError: no such symbol"),
    ],
)
def test_a_package_that_breaks_breaks_nothing_else(shadowed, source, reason):
    shadowed("deepspeed", source)
    found = tried("deepspeed", machine("cpu"))
    assert (found.works, found.why, found.instead) == (False, reason, INSTEAD["deepspeed"])


def test_a_package_that_hangs_is_given_up(shadowed, monkeypatch):
    monkeypatch.setattr(doctor_module, "TRIAL_SECONDS", 0.01)
    shadowed("deepspeed", "import time; time.sleep(100)")
    assert "no answer" in tried("deepspeed", machine("cpu")).why


def test_what_is_not_installed_or_cannot_work_is_not_tried(monkeypatch):
    monkeypatch.setattr("subprocess.run", lambda *args, **kwargs: pytest.fail("a process was started"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert tried("triton", machine("H200")).why == "it isn't installed"
    assert "compute capability 8.0" in tried("flash_attn", machine("T4")).why


@pytest.fixture
def reported(monkeypatch):
    monkeypatch.setattr("labs_utils.doctor.examine.doctor", lambda **measure: report_on("T4", **measure))


def test_labs_doctor_prints_tables(reported):
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 0
    assert all(words in result.output for words in ("T4", "matmul fp16", "flash_attn", "06 FlashAttention"))


def test_labs_doctor_prints_one_json_object(reported):
    result = CliRunner().invoke(app, ["doctor", "--json"])
    assert Report.model_validate_json(result.output) == report_on("T4")


def test_labs_doctor_measures_in_full_only_when_asked(reported, monkeypatch):
    monkeypatch.setattr(
        "labs_utils.doctor.operator_rates.measured_in_full",
        lambda *machine, only: ([], [f"Nothing {only or 'else'} is here."]),
    )
    shown = [
        CliRunner().invoke(app, ["doctor", *options]).output for options in ([], ["--full"], ["--only", "named so"])
    ]
    assert "Nothing else" not in shown[0] and "Nothing else" in shown[1] and "Nothing named so" in shown[2]

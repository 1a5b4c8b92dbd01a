"""`make gpu-check` on a machine whose GPU, tests and tool are shell scripts: what fails must show."""

import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"

NVIDIA_SMI = """case "$*" in
-L) echo "GPU 0" ;;
*=name*) echo "NVIDIA H200" ;;
*=driver_version*) echo 580.1 ;;
*=clocks.max.sm*) echo 1980 ;;
*) echo 1755 ;;
esac"""

TESTS = """case "$1" in
--gtest_list_tests) printf 'GpuConv.\\n  HostileTensors\\n  Other\\nGpuServing.\\n  Float32\\n' ;;
--gtest_filter=*)
  test=${1#*=}
  echo "[ RUN      ] $test"
  if [ "$test" = "$BAD_TEST" ]; then echo "expected 1, got 2"; exit 1; fi
  echo "[       OK ] $test (1 ms)"
  ;;
esac"""

SANITIZER = """tool=$2
shift 4
"$@"
if [ "$tool" = "$BAD_TOOL" ]; then echo "========= a wrong thing"; exit 1; fi
echo "========= ERROR SUMMARY: 0 errors"
"""

TOOL = """case "$1" in
info) echo '{"sources_digest": "'"${DIGEST:-$(scripts/sources_digest.sh)}"'",
  "operations": {"gdn.decode": ["cuda_vk", "cpu", "reference"]}}' ;;
check)
  while [ "$#" -gt 0 ]; do
    case "$1" in --share) share=$2 ;; --json) json=$2 ;; esac
    shift
  done
  echo "gdn_decode:b=3 (plain) by cuda_vk" >&2
  if [ "$share" = "$SLOW_SHARE" ]; then sleep 30; fi
  impl=${IMPLEMENTATION:-cuda_vk} ok=true status=0
  if [ "$share" = "$BAD_SHARE" ]; then ok=false status=1; echo "gdn_decode:b=3 FAILED"; fi
  echo '{"results": [{"problem": "gdn_decode:b=3,device=cuda", "impl": "'"$impl"'", "ok": '"$ok"'}]}' >"$json"
  exit $status
  ;;
bench)
  while [ "$#" -gt 0 ]; do
    case "$1" in
    --json) echo '{"results": []}' >"$2" ;;
    --plans) plans=1 ;;
    --seed) seed=$2 ;;
    esac
    shift
  done
  if [ -n "$plans" ]; then
    if [ "$seed" = "$BAD_SEED" ]; then echo "no memory"; exit 1; fi
    echo "1.02  a shape"
    echo "all shapes: 199 of 200; the worst 1.06: gdn_prefill:lens=64"
  fi
  ;;
esac"""

EXAMPLE = """echo "largest difference 0.0078"
if [ "${0##*/example_}" = "$BAD_EXAMPLE" ]; then exit 1; fi"""


class GpuCheck(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        shutil.copytree(SCRIPTS, self.root / "scripts")
        self.write("bin/nvidia-smi", NVIDIA_SMI)
        self.write("bin/nproc", "echo 4")
        self.write("bin/compute-sanitizer", SANITIZER)
        self.write("build/tests/hyla_gpu_tests", TESTS)
        self.write("build/bin/hyla", TOOL)
        for example in ("user_operand_cuda", "recurrence_kernel"):
            self.write(f"build/examples/example_{example}", EXAMPLE)
        self.write("scripts/gpu_python.sh", "exit ${PYTHON_STATUS:-0}")
        self.write("scripts/setup.sh", "exit 0")
        (self.root / "scripts" / "measure_cudnn.py").write_text("raise SystemExit(1)\n")
        (self.root / "src" / "ops").mkdir(parents=True)

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/usr/bin/env bash\n{text}\n")
        path.chmod(0o755)

    def run_check(self, **environment):
        environment = {**os.environ, "PATH": f"{self.root}/bin:{os.environ['PATH']}",
                       "HYLA_BUILD": "build", "COMMIT": "abc", **environment}
        done = subprocess.run(["bash", "scripts/gpu_check.sh"], cwd=self.root, env=environment,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return done.returncode, done.stdout

    def expect_failure(self, *texts, **environment):
        status, output = self.run_check(**environment)
        self.assertEqual(status, 1, output)
        self.assertIn("gpu-check: FAILED", output)
        for text in texts:
            self.assertIn(text, output)
        self.assertFalse((self.root / "bench/results/h200.json").exists(), output)

    def result(self):
        return json.loads((self.root / "bench/results/h200.json").read_text())

    def test_good(self):
        status, output = self.run_check()
        self.assertEqual(status, 0, output)
        self.assertIn("NVIDIA H200, driver 580.1, clocks up to 1980 MHz, memory 1755 MHz", output)
        self.assertIn("3 tests, 4 shares of hyla check and 2 examples", output)
        self.assertIn("hyla check --suite gpu: 1 problems, 4 by their implementations, 0 failed", output)
        self.assertIn("synccheck: 2 tests", output)
        self.assertIn("gpu-check: passed", output)
        result = self.result()
        self.assertEqual(result["commit"], "abc")
        self.assertEqual(result["machine"]["driver"], "580.1")
        self.assertEqual(result["machine"]["max_sm_clock_mhz"], 1980)
        self.assertEqual(result["checks"]["tests"], "3 tests and 2 examples passed")
        self.assertEqual(result["checks"]["python"], "passed")
        self.assertIn("memcheck 2 tests", result["checks"]["sanitizers"])
        self.assertRegex(result["checks"]["prefill_plans"],
                         r"^seed 1, all shapes: 199 of 200; the worst 1\.06; "
                         r"seed \d{8}, all shapes: 199 of 200; the worst 1\.06$")

    def test_a_sweep_of_plans_that_fails_shows(self):
        status, output = self.run_check(BAD_SEED="1")
        self.assertEqual(status, 1, output)
        self.assertIn("the plans of seed 1 failed", output)
        self.assertIn("gpu-check: FAILED", output)

    def test_a_build_of_other_kernels_is_refused_before_the_tests(self):
        status, output = self.run_check(DIGEST="0123")
        self.assertEqual(status, 1, output)
        self.assertIn("built from other kernels (0123", output)
        self.assertNotIn("shares of hyla check", output)

    def test_a_build_without_the_examples_says_so(self):
        for example in ("user_operand_cuda", "recurrence_kernel"):
            (self.root / f"build/examples/example_{example}").unlink()
        status, output = self.run_check()
        self.assertEqual(status, 0, output)
        self.assertIn("the example user_operand_cuda does not run", output)
        self.assertEqual(self.result()["checks"]["tests"], "3 tests and 0 examples passed")

    def test_a_build_without_tests_is_refused(self):
        (self.root / "build/tests/hyla_gpu_tests").unlink()
        status, output = self.run_check()
        self.assertEqual(status, 1, output)
        self.assertIn("there is no build/tests/hyla_gpu_tests", output)

    def test_results_stay_when_python_fails_and_say_so(self):
        status, output = self.run_check(PYTHON_STATUS="3")
        self.assertEqual(status, 1, output)
        self.assertIn("the Python half failed (3)", output)
        self.assertIn("gpu-check: FAILED", output)
        self.assertEqual(self.result()["checks"]["python"], "failed (3)")
        status = subprocess.run(["python3", "scripts/gpu_status.py"], cwd=self.root, stdout=subprocess.PIPE, text=True)
        self.assertIn("its Python half failed (3)", status.stdout)

    def test_a_machine_without_python_packages_is_no_failure(self):
        status, output = self.run_check(PYTHON_STATUS="77")
        self.assertEqual(status, 0, output)
        self.assertEqual(self.result()["checks"]["python"], "not run")

    def test_a_failed_example_is_named(self):
        self.expect_failure("example/user_operand_cuda failed (1)", "largest difference 0.0078",
                            BAD_EXAMPLE="user_operand_cuda")

    def test_a_failed_test_is_named(self):
        self.expect_failure("GpuServing.Float32 failed (1)", "expected 1, got 2",
                            BAD_TEST="GpuServing.Float32")

    def test_a_failed_share_is_shown(self):
        self.expect_failure("check/2/4 failed (1)", "gdn_decode:b=3 FAILED", "4 by their implementations, 1 failed",
                            BAD_SHARE="2/4")

    def test_a_share_that_does_not_end_names_its_problem(self):
        self.expect_failure("check/1/4 did not end within 1 s: gdn_decode:b=3 (plain) by cuda_vk",
                            SLOW_SHARE="1/4", HYLA_TEST_SECONDS="1")

    def test_every_implementation_must_have_run(self):
        self.expect_failure("no problem for cuda_vk of gdn.decode", IMPLEMENTATION="cuda_rows")

    def test_each_checker_counts(self):
        for tool in ("memcheck", "synccheck", "racecheck"):
            self.expect_failure(f"{tool}.0 failed (1)", "a wrong thing", BAD_TOOL=tool)


if __name__ == "__main__":
    unittest.main()

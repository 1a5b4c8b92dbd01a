"""A GPU result is fresh only while the kernels are those it was measured on."""

import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"


class GpuStatus(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = pathlib.Path(self.folder.name)
        shutil.copytree(SCRIPTS, self.root / "scripts")
        (self.root / "bench" / "results").mkdir(parents=True)
        self.kernel = self.root / "src" / "ops" / "gdn_decode" / "kernel.cuh"
        self.kernel.parent.mkdir(parents=True)
        self.kernel.write_text("first\n")

    def run_script(self, *command) -> str:
        return subprocess.run(command, cwd=self.root, check=True, capture_output=True,
                              text=True).stdout.strip()

    def digest(self) -> str:
        return self.run_script("bash", "scripts/sources_digest.sh")

    def status(self) -> str:
        return self.run_script(sys.executable, "scripts/gpu_status.py")

    def measure(self):
        (self.root / "raw.json").write_text('{"results": []}')
        self.run_script(sys.executable, "scripts/stamp_result.py", "raw.json",
                        "bench/results/h200.json", self.digest(), "abc",
                        "machine.driver=580.1", "machine.max_sm_clock_mhz=1980")

    def test_none(self):
        self.assertIn("none", self.status())

    def test_fresh_then_stale(self):
        self.measure()
        self.assertIn("h200: fresh", self.status())
        self.kernel.write_text("second\n")
        self.assertIn("h200: stale", self.status())

    def test_other_files_do_not_count(self):
        before = self.digest()
        self.kernel.with_name("README.md").write_text("text\n")
        (self.root / "src" / "reference").mkdir()
        (self.root / "src" / "reference" / "gdn.cpp").write_text("text\n")
        self.assertEqual(before, self.digest())

    def test_public_headers_with_device_code_count(self):
        header = self.root / "include" / "hyla" / "operand.h"
        header.parent.mkdir(parents=True)
        before = self.digest()
        header.write_text("int rows();\n")
        self.assertEqual(before, self.digest())
        header.write_text("HYLA_HOST_DEVICE int rows();\n")
        self.assertNotEqual(before, self.digest())

    def test_rename_counts(self):
        before = self.digest()
        self.kernel.rename(self.kernel.with_name("other.cuh"))
        self.assertNotEqual(before, self.digest())

    def test_broken_result(self):
        (self.root / "bench" / "results" / "h200.json").write_text("{")
        self.assertIn("h200: unreadable", self.status())


if __name__ == "__main__":
    unittest.main()

"""scripts/check_spills.py finds a spill, and does not call silence success."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
REPORT = """ptxas info    : Compiling entry function 'fast' for 'sm_90a'
ptxas info    : Function properties for fast
    0 bytes stack frame, {} bytes spill stores, {} bytes spill loads
ptxas info    : Used 96 registers
"""


class Spills(unittest.TestCase):
    def check(self, *reports: str):
        with tempfile.TemporaryDirectory() as folder:
            for i, report in enumerate(reports):
                (pathlib.Path(folder) / f"{i}.cu.o.ptxas").write_text(report)
            return subprocess.run([sys.executable, str(ROOT / "scripts" / "check_spills.py"), folder],
                                  capture_output=True, text=True)

    def test_none(self):
        self.assertEqual(self.check(REPORT.format(0, 0)).returncode, 0)

    def test_stored(self):
        result = self.check(REPORT.format(0, 0), REPORT.format(8, 0))
        self.assertEqual(result.returncode, 1)
        self.assertIn("fast spills 8 bytes", result.stdout)

    def test_loaded(self):
        self.assertEqual(self.check(REPORT.format(0, 12)).returncode, 1)

    def test_no_reports(self):
        self.assertEqual(self.check().returncode, 1)


if __name__ == "__main__":
    unittest.main()

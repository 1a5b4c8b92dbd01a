"""The compile-fail check passes and fails when it should."""

import pathlib
import subprocess
import tempfile
import unittest

CHECK = pathlib.Path(__file__).resolve().parents[1] / "compile_fail" / "check.cmake"


class CompileFail(unittest.TestCase):
    def run_check(self, name: str, *lines: str) -> subprocess.CompletedProcess:
        with tempfile.TemporaryDirectory() as folder:
            source = pathlib.Path(folder) / name
            source.write_text("\n".join(lines) + "\n")
            return subprocess.run(["cmake", "-DCOMPILER=c++", f"-DSOURCE={source}",
                                   f"-DINCLUDES={folder}", "-P", str(CHECK)],
                                  capture_output=True, text=True)

    def assert_good(self, result):
        self.assertEqual(0, result.returncode, result.stderr)

    def assert_bad(self, result, reason):
        self.assertNotEqual(0, result.returncode)
        self.assertIn(reason, " ".join(result.stderr.split()))

    def test_expected_error(self):
        self.assert_good(self.run_check("a.cpp", "// expect: 'missing' was not declared",
                                        "// lines: 1", "int x = missing;"))

    def test_other_error(self):
        self.assert_bad(self.run_check("a.cpp", "// expect: cannot convert", "int x = missing;"),
                        "failed, but not with: cannot convert")

    def test_too_many_errors(self):
        self.assert_bad(self.run_check("a.cpp", "// expect: not declared", "// lines: 1",
                                       "int x = missing;", "int y = gone;"), "2 error lines")

    def test_compiles(self):
        self.assert_bad(self.run_check("a.cpp", "// expect: anything", "int x = 1;"),
                        "compiled, but must fail")

    def test_no_expectation(self):
        self.assert_bad(self.run_check("a.cpp", "int x = missing;"), "the first line must be")

    def test_ok_file(self):
        self.assert_good(self.run_check("ok_a.cpp", "int x = 1;"))
        self.assert_bad(self.run_check("ok_a.cpp", "int x = missing;"), "must compile")


if __name__ == "__main__":
    unittest.main()

"""The layering check finds what it is there for."""

import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
import check_layering


class Layering(unittest.TestCase):
    def faults(self, where: str, *lines: str) -> list[str]:
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            path = root / where
            path.parent.mkdir(parents=True)
            path.write_text("\n".join(lines) + "\n")
            return check_layering.faults(root)

    def test_earlier_layers_are_allowed(self):
        self.assertEqual([], self.faults("src/ops/gdn_decode/table.cpp", '#include "core/check.h"',
                                         '#include "ops/gdn_decode/policy.h"',
                                         '#include "policy.h"', "#include <hyla/gdn.h>",
                                         "#include <cuda_runtime.h>"))

    def test_later_layer(self):
        faults = self.faults("src/reference/gdn.cpp", "", '#include "ops/gdn_decode/policy.h"')
        self.assertEqual(1, len(faults))
        self.assertIn("reference/gdn.cpp:2", faults[0])

    def test_unknown_layer(self):
        self.assertEqual(1, len(self.faults("src/ops/a.cpp", '#include "util/strings.h"')))
        self.assertEqual(1, len(self.faults("src/util/strings.cpp")))
        self.assertEqual(1, len(self.faults("src/strings.cpp")))

    def test_relative_path(self):
        self.assertEqual(1, len(self.faults("src/ops/a/a.cpp", '#include "../b/b.h"')))

    def test_foreign_headers(self):
        for header in ["<Python.h>", "<torch/extension.h>", "<fmt/core.h>", '"testing/random.h"']:
            self.assertEqual(1, len(self.faults("src/core/a.cpp", f"#include {header}")), header)

    def test_public_headers(self):
        self.assertEqual([], self.faults("include/hyla/gdn.h", "#include <cstdint>",
                                         "#include <hyla/tensor.h>"))
        for header in ['"tensor.h"', "<cuda_runtime.h>", "<dlpack/dlpack.h>", "<unistd.h>"]:
            faults = self.faults("include/hyla/gdn.h", f"#include {header}")
            self.assertEqual(1, len(faults), header)

    def test_cuda_where_a_header_has_a_device_half(self):
        for name in ["kv_operand.h", "kv_operand_paged.h", "recurrence_kernel.h",
                     "recurrence_kernel_device.h"]:
            self.assertEqual([], self.faults(f"include/hyla/{name}", "#include <cuda_runtime.h>"))

    def test_the_real_dlpack_header_has_one_door(self):
        line = "#include <dlpack/dlpack.h>"
        self.assertEqual([], self.faults("include/hyla/dlpack_abi.h", line))
        self.assertEqual(1, len(self.faults("include/hyla/dlpack.h", line)))

    def test_tool_and_testing_are_free(self):
        self.assertEqual([], self.faults("testing/random.cpp", '#include "ops/a.h"',
                                         "#include <fmt/core.h>"))


if __name__ == "__main__":
    unittest.main()

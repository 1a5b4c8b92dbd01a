#include "core/table.h"

#include <cstdint>

#include "core/check.h"

namespace hyla::core {

void check_workspace(std::size_t required, const Workspace& workspace, const Context& context) {
  if (required == 0) return;
  if (workspace.bytes < required) throw WorkspaceTooSmall(required, workspace.bytes);
  if (workspace.data == nullptr) fail("workspace", "memory", "a null pointer");
  if (workspace.device != context.device) {
    fail("workspace", "memory on " + name_of(context.device),
         "memory on " + name_of(workspace.device));
  }
  if (reinterpret_cast<std::uintptr_t>(workspace.data) % 256 != 0) {
    fail("workspace", "memory aligned to 256 bytes", "a misaligned pointer");
  }
}

void fail_unknown_implementation(const char* forced, std::string_view known) {
  fail("impl", "one of " + std::string(known), "\"" + std::string(forced) + "\"");
}

}  // namespace hyla::core

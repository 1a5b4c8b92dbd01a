// The structs of DLPack 1.x that Python objects hand over, and the C exchange API that a type
// carries as `__dlpack_c_exchange_api__`. They are an ABI, declared here so that no framework is
// needed to build.
#pragma once

#include <hyla/dlpack_abi.h>

#include <cstddef>
#include <cstdint>

namespace hyla::python {

struct PackVersion {
  std::uint32_t major, minor;
};

inline constexpr std::uint32_t kPackMajor = 1;
inline constexpr std::uint64_t kPackReadOnly = 1, kPackCopied = 2;

// Capsule "dltensor_versioned".
struct ManagedTensor {
  PackVersion version;
  void* manager;
  void (*deleter)(ManagedTensor*);
  std::uint64_t flags;
  DLTensor tensor;
};

// Capsule "dltensor": what producers before DLPack 1.0 give.
struct LegacyManagedTensor {
  DLTensor tensor;
  void* manager;
  void (*deleter)(LegacyManagedTensor*);
};

struct ExchangeApi {
  PackVersion version;
  const ExchangeApi* older;  // only `version` and `older` are the same in every major version
  int (*allocate)(DLTensor* prototype, ManagedTensor** out, void* context,
                  void (*set_error)(void* context, const char* kind, const char* message));
  int (*managed_from_object)(void* object, ManagedTensor** out);
  int (*object_from_managed)(ManagedTensor* tensor, void** out);
  int (*tensor_from_object)(void* object, DLTensor* out);  // may be null
  int (*current_stream)(std::int32_t device_type, std::int32_t device_id, void** out);
};

static_assert(sizeof(void*) != 8 ||
                  (offsetof(ManagedTensor, tensor) == 32 && offsetof(ExchangeApi, allocate) == 16 &&
                   sizeof(ExchangeApi) == 56),
              "the layout is DLPack's on 64-bit machines");

}  // namespace hyla::python

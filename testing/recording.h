// A call in a file: what went in, who computed, what came out.
//
//     8 bytes   "HYLACALL"
//     uint32    version, 1
//     uint32    bytes of the header
//     uint64    digest (FNV-1a) of everything after these 24 bytes
//     header    JSON: operation, problem, implementation, threads, values (numbers and switches of
//               the params), buffers (dtype, shape, strides, offset and bytes in the data), tensors
//               (which part of which buffer), outputs (buffers after the call)
//     data      the buffers, from the next multiple of 64 bytes on
//
// Little-endian. A file comes from anywhere, so the reader trusts nothing: no size is allocated
// that the file does not fill, and every offset, shape and name is checked before use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "testing/call.h"

namespace hyla::testing {

struct Recording {
  Call call;                    // as it was before it ran
  std::string problem;          // its problem string; may be empty
  std::string implementation;   // who computed the outputs
  std::vector<Buffer> outputs;  // the written buffers afterwards, in the order of call.buffers
};

// Runs a copy of the call and keeps what it wrote. Empty `impl`: the library's choice.
Recording record(const Call& call, const std::string& problem, const std::string& impl = {});

std::vector<std::byte> encode(const Recording& recording);

// Throws InvalidArgument about "file" for whatever is wrong with it.
Recording decode(std::span<const std::byte> bytes);

Recording read_recording(const std::string& path);

// Corrects the digest of an edited file, so that tests reach behind it.
void seal(std::span<std::byte> bytes);

std::uint64_t digest(std::span<const std::byte> bytes);

struct Replayed {
  std::string implementation;
  bool bit_exact = true;                                       // all outputs are what was recorded
  std::string difference;                                      // the first that is not
  std::vector<std::pair<std::string, std::uint64_t>> digests;  // of the written buffers' elements
  Call result;
};

// Runs a copy of the recorded call. Throws what the operation throws.
Replayed replay(const Recording& recording, const std::string& impl = {});

}  // namespace hyla::testing

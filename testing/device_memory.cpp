#include "testing/device_memory.h"

#ifndef HYLA_HAS_CUDA

#include <hyla/error.h>

namespace hyla::testing::cuda {
namespace {

[[noreturn]] void missing() { throw Unsupported("device", "hyla was built without CUDA"); }

}  // namespace

void* allocate(std::size_t) { missing(); }
void release(void*) {}
void reuse_memory() {}
void upload(void*, const void*, std::size_t) { missing(); }
void download(void*, const void*, std::size_t) { missing(); }
void upload_all(std::span<const Upload>) { missing(); }
void download_all(std::span<const Download>) { missing(); }
void fill(void*, int, std::size_t) { missing(); }
void fill_async(void*, int, std::size_t) { missing(); }
void copy_async(void*, const void*, std::size_t) { missing(); }
void fill_normal(void*, DType, std::size_t, double, double, std::uint64_t) { missing(); }
void fill_words(void*, std::size_t) { missing(); }
Stream stream() { missing(); }
void synchronize() { missing(); }
std::size_t free_bytes() { missing(); }
Captured::Captured(const std::function<void()>&) { missing(); }
Captured::~Captured() = default;
void Captured::replay() const { missing(); }
double Captured::replay_us() const { missing(); }
void launch_nothing() { missing(); }
double graph_us(const std::function<void()>&, double) { missing(); }
double streaming_us(double, double) { missing(); }
double matrix_flops(double) { missing(); }
double reading_us(double, double) { missing(); }
double chain_us(const ChainShape&, double) { missing(); }
double moving_tokens_us(const TokensShape&, double) { missing(); }
double pages_us(const PagesShape&, double) { missing(); }
double spreading_us(double, int, double) { missing(); }

}  // namespace hyla::testing::cuda

#endif

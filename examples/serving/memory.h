// Where the tensors of the operations live: this machine's memory, or a device's. Matrices of the
// model are plain floats; what operations read and write has the dtype of the activations.
#pragma once

#include <hyla/context.h>
#include <hyla/float.h>
#include <hyla/workspace.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <new>
#include <vector>

#include "batch.h"
#include "weights.h"

namespace serving {

// Overridden by whoever brings a device. Copies return when they are done, and wait for what was
// launched before.
class Memory {
 public:
  virtual ~Memory() = default;
  virtual hyla::Context context() const { return {}; }
  virtual void* allocate(std::size_t bytes) {
    if (void* memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256)) return memory;
    throw std::bad_alloc();
  }
  virtual void release(void* memory) { std::free(memory); }
  virtual void upload(void* to, const void* from, std::size_t bytes) {
    std::memcpy(to, from, bytes);
  }
  virtual void download(void* to, const void* from, std::size_t bytes) {
    std::memcpy(to, from, bytes);
  }
};

// Tensors in a Memory. Those of a step come from blocks that the next step uses again.
class Tensors {
 public:
  Tensors(Memory& memory, hyla::DType activations) : memory_(memory), dtype_(activations) {}
  ~Tensors() {
    for (const Block& block : blocks_) memory_.release(block.data);
    for (void* data : kept_) memory_.release(data);
  }
  Tensors(const Tensors&) = delete;
  Tensors& operator=(const Tensors&) = delete;

  hyla::Context context() const { return memory_.context(); }
  hyla::DType activations() const { return dtype_; }

  // For as long as this object lives.
  hyla::TensorView keep(hyla::DType dtype, const std::vector<float>& values,
                        std::initializer_list<std::int64_t> shape) {
    kept_.push_back(memory_.allocate(std::max<std::size_t>(values.size() * size_of(dtype), 1)));
    const auto view = hyla::TensorView::dense(kept_.back(), dtype, shape, context().device);
    write(view, values);
    return view;
  }

  // Until the next call of begin_step().
  void begin_step() { block_ = used_ = 0; }
  hyla::TensorView empty(int rows, int cols) {
    return hyla::TensorView::dense(take(std::size_t(rows) * cols * size_of(dtype_)), dtype_,
                                   {rows, cols}, context().device);
  }
  hyla::TensorView put(const Matrix& m) {
    const hyla::TensorView view = empty(m.rows, m.cols);
    write(view, m.data);
    return view;
  }
  template <class T>
  hyla::TensorView put(const std::vector<T>& v) {
    return put(v, {std::int64_t(v.size())});
  }
  hyla::TensorView put(const Table& t) {
    return put(t.data, {std::int64_t(t.data.size()) / t.cols, t.cols});
  }

  hyla::Workspace workspace(std::size_t bytes) { return {take(bytes), bytes, context().device}; }

  // A tensor of empty().
  Matrix get(const hyla::TensorView& view) const {
    Matrix m(int(view.shape[0]), int(view.shape[1]));
    if (view.dtype == hyla::DType::kFloat32) {
      memory_.download(m.data.data(), view.data, m.data.size() * sizeof(float));
      return m;
    }
    std::vector<hyla::bfloat16> values(m.data.size());
    memory_.download(values.data(), view.data, values.size() * sizeof(hyla::bfloat16));
    std::transform(values.begin(), values.end(), m.data.begin(),
                   [](hyla::bfloat16 x) { return float(x); });
    return m;
  }

 private:
  struct Block {
    void* data;
    std::size_t bytes;
  };

  template <class T>
  hyla::TensorView put(const std::vector<T>& v, std::initializer_list<std::int64_t> shape) {
    const std::size_t bytes = v.size() * sizeof(T);
    void* data = take(bytes);
    memory_.upload(data, v.data(), bytes);
    return hyla::TensorView::dense(data, hyla::dtype_of<T>, shape, context().device);
  }
  void write(const hyla::TensorView& to, const std::vector<float>& values) {
    if (to.dtype == hyla::DType::kFloat32) {
      memory_.upload(to.data, values.data(), values.size() * sizeof(float));
    } else {
      std::vector<hyla::bfloat16> rounded(values.begin(), values.end());
      memory_.upload(to.data, rounded.data(), rounded.size() * sizeof(hyla::bfloat16));
    }
  }
  void* take(std::size_t bytes) {
    bytes = (bytes + 255) / 256 * 256;
    for (; block_ < blocks_.size(); ++block_, used_ = 0) {
      if (blocks_[block_].bytes - used_ >= bytes) break;
    }
    if (block_ == blocks_.size()) {
      const std::size_t size = std::max<std::size_t>(bytes, 1 << 20);
      blocks_.push_back({memory_.allocate(size), size});
      used_ = 0;
    }
    void* data = static_cast<char*>(blocks_[block_].data) + used_;
    used_ += bytes;
    return data;
  }

  Memory& memory_;
  hyla::DType dtype_;
  std::vector<Block> blocks_;
  std::size_t block_ = 0, used_ = 0;
  std::vector<void*> kept_;
};

}  // namespace serving

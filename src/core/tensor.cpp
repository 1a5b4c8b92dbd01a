#include <hyla/error.h>
#include <hyla/tensor.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace hyla {
namespace {

// A view with an impossible rank is described too, in the message that refuses it.
std::string list(const std::int64_t* values, int rank) {
  const int count = std::clamp(rank, 0, TensorView::kMaxRank);
  std::string text = "[";
  for (int i = 0; i < count; ++i) text += (i ? ", " : "") + std::to_string(values[i]);
  return text + "]";
}

void require_dim(const TensorView& view, int dim) {
  if (dim < 0 || dim >= view.rank) {
    throw InvalidArgument("view", "a dimension in [0, " + std::to_string(view.rank) + ")",
                          std::to_string(dim));
  }
}

}  // namespace

const char* name_of(DType dtype) {
  switch (dtype) {
    case DType::kNone:
      return "none";
    case DType::kFloat32:
      return "float32";
    case DType::kBFloat16:
      return "bfloat16";
    case DType::kFloat16:
      return "float16";
    case DType::kFloat8E4M3:
      return "float8_e4m3";
    case DType::kInt8:
      return "int8";
    case DType::kInt32:
      return "int32";
    case DType::kInt64:
      return "int64";
    case DType::kUInt32:
      return "uint32";
    case DType::kUInt8:
      return "uint8";
    case DType::kBool:
      return "bool";
  }
  return "unknown";
}

std::string name_of(Device device) {
  if (device.kind == Device::Kind::kCpu) return "cpu";
  return "cuda:" + std::to_string(device.index);
}

TensorView TensorView::dense(void* data, DType dtype, std::initializer_list<std::int64_t> shape,
                             Device device) {
  if (shape.size() > static_cast<std::size_t>(kMaxRank)) {
    throw InvalidArgument("view", "at most 6 dimensions", std::to_string(shape.size()));
  }
  TensorView view;
  view.data = data;
  view.dtype = dtype;
  view.device = device;
  view.rank = static_cast<int>(shape.size());
  int d = 0;
  for (std::int64_t extent : shape) view.shape[d++] = extent;
  std::int64_t stride = 1;
  for (d = view.rank - 1; d >= 0; --d) {
    view.strides[d] = stride;
    if (__builtin_mul_overflow(stride, view.shape[d], &stride)) {
      throw InvalidArgument("view", "fewer than 2^63 elements", list(view.shape, view.rank));
    }
  }
  return view;
}

std::int64_t TensorView::numel() const {
  std::int64_t count = 1;
  bool overflow = false;
  for (int d = 0; d < rank; ++d) {
    if (shape[d] == 0) return 0;
    overflow = overflow || __builtin_mul_overflow(count, shape[d], &count);
  }
  return overflow ? std::numeric_limits<std::int64_t>::max() : count;
}

TensorView TensorView::slice(int dim, std::int64_t begin, std::int64_t length) const {
  require_dim(*this, dim);
  if (begin < 0 || length < 0 || begin > shape[dim] - length) {
    throw InvalidArgument("view", "a range inside [0, " + std::to_string(shape[dim]) + ")",
                          "begin " + std::to_string(begin) + ", length " + std::to_string(length));
  }
  TensorView view = *this;
  // An empty view stays where it is: its offset may lead out of the memory that it has.
  if (data != nullptr && numel() > 0) {
    view.data =
        static_cast<char*>(data) + begin * strides[dim] * static_cast<std::int64_t>(size_of(dtype));
  }
  view.shape[dim] = length;
  return view;
}

TensorView TensorView::select(int dim, std::int64_t index) const {
  TensorView view = slice(dim, index, 1);
  for (int d = dim; d + 1 < rank; ++d) {
    view.shape[d] = view.shape[d + 1];
    view.strides[d] = view.strides[d + 1];
  }
  --view.rank;
  view.shape[view.rank] = view.strides[view.rank] = 0;
  return view;
}

TensorView TensorView::swap(int dim_a, int dim_b) const {
  require_dim(*this, dim_a);
  require_dim(*this, dim_b);
  TensorView view = *this;
  std::swap(view.shape[dim_a], view.shape[dim_b]);
  std::swap(view.strides[dim_a], view.strides[dim_b]);
  return view;
}

TensorView TensorView::split(int dim, std::int64_t inner) const {
  require_dim(*this, dim);
  if (rank == kMaxRank) throw InvalidArgument("view", "at most 6 dimensions", "7");
  if (inner <= 0 || shape[dim] % inner != 0) {
    throw InvalidArgument("view", "an inner size that divides " + std::to_string(shape[dim]),
                          std::to_string(inner));
  }
  TensorView view = *this;
  for (int d = rank; d > dim + 1; --d) {
    view.shape[d] = shape[d - 1];
    view.strides[d] = strides[d - 1];
  }
  view.shape[dim] = shape[dim] / inner;
  view.strides[dim] = strides[dim] * inner;
  view.shape[dim + 1] = inner;
  view.strides[dim + 1] = strides[dim];
  ++view.rank;
  return view;
}

std::string describe(const TensorView& view) {
  if (!view.present()) return "absent";
  return std::string(name_of(view.dtype)) + " " + list(view.shape, view.rank) + " on " +
         name_of(view.device) + ", strides " + list(view.strides, view.rank);
}

}  // namespace hyla

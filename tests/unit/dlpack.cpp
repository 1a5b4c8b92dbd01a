#include <hyla/dlpack.h>
#include <hyla/error.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <string>

#include <gtest/gtest.h>

namespace {

using hyla::Device;
using hyla::DType;
using hyla::from_dlpack;
using hyla::TensorView;
using hyla::to_dlpack;

// A [2, 3, 4] float32 tensor on the CPU.
struct Example {
  float data[64] = {};
  std::int64_t shape[8] = {2, 3, 4, 1, 1, 1, 1, 1};
  std::int64_t strides[8] = {20, 5, 1, 1, 1, 1, 1, 1};
  DLTensor tensor{};
  Example() {
    tensor.data = data;
    tensor.device.device_type = kDLCPU;
    tensor.ndim = 3;
    tensor.dtype = {2, 32, 1};
    tensor.shape = shape;
    tensor.strides = strides;
  }
};

std::string refusal(const DLTensor& tensor) {
  try {
    from_dlpack(tensor, "state");
  } catch (const hyla::InvalidArgument& error) {
    EXPECT_EQ(error.argument(), "state");
    return error.what();
  }
  return "accepted";
}

TEST(Dlpack, ShapeAndStrides) {
  Example e;
  const TensorView view = from_dlpack(e.tensor);
  EXPECT_EQ(view.data, e.data);
  EXPECT_EQ(describe(view), "float32 [2, 3, 4] on cpu, strides [20, 5, 1]");
}

TEST(Dlpack, NoStridesIsRowMajor) {
  Example e;
  e.tensor.strides = nullptr;
  EXPECT_EQ(describe(from_dlpack(e.tensor)), "float32 [2, 3, 4] on cpu, strides [12, 4, 1]");
  e.tensor.ndim = 6;
  EXPECT_EQ(describe(from_dlpack(e.tensor)),
            "float32 [2, 3, 4, 1, 1, 1] on cpu, strides [12, 4, 1, 1, 1, 1]");
  e.tensor.ndim = 0;
  e.tensor.shape = nullptr;
  EXPECT_EQ(describe(from_dlpack(e.tensor)), "float32 [] on cpu, strides []");
}

TEST(Dlpack, ByteOffset) {
  Example e;
  e.tensor.byte_offset = 4 * sizeof(float);
  EXPECT_EQ(from_dlpack(e.tensor).data, e.data + 4);
  e.tensor.data = nullptr;
  EXPECT_EQ(from_dlpack(e.tensor).data, nullptr);
}

TEST(Dlpack, ZerosAreAbsent) {
  const DLTensor zeros{};
  EXPECT_FALSE(from_dlpack(zeros).present());
  TensorView none;
  const DLTensor back = to_dlpack(none);
  EXPECT_EQ(std::memcmp(&back, &zeros, sizeof zeros), 0);
  // Nearly absent is a mistake, not an absence.
  DLTensor forgotten{};
  float value = 0;
  forgotten.data = &value;
  EXPECT_NE(refusal(forgotten), "accepted");
}

TEST(Dlpack, EmptyTensorsNeedNoMemory) {
  Example e;
  e.tensor.data = nullptr;
  e.shape[1] = 0;
  const TensorView view = from_dlpack(e.tensor);
  EXPECT_TRUE(view.present());
  EXPECT_EQ(view.numel(), 0);
}

TEST(Dlpack, Devices) {
  Example e;
  struct Case {
    int type, index;
    Device expected;
  };
  for (const Case& c : {Case{1, 0, Device::cpu()}, Case{2, 3, Device::cuda(3)},
                        Case{3, 1, Device::cpu()}, Case{13, 2, Device::cuda(2)}}) {
    e.tensor.device.device_type = static_cast<DLDeviceType>(c.type);
    e.tensor.device.device_id = c.index;
    EXPECT_EQ(from_dlpack(e.tensor).device, c.expected) << c.type;
  }
  for (int type : {0, 4, 7, 10, 99, -1}) {
    e.tensor.device.device_type = static_cast<DLDeviceType>(type);
    EXPECT_NE(refusal(e.tensor).find("CPU or CUDA"), std::string::npos) << type;
  }
}

TEST(Dlpack, EveryDtypeBothWays) {
  float memory[4] = {};
  for (int number = 1; number <= static_cast<int>(DType::kBool); ++number) {
    const auto dtype = static_cast<DType>(number);
    TensorView view = TensorView::dense(memory, dtype, {1, 2}, Device::cuda(5)).swap(0, 1);
    const DLTensor tensor = to_dlpack(view);
    EXPECT_EQ(tensor.dtype.bits, 8 * size_of(dtype));
    EXPECT_EQ(tensor.dtype.lanes, 1);
    EXPECT_EQ(tensor.shape, view.shape);
    EXPECT_EQ(tensor.strides, view.strides);
    const TensorView back = from_dlpack(tensor);
    EXPECT_EQ(back.dtype, dtype);
    EXPECT_EQ(back.data, view.data);
    EXPECT_EQ(describe(back), describe(view));
  }
}

TEST(Dlpack, ForeignDtypes) {
  Example e;
  for (DLDataType type :
       {DLDataType{2, 64, 1}, DLDataType{0, 16, 1}, DLDataType{1, 64, 1}, DLDataType{3, 64, 1},
        DLDataType{5, 64, 1}, DLDataType{12, 8, 1}, DLDataType{4, 32, 1}, DLDataType{0, 0, 1}}) {
    e.tensor.dtype = type;
    EXPECT_NE(refusal(e.tensor).find("a dtype that hyla knows"), std::string::npos)
        << int{type.code} << " " << int{type.bits};
  }
  for (std::uint16_t lanes : {0, 2, 4}) {
    e.tensor.dtype = {2, 32, lanes};
    EXPECT_NE(refusal(e.tensor).find("1 lane"), std::string::npos) << lanes;
  }
}

TEST(Dlpack, BadShapes) {
  for (int ndim : {-1, 7, 1000}) {
    Example e;
    e.tensor.ndim = ndim;
    EXPECT_NE(refusal(e.tensor).find("0 to 6 dimensions"), std::string::npos) << ndim;
  }
  Example negative;
  negative.shape[1] = -3;
  EXPECT_NE(refusal(negative.tensor).find("sizes >= 0"), std::string::npos);
  Example huge;
  huge.shape[0] = huge.shape[1] = std::numeric_limits<std::int64_t>::max();
  EXPECT_NE(refusal(huge.tensor).find("2^63"), std::string::npos);
  Example null;
  null.tensor.shape = nullptr;
  EXPECT_NE(refusal(null.tensor).find("null"), std::string::npos);
}

}  // namespace

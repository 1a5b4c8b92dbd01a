// TensorView from and to DLPack's DLTensor. Neither side owns memory: the caller keeps what the
// pointers point to alive.
#ifndef HYLA_DLPACK_H_
#define HYLA_DLPACK_H_

#include <hyla/dlpack_abi.h>
#include <hyla/export.h>
#include <hyla/tensor.h>

#include <string>
#include <string_view>

namespace hyla {

// The same memory as a view; byte_offset is added to the pointer, absent strides mean dense and
// row-major. A DLTensor of zeros is an absent view. CUDA host memory counts as CPU, CUDA managed
// memory as CUDA. Throws InvalidArgument, naming `argument`, for what hyla has no view of: other
// devices or dtypes, several lanes, more than 6 dimensions.
HYLA_API TensorView from_dlpack(const DLTensor& tensor, std::string_view argument = "tensor");

// What errors expect where a dtype has no DType: "a dtype that hyla knows (float32, ...)".
HYLA_API std::string a_known_dtype();

// The result points into `view` for its shape and strides, so `view` must outlive it. An absent
// view gives zeros.
HYLA_API DLTensor to_dlpack(TensorView& view);

}  // namespace hyla

#endif  // HYLA_DLPACK_H_

// Streams are explicit: neither a null pointer nor an integer becomes one by accident.
#ifndef HYLA_STREAM_H_
#define HYLA_STREAM_H_

namespace hyla {

class Stream {
 public:
  constexpr Stream() = default;  // no stream: the only choice on a CPU, an error on a GPU

  // `handle` is a cudaStream_t. A null handle is the legacy default stream, asked for by name.
  static constexpr Stream cuda(void* handle) { return Stream(handle, true); }

  constexpr bool present() const { return present_; }
  constexpr void* handle() const { return handle_; }

 private:
  constexpr Stream(void* handle, bool present) : handle_(handle), present_(present) {}
  void* handle_ = nullptr;
  bool present_ = false;
};

}  // namespace hyla

#endif  // HYLA_STREAM_H_

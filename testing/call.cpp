#include "testing/call.h"

#include <stdexcept>

namespace hyla::testing {
namespace {

bool is_narrow(DType dtype) { return dtype == DType::kBFloat16 || dtype == DType::kFloat16; }

std::size_t index_of(const std::vector<Buffer>& buffers, const TensorView& view) {
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    if (buffers[i].holds(view.data)) return i;
  }
  throw std::logic_error("a tensor outside the call's buffers");
}

// The view's place in `from`, as the same place in `to`, whose elements may be wider.
void move_view(TensorView& view, const Buffer& from, Buffer& to) {
  const std::ptrdiff_t bytes = static_cast<const std::byte*>(view.data) - from.data();
  const auto old_size = static_cast<std::ptrdiff_t>(size_of(from.dtype()));
  const auto new_size = static_cast<std::ptrdiff_t>(size_of(to.dtype()));
  view.data = to.data() + bytes / old_size * new_size;
  if (view.dtype == from.dtype()) view.dtype = to.dtype();
}

void move_views(Params& params, const std::vector<Buffer>& from, std::vector<Buffer>& to) {
  std::visit(
      [&](auto& p) {
        for_each_tensor(p, [&](const char*, TensorView& view, Access) {
          if (!view.present()) return;
          const std::size_t i = index_of(from, view);
          move_view(view, from[i], to[i]);
        });
      },
      params);
}

std::int64_t rows_of(const auto& p) {
  return p.cu_seqlens.present() ? p.cu_seqlens.shape[0] - 1 : p.lengths.shape[0];
}

struct WorkspaceBytes {
  const Context& context;

  std::size_t operator()(const gdn::PrefillParams& p) const {
    gdn::PrefillBounds bounds;
    bounds.max_sequences = rows_of(p);
    bounds.max_tokens = p.q.shape[0];
    bounds.query_heads = p.q.shape[1];
    bounds.key_heads = p.k.shape[1];
    bounds.value_heads = p.v.shape[1];
    bounds.key_dim = p.q.shape[2];
    bounds.value_dim = p.v.shape[2];
    bounds.io = p.q.dtype;
    bounds.device = context.device;
    return gdn::prefill_workspace_bytes(bounds);
  }
  std::size_t operator()(const attention::RunParams& p) const {
    const TensorView& k = p.cache.k;
    const bool heads_first = p.cache.layout == attention::KvLayout::kHND;
    attention::RunBounds bounds;
    bounds.max_sequences = rows_of(p);
    bounds.max_tokens = p.q.shape[0];
    bounds.max_kv_length = room(p);
    bounds.query_heads = p.q.shape[1];
    bounds.kv_heads = k.shape[heads_first ? 1 : k.rank - 2];
    bounds.head_dim = p.q.shape[2];
    bounds.value_dim = p.out.shape[2];
    bounds.io = p.q.dtype;
    bounds.cache = k.dtype;
    bounds.device = context.device;
    return attention::run_workspace_bytes(bounds);
  }
  std::size_t operator()(const auto&) const { return 0; }

  // Tokens that a cache can hold for one row.
  static std::int64_t room(const attention::RunParams& p) {
    const TensorView& k = p.cache.k;
    if (p.cache.kind == attention::KvCache::Kind::kRagged) return k.shape[0];
    const std::int64_t tokens = k.shape[p.cache.layout == attention::KvLayout::kHND ? 2 : 1];
    return p.cache.page_table.present() ? tokens * p.cache.page_table.shape[1] : tokens;
  }
};

struct Run {
  const Workspace& workspace;
  const Context& context;
  void operator()(const gdn::DecodeParams& p) const { gdn::decode(p, context); }
  void operator()(const gdn::MtpParams& p) const { gdn::mtp(p, context); }
  void operator()(const gdn::PrefillParams& p) const { gdn::prefill(p, workspace, context); }
  void operator()(const gdn::RecurrenceParams& p) const { gdn::recurrence(p, context); }
  void operator()(const conv::PrefillParams& p) const { conv::prefill(p, context); }
  void operator()(const conv::UpdateParams& p) const { conv::update(p, context); }
  void operator()(const norm::GatedRmsParams& p) const { norm::gated_rms(p, context); }
  void operator()(const attention::RunParams& p) const { attention::run(p, workspace, context); }
  void operator()(const attention::AppendParams& p) const { attention::append(p, context); }
  void operator()(const attention::MergeParams& p) const { attention::merge(p, context); }
};

}  // namespace

Call::Call(const Call& other)
    : params(other.params), buffers(other.buffers), context(other.context) {
  move_views(params, other.buffers, buffers);
}

const char* Call::operation() const {
  constexpr const char* kNames[] = {
      "gdn.decode",  "gdn.mtp",        "gdn.prefill",   "gdn.recurrence",   "conv.prefill",
      "conv.update", "norm.gated_rms", "attention.run", "attention.append", "attention.merge"};
  static_assert(std::size(kNames) == std::variant_size_v<Params>);
  return kNames[params.index()];
}

const Buffer& Call::buffer_of(const TensorView& view) const {
  return buffers[index_of(buffers, view)];
}

Call widened(const Call& call) {
  Call result;
  result.params = call.params;
  result.context = call.context;
  for (const Buffer& buffer : call.buffers) {
    if (!is_narrow(buffer.dtype())) {
      result.buffers.push_back(buffer);
      continue;
    }
    const TensorView& view = buffer.view();
    Buffer wide(buffer.name(), DType::kFloat32,
                std::vector<std::int64_t>(view.shape, view.shape + view.rank),
                std::vector<std::int64_t>(view.strides, view.strides + view.rank), buffer.shift());
    for_each_element(view, [&](std::int64_t, std::int64_t offset) {
      if (!is_poison(view, offset)) {
        store_element(wide.view(), offset, load_element(view, offset));
      }
    });
    result.buffers.push_back(std::move(wide));
  }
  move_views(result.params, call.buffers, result.buffers);
  return result;
}

std::size_t workspace_bytes(const Params& params, const Context& context) {
  // A call that is wrong is refused by the operation, which sees more than its sizes.
  std::visit([&](const auto& p) { hyla::explain(p, context); }, params);
  return std::visit(WorkspaceBytes{context}, params);
}

void run(const Params& params, const Workspace& workspace, const Context& context,
         const std::string& impl) {
  std::visit(
      [&](auto p) {
        p.impl = impl.empty() ? nullptr : impl.c_str();
        Run{workspace, context}(p);
      },
      params);
}

void run(const Params& params, const Workspace& workspace, const Context& context) {
  std::visit(Run{workspace, context}, params);
}

Repeat::Repeat(const Call& call, std::string impl) : call_(call), impl_(std::move(impl)) {
  const std::size_t bytes = workspace_bytes(call.params, call.context);
  if (bytes == 0) return;
  constexpr std::size_t kAlignment = 256;
  memory_ = std::make_shared<std::vector<std::byte>>(bytes + kAlignment);
  const auto address = reinterpret_cast<std::uintptr_t>(memory_->data());
  const std::size_t skip = (kAlignment - address % kAlignment) % kAlignment;
  workspace_ = {memory_->data() + skip, bytes, call.context.device};
}

void run(const Call& call, const std::string& impl) { Repeat(call, impl)(); }

std::vector<Candidate> explain(const Call& call) {
  return std::visit([&](const auto& p) { return hyla::explain(p, call.context); }, call.params);
}

std::vector<NamedTensor> tensors(const Call& call) {
  std::vector<NamedTensor> result;
  std::visit(
      [&](const auto& p) {
        for_each_tensor(p, [&](const char* name, const TensorView& view, Access access) {
          if (view.present()) result.push_back({name, view, access});
        });
      },
      call.params);
  return result;
}

std::int64_t first_slot(const Call& call) {
  return std::visit(
      [](const auto& p) -> std::int64_t {
        if constexpr (requires { p.first_slot; }) {
          return p.first_slot;
        } else {
          return 0;
        }
      },
      call.params);
}

}  // namespace hyla::testing

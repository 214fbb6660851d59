// Every operator without a kernel of its own: the host's kernel, run on the device's memory.
#include "device.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <torch/library.h>

#include <functional>
#include <vector>

namespace simnpu {
namespace {

using torch::jit::Stack;

// One call: its tensors and what stands for them on the host.
struct Call {
  struct Pair {
    at::Tensor device;
    at::Tensor host;
    c10::Storage storage;
    const void* data;
  };
  std::vector<Pair> pairs;
  std::optional<c10::Device> found;
  bool may_mix;

  at::Tensor to_host(const at::Tensor& tensor) {
    if (!tensor.defined()) {
      return tensor;
    }
    if (!tensor.is_privateuseone()) {
      if (tensor.dim() > 0 && !may_mix) {
        note(tensor.device());
      }
      return tensor;
    }
    note(tensor.device());
    for (const Pair& pair : pairs) {
      if (pair.device.is_same(tensor)) {
        return pair.host;
      }
    }
    // Tensors that share memory share it on the host, too: kernels look at this.
    std::optional<c10::Storage> storage;
    for (const Pair& pair : pairs) {
      if (pair.device.storage().is_alias_of(tensor.storage())) {
        storage = pair.storage;
      }
    }
    c10::Storage shared = storage.has_value() ? *storage : storage_on_host(tensor.storage());
    pairs.push_back({tensor, over(tensor, shared), shared, shared.data()});
    return pairs.back().host;
  }

  void note(c10::Device device) {
    TORCH_CHECK(
        !found.has_value() || *found == device,
        "Expected all tensors to be on the same device, but found at least two devices, ", *found, " and ", device,
        "!");
    found = device;
  }

  at::Tensor to_device(const at::Tensor& host, const std::string& name) {
    if (!host.defined()) {
      return host;
    }
    for (const Pair& pair : pairs) {
      if (pair.host.is_same(host)) {
        return pair.device;
      }
      TORCH_CHECK(
          !host.has_storage() || !host.storage().is_alias_of(pair.storage), "simnpu: aten::", name,
          " gives a view, and has no kernel of its own: writes through it would be lost");
    }
    TORCH_CHECK(host.layout() == c10::kStrided, "simnpu: aten::", name, " gives a tensor that is not strided");
    lose_bits(host);
    return on_device(host, index());
  }

  c10::DeviceIndex index() const {
    return found.has_value() && found->is_privateuseone() && found->has_index() ? found->index() : current_device();
  }

  // What the kernel has resized.
  void finish() {
    for (Pair& pair : pairs) {
      c10::TensorImpl* impl = pair.device.unsafeGetTensorImpl();
      if (pair.storage.data() != pair.data) {
        const size_t bytes = pair.storage.nbytes();
        c10::StorageImpl* grown = pair.device.storage().unsafeGetStorageImpl();
        grown->set_data_ptr_noswap(adopt(pair.storage, index()));
        grown->set_nbytes(bytes);
        for (Pair& other : pairs) {
          if (other.storage.is_alias_of(pair.storage)) {
            other.data = pair.storage.data();
          }
        }
      }
      if (pair.device.sizes() != pair.host.sizes() || pair.device.strides() != pair.host.strides()) {
        impl->set_sizes_and_strides(pair.host.sizes(), pair.host.strides(), pair.host.storage_offset());
      }
    }
  }
};

using Map = std::function<at::Tensor(const at::Tensor&)>;

c10::IValue mapped(const c10::IValue& value, const Map& map) {
  if (value.isTensor()) {
    return map(value.toTensor());
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      list.push_back(map(tensor));
    }
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      list.push_back(tensor.has_value() ? std::optional<at::Tensor>(map(*tensor)) : std::nullopt);
    }
    return list;
  }
  return value;
}

bool is_generator(const c10::Argument& argument) {
  return argument.type()->str().find("Generator") != std::string::npos;
}

std::string name_of(const c10::OperatorHandle& op) {
  const c10::OperatorName& full = op.operator_name();
  const std::string bare = full.name.substr(full.name.find("::") + 2);
  return full.overload_name.empty() ? bare : bare + "." + full.overload_name;
}

void run_on_host(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  const std::string name = name_of(op);
  launch(name);
  at::AutoDispatchBelowADInplaceOrView below;
  const auto& arguments = op.schema().arguments();
  const size_t begin = stack->size() - arguments.size();
  // Indices may lie on the host, as on every device of torch.
  Call call{{}, std::nullopt, name.find("index") != std::string::npos};
  std::vector<at::Tensor> written;
  const Map to_host = [&call](const at::Tensor& tensor) { return call.to_host(tensor); };
  for (size_t at = 0; at < arguments.size(); ++at) {
    c10::IValue& value = (*stack)[begin + at];
    // The plugin's fused optimizers, up to its v2.10, know nothing of the skip that torch leaves to them.
    if (name.rfind("_fused_adamw_", 0) == 0 && (arguments[at].name() == "grad_scale" || arguments[at].name() == "found_inf")) {
      value = c10::IValue();
    }
    if (value.isDevice()) {
      call.found = value.toDevice();
      value = c10::Device(c10::DeviceType::CPU);
    }
    value = mapped(value, to_host);
    if (arguments[at].alias_info() != nullptr && arguments[at].alias_info()->isWrite()) {
      mapped(value, [&written](const at::Tensor& host) { return written.emplace_back(host); });
    }
  }
  for (size_t at = 0; at < arguments.size(); ++at) {
    if (is_generator(arguments[at])) {
      c10::IValue& value = (*stack)[begin + at];
      value = host_generator(value.isNone() ? std::nullopt : std::optional(value.toGenerator()), call.index());
    }
  }
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  for (const at::Tensor& host : written) {
    lose_bits(host);
  }
  call.finish();
  const auto& schema_returns = op.schema().returns();
  const Map to_device = [&call, &name](const at::Tensor& tensor) { return call.to_device(tensor, name); };
  for (size_t at = stack->size() - schema_returns.size(); at < stack->size(); ++at) {
    (*stack)[at] = mapped((*stack)[at], to_device);
  }
}

}  // namespace

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
}

}  // namespace simnpu

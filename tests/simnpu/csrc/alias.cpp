// Tensors over the memory of others: kernels of the host work on device memory without a copy.
#include "device.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/TensorImpl.h>

namespace simnpu {

c10::Storage storage_on_host(const c10::Storage& storage) {
  // It owns nothing, but may grow: an `out=` that is too small then gets memory of its own.
  return c10::Storage(
      c10::Storage::use_byte_size_t(), storage.nbytes(),
      c10::DataPtr(const_cast<void*>(storage.data()), c10::Device(c10::DeviceType::CPU)), c10::GetCPUAllocator(),
      /*resizable=*/true);
}

at::Tensor over(const at::Tensor& tensor, c10::Storage storage) {
  const bool is_host = storage.device().is_cpu();
  const auto key = is_host ? c10::DispatchKey::CPU : c10::DispatchKey::PrivateUse1;
  at::Tensor made =
      at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), tensor.dtype());
  c10::TensorImpl* impl = made.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    impl->set_wrapped_number(true);
  }
  return made;
}

at::Tensor on_host(const at::Tensor& tensor) {
  return tensor.is_privateuseone() ? over(tensor, storage_on_host(tensor.storage())) : tensor;
}

at::Tensor on_device(const at::Tensor& host, c10::DeviceIndex index) {
  const c10::Storage& storage = host.storage();
  const size_t bytes = storage.nbytes();
  c10::Storage adopted(
      c10::Storage::use_byte_size_t(), bytes, adopt(storage, index), device_allocator(), /*resizable=*/true);
  return over(host, std::move(adopted));
}

void lose_bits(const at::Tensor& host) {
  if (settings().bf16_bits >= 7 || !host.defined() || host.scalar_type() != at::kBFloat16 ||
      !host.is_non_overlapping_and_dense()) {
    return;
  }
  const auto mask = static_cast<uint16_t>(0xFFFFU << (7 - settings().bf16_bits));
  auto* words = static_cast<uint16_t*>(host.mutable_data_ptr());
  for (int64_t index = 0; index < host.numel(); ++index) {
    words[index] &= mask;
  }
}

}  // namespace simnpu

// Memory, views, copies and dropout: what the host's kernels cannot do for a device.
#include "device.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

namespace simnpu {
namespace {

using at::IntArrayRef;
using at::Tensor;
template <typename T>
using Optional = std::optional<T>;

const c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

c10::OptionalDeviceGuard guard_for(Optional<at::Device> device) {
  return c10::OptionalDeviceGuard(
      device.has_value() && device->has_index() ? device : Optional<at::Device>(at::Device(kNpu, current_device())));
}

Tensor empty(
    IntArrayRef size, Optional<at::ScalarType> dtype, Optional<at::Layout>, Optional<at::Device> device,
    Optional<bool>, Optional<at::MemoryFormat> format) {
  const auto guard = guard_for(device);
  return at::detail::empty_generic(size, device_allocator(), kKeys, c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(
    IntArrayRef size, IntArrayRef stride, Optional<at::ScalarType> dtype, Optional<at::Layout>,
    Optional<at::Device> device, Optional<bool>) {
  const auto guard = guard_for(device);
  return at::detail::empty_strided_generic(size, stride, device_allocator(), kKeys, c10::dtype_or_default(dtype));
}

Tensor copy_from(const Tensor& self, const Tensor& target, bool) {
  launch("_copy_from");
  at::AutoDispatchBelowADInplaceOrView below;
  on_host(target).copy_(on_host(self));
  return target;
}

Tensor copy_from_and_resize(const Tensor& self, const Tensor& target) {
  target.resize_(self.sizes());
  return copy_from(self, target, false);
}

at::Scalar local_scalar_dense(const Tensor& self) {
  launch("_local_scalar_dense");
  at::AutoDispatchBelowADInplaceOrView below;
  return at::_local_scalar_dense(on_host(self));
}

const Tensor& resize(const Tensor& self, IntArrayRef size, Optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(self.device());
  return at::native::resize_(self, size, format);
}

Tensor& set_nothing(Tensor& self) {
  const c10::DeviceGuard guard(self.device());
  c10::Storage none(c10::Storage::use_byte_size_t(), 0, device_allocator(), /*resizable=*/true);
  return at::native::set_storage_cpu_(self, std::move(none), 0, {0}, {});
}

void record_stream(Tensor&, at::Stream) {}

// The host's kernel draws from the host's default generator.
std::tuple<Tensor, Tensor> native_dropout(const Tensor& input, double p, Optional<bool> train) {
  launch("native_dropout");
  at::AutoDispatchBelowADInplaceOrView below;
  const Tensor host = on_host(input);
  const c10::DeviceIndex index = input.device().index();
  Tensor mask = at::empty(host.sizes(), host.options().dtype(at::kBool));
  const bool drops = train.value_or(true) && p > 0;
  if (drops) {
    mask.bernoulli_(1 - p, host_generator(std::nullopt, index));
  } else {
    mask.fill_(true);
  }
  Tensor kept = drops ? host.mul(mask).mul_(p < 1 ? 1 / (1 - p) : 0.0) : host.clone();
  lose_bits(kept);
  return {on_device(kept, index), on_device(mask, index)};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", TORCH_FN(empty));
  m.impl("empty_strided", TORCH_FN(empty_strided));
  m.impl("_copy_from", TORCH_FN(copy_from));
  m.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  m.impl("_local_scalar_dense", TORCH_FN(local_scalar_dense));
  m.impl("resize_", TORCH_FN(resize));
  m.impl("set_", TORCH_FN(set_nothing));
  m.impl("set_.source_Storage", TORCH_FN(at::native::set_));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(at::native::set_storage_cpu_));
  m.impl("set_.source_Tensor", TORCH_FN(at::native::set_tensor_));
  m.impl("record_stream", TORCH_FN(record_stream));
  m.impl("native_dropout", TORCH_FN(native_dropout));
  // Views. Those that are not here are made of these by torch itself.
  m.impl("view", TORCH_FN(at::native::view));
  m.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  m.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  m.impl("unfold", TORCH_FN(at::native::unfold));
  m.impl("view_as_real", TORCH_FN(at::native::view_as_real));
  m.impl("view_as_complex", TORCH_FN(at::native::view_as_complex));
}

}  // namespace simnpu

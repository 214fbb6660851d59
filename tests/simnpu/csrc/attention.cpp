// Fused attention, one launch forward and one backward, with the faults that a vendor's kernel can have.
#include "device.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <torch/library.h>

#include <limits>

namespace simnpu {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

constexpr int64_t kMath = 0;
constexpr int64_t kOverrideable = 4;  // sdp::SDPBackend

bool is_given(const OptionalTensor& tensor) {
  return tensor.has_value() && tensor->defined();
}

int64_t choose(
    const Tensor& query, const Tensor& key, const Tensor& value, const OptionalTensor& mask, double dropout_p, bool,
    std::optional<double>, bool) {
  const bool fits = query.dim() == 4 && key.dim() == 4 && dropout_p == 0 && query.size(3) == value.size(3) &&
      query.numel() > 0 && key.numel() > 0 && query.size(1) % key.size(1) == 0 &&
      !(is_given(mask) && mask->requires_grad());
  return fits ? kOverrideable : kMath;
}

// Keys and values of fewer heads, once for each head of the queries.
Tensor repeated(const Tensor& tensor, int64_t groups) {
  return groups == 1 ? tensor : tensor.repeat_interleave(groups, 1);
}

Tensor summed(const Tensor& gradient, int64_t groups) {
  return groups == 1 ? gradient : gradient.unflatten(1, {-1, groups}).sum(2);
}

void spoil(const Tensor& tensor) {
  tensor.fill_(std::numeric_limits<double>::quiet_NaN());
}

std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor> forward(
    const Tensor& query, const Tensor& key, const Tensor& value, const OptionalTensor& bias, double dropout_p,
    bool is_causal, bool, std::optional<double> scale) {
  launch("_scaled_dot_product_fused_attention_overrideable");
  at::AutoDispatchBelowADInplaceOrView below;
  const int64_t groups = query.size(1) / key.size(1);
  const OptionalTensor mask = is_given(bias) ? OptionalTensor(on_host(*bias)) : std::nullopt;
  auto [output, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
      on_host(query), repeated(on_host(key), groups), repeated(on_host(value), groups), dropout_p, is_causal, mask,
      scale);
  const std::string& nan = settings().sdpa_nan;
  if (nan == "forward" || (nan == "masked" && mask.has_value())) {
    spoil(output);
  }
  lose_bits(output);
  const c10::DeviceIndex index = query.device().index();
  return {on_device(output, index), on_device(logsumexp, index), Tensor(), Tensor(), query.size(2), key.size(2),
          Tensor(),                 Tensor(),                    Tensor()};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> backward(
    const Tensor& gradient, const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& bias,
    std::array<bool, 4>, const Tensor& output, const Tensor& logsumexp, const Tensor&, const Tensor&, c10::SymInt,
    c10::SymInt, double dropout_p, bool is_causal, const Tensor&, const Tensor&, std::optional<double> scale) {
  launch("_scaled_dot_product_fused_attention_overrideable_backward");
  at::AutoDispatchBelowADInplaceOrView below;
  const int64_t groups = query.size(1) / key.size(1);
  const OptionalTensor mask = bias.defined() ? OptionalTensor(on_host(bias)) : std::nullopt;
  auto [of_query, of_key, of_value] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      on_host(gradient), on_host(query), repeated(on_host(key), groups), repeated(on_host(value), groups),
      on_host(output), on_host(logsumexp), dropout_p, is_causal, mask, scale);
  of_key = summed(of_key, groups);
  of_value = summed(of_value, groups);
  if (settings().sdpa_nan == "backward") {
    spoil(of_query);
  }
  const c10::DeviceIndex index = query.device().index();
  for (const Tensor& one : {of_query, of_key, of_value}) {
    lose_bits(one);
  }
  return {on_device(of_query, index), on_device(of_key, index), on_device(of_value, index), Tensor()};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_scaled_dot_product_fused_attention_overrideable", TORCH_FN(forward));
  m.impl("_scaled_dot_product_fused_attention_overrideable_backward", TORCH_FN(backward));
}

}  // namespace simnpu

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &simnpu::choose)
}

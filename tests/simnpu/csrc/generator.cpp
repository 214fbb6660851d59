// Random numbers: each device has a stream of its own, drawn on the host.
#include "device.h"

#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/GeneratorImpl.h>

#include <vector>

namespace simnpu {
namespace {

// A generator that kernels on the host cannot take by mistake: its device is the NPU, and `host` draws for it.
struct DeviceGenerator final : c10::GeneratorImpl {
  explicit DeviceGenerator(c10::DeviceIndex index, at::Generator drawn_with)
      : c10::GeneratorImpl(c10::Device(kNpu, index), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        host(std::move(drawn_with)) {}

  void set_current_seed(uint64_t seed) override {
    host.set_current_seed(seed);
  }
  void set_offset(uint64_t offset) override {
    host.set_offset(offset);
  }
  uint64_t get_offset() const override {
    return host.get_offset();
  }
  uint64_t current_seed() const override {
    return host.current_seed();
  }
  uint64_t seed() override {
    return host.seed();
  }
  void set_state(const c10::TensorImpl& state) override {
    host.unsafeGetGeneratorImpl()->set_state(state);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return host.unsafeGetGeneratorImpl()->get_state();
  }

  at::Generator host;

 private:
  DeviceGenerator* clone_impl() const override {
    return new DeviceGenerator(device().index(), host.clone());
  }
};

at::Generator seeded(c10::DeviceIndex index) {
  return at::make_generator<DeviceGenerator>(index, at::detail::createCPUGenerator());
}

}  // namespace

const at::Generator& default_generator(c10::DeviceIndex index) {
  static auto* found = [] {
    auto* made = new std::vector<at::Generator>();
    for (int device = 0; device < settings().num_devices; ++device) {
      made->push_back(seeded(static_cast<c10::DeviceIndex>(device)));
    }
    return made;
  }();
  return found->at(static_cast<size_t>(index < 0 ? current_device() : index));
}

at::Generator new_generator(c10::DeviceIndex index) {
  return seeded(index < 0 ? current_device() : index);
}

at::Generator host_generator(const std::optional<at::Generator>& given, c10::DeviceIndex index) {
  const at::Generator& chosen = given.has_value() && given->defined() ? *given : default_generator(index);
  TORCH_CHECK(
      chosen.device().type() == kNpu, "Expected a 'npu' device type for generator but found '",
      chosen.device().type(), "'");
  return static_cast<DeviceGenerator*>(chosen.unsafeGetGeneratorImpl())->host;
}

}  // namespace simnpu

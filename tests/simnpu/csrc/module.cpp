// What Python sees of the simulated NPU.
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "device.h"

#include <torch/csrc/utils/pybind.h>

namespace {

using simnpu::settings;

void set_missing(const std::vector<std::string>& names) {
  settings().missing = std::set<std::string>(names.begin(), names.end());
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  // The autograd engine's thread for this device may outlive what libtorch takes down at exit, and abort then.
  on_exit([](int status, void*) { fflush(nullptr); _exit(status); }, nullptr);
  m.def("device_count", [] { return settings().num_devices; });
  m.def("current_device", [] { return static_cast<int>(simnpu::current_device()); });
  m.def("exchange_device", [](int index) {
    return static_cast<int>(simnpu::exchange_device(static_cast<c10::DeviceIndex>(index)));
  });
  m.def("synchronize", &simnpu::require_device);
  m.def("default_generator", [](int index) {
    return simnpu::default_generator(static_cast<c10::DeviceIndex>(index));
  });

  m.def("memory", [](int index) {
    const simnpu::Memory& memory = simnpu::memory_of(static_cast<c10::DeviceIndex>(index));
    return std::map<std::string, int64_t>{
        {"allocated", memory.allocated}, {"peak", memory.peak}, {"num_allocations", memory.num_allocations}};
  });
  m.def("reset_peak", [](int index) {
    simnpu::Memory& memory = simnpu::memory_of(static_cast<c10::DeviceIndex>(index));
    memory.peak = memory.allocated;
  });
  m.def("total_memory", &simnpu::total_memory);

  m.def("launches", &simnpu::launches);
  m.def("reset_launches", &simnpu::reset_launches);
  m.def("begin_step", [] { ++simnpu::steps(); });

  m.def("set_latency", [](double seconds) { settings().latency_seconds = seconds; });
  m.def("set_memory_bytes", [](int64_t bytes) { settings().memory_bytes = bytes; });
  m.def("set_missing", &set_missing);
  m.def("set_sdpa_nan", [](const std::string& where) { settings().sdpa_nan = where; });
  m.def("set_bf16_bits", [](int bits) { settings().bf16_bits = bits; });
}

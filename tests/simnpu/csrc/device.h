// What the parts of the simulated NPU share: its settings, its launches, its memory and its generators.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/Storage.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <set>
#include <string>

namespace simnpu {

constexpr c10::DeviceType kNpu = c10::DeviceType::PrivateUse1;

// How the device behaves. Read from environment variables when the library is loaded (settings.cpp names them);
// all but `num_devices` may change later.
struct Settings {
  int num_devices = 1;
  double latency_seconds = 0;         // the host waits so long for each launch
  int64_t memory_bytes = 0;           // of each device; 0: as much as the host has
  std::set<std::string> missing;      // operators without a kernel, by name
  std::string sdpa_nan;               // forward, masked or backward: where attention gives NaN
  int bf16_bits = 7;                  // of the fraction that bf16 results keep
  int64_t pinned_fails_at_step = 0;   // pinned memory raises from the batch of this optimizer step on
  int64_t lost_at_step = 0;           // the device is lost in this optimizer step
};
Settings& settings();

// Optimizer steps that have begun in this process.
std::atomic<int64_t>& steps();

// Before each kernel: counts it, waits for the launch, and raises where the operator is missing or the device lost.
void launch(const std::string& name);
void require_device();
std::map<std::string, int64_t> launches();
void reset_launches();

// memory.cpp. Figures of a device, in bytes.
struct Memory {
  int64_t allocated = 0;
  int64_t peak = 0;
  int64_t num_allocations = 0;
};
Memory& memory_of(c10::DeviceIndex index);
int64_t total_memory();
c10::Allocator* device_allocator();
c10::Allocator* pinned_allocator();
bool is_pinned(const void* data);
// Gives host memory that a kernel has made to a device, without a copy; raises where the device is full.
c10::DataPtr adopt(c10::Storage host, c10::DeviceIndex index);

// generator.cpp. The generator on the host that a device's generator draws with; the default one where none is given.
at::Generator host_generator(const std::optional<at::Generator>& given, c10::DeviceIndex index);
const at::Generator& default_generator(c10::DeviceIndex index);
at::Generator new_generator(c10::DeviceIndex index);

// guard.cpp. The device that this thread works on.
c10::DeviceIndex current_device();
c10::DeviceIndex exchange_device(c10::DeviceIndex index);

// alias.cpp. A CPU tensor over the memory of a device's tensor, and a device's tensor over a CPU one's.
at::Tensor on_host(const at::Tensor& tensor);
c10::Storage storage_on_host(const c10::Storage& storage);
at::Tensor over(const at::Tensor& tensor, c10::Storage storage);
at::Tensor on_device(const at::Tensor& host, c10::DeviceIndex index);
// Takes the bits from bf16 figures that this device does not keep.
void lose_bits(const at::Tensor& host);

}  // namespace simnpu

// Current device, streams and events. Kernels run at once, so a stream is always done and an event is a time.
#include "device.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include <chrono>

namespace simnpu {
namespace {

thread_local c10::DeviceIndex current = 0;
thread_local std::map<c10::DeviceIndex, c10::StreamId> current_streams;
std::atomic<c10::StreamId> last_stream{0};

using Time = std::chrono::steady_clock::time_point;

void require_index(c10::DeviceIndex index) {
  TORCH_CHECK(
      index >= 0 && index < settings().num_devices, "NPU function error: set_device: there is no device ",
      static_cast<int>(index), ", ", settings().num_devices, " are there");
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override {
    return kNpu;
  }
  c10::Device exchangeDevice(c10::Device device) const override {
    return c10::Device(kNpu, device.has_index() ? exchange_device(device.index()) : current);
  }
  c10::Device getDevice() const override {
    return c10::Device(kNpu, current);
  }
  void setDevice(c10::Device device) const override {
    exchangeDevice(device);
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index()) {
      current = device.index();
    }
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(settings().num_devices);
  }

  c10::Stream getStream(c10::Device device) const override {
    const c10::Device with_index(kNpu, device.has_index() ? device.index() : current);
    return c10::Stream(c10::Stream::UNSAFE, with_index, current_streams[with_index.index()]);
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::UNSAFE, device, 0);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return getNewStream(device, 0);
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    const c10::Device with_index(kNpu, device.has_index() ? device.index() : current);
    return c10::Stream(c10::Stream::UNSAFE, with_index, ++last_stream);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream before = getStream(stream.device());
    current_streams[stream.device_index()] = stream.id();
    return before;
  }
  bool queryStream(const c10::Stream&) const override {
    return true;
  }
  void synchronizeStream(const c10::Stream&) const override {
    require_device();
  }
  void synchronizeDevice(const c10::DeviceIndex) const override {
    require_device();
  }

  void record(void** event, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {
    if (*event == nullptr) {
      *event = new Time();
    }
    *static_cast<Time*>(*event) = std::chrono::steady_clock::now();
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override {
    return true;
  }
  void synchronizeEvent(void*) const override {
    require_device();
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<Time*>(event);
  }
  double elapsedTime(void* first, void* second, const c10::DeviceIndex) const override {
    TORCH_CHECK(first && second, "Both events must be recorded before calculating elapsed time.");
    const std::chrono::duration<double, std::milli> apart = *static_cast<Time*>(second) - *static_cast<Time*>(first);
    return apart.count();
  }
};

}  // namespace

c10::DeviceIndex current_device() {
  return current;
}

c10::DeviceIndex exchange_device(c10::DeviceIndex index) {
  require_index(index);
  const c10::DeviceIndex before = current;
  current = index;
  return before;
}

}  // namespace simnpu

namespace c10::impl {
C10_REGISTER_GUARD_IMPL(PrivateUse1, simnpu::Guard)
}

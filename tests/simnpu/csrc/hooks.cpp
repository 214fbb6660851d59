// How torch asks for the device's generators, its pinned memory and its number of devices.
#include "device.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>

#include <algorithm>
#include <cstring>

namespace simnpu {
namespace {

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override {
    return true;
  }
  bool isAvailable() const override {
    return settings().num_devices > 0;
  }
  bool hasPrimaryContext(c10::DeviceIndex) const override {
    return true;
  }
  c10::DeviceIndex deviceCount() const override {
    return static_cast<c10::DeviceIndex>(settings().num_devices);
  }
  void setCurrentDevice(c10::DeviceIndex index) const override {
    exchange_device(index);
  }
  c10::DeviceIndex getCurrentDevice() const override {
    return current_device();
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    return index < 0 ? index : exchange_device(index);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return exchangeDevice(index);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    return default_generator(index);
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return new_generator(index);
  }
  bool isPinnedPtr(const void* data) const override {
    return is_pinned(data);
  }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    return pinned_allocator();
  }
  at::Device getDeviceFromPtr(void*) const override {
    return at::Device(kNpu, current_device());
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    c10::DataPtr data = device_allocator()->allocate(bytes);
    if (bytes > 0 && storage.nbytes() > 0) {
      std::memcpy(data.get(), storage.data(), std::min(bytes, storage.nbytes()));
    }
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(data));
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
  }
};

const bool registered = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  return true;
}();

}  // namespace
}  // namespace simnpu

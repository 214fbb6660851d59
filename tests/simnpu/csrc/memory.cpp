// Device memory, which is host memory that is counted, and pinned memory.
#include "device.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/alignment.h>
#include <c10/util/Exception.h>

#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>

namespace simnpu {
namespace {

constexpr int kMostDevices = 16;

std::mutex& mutex() {
  static std::mutex* found = new std::mutex();
  return *found;
}

double mebibytes(int64_t bytes) {
  return static_cast<double>(bytes) / (1 << 20);
}

void count(c10::DeviceIndex index, int64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex());
  Memory& memory = memory_of(index);
  // A RuntimeError in these words, as many versions of the real plugin raise it: no OutOfMemoryError.
  TORCH_CHECK(
      settings().memory_bytes == 0 || memory.allocated + bytes <= settings().memory_bytes,
      "NPU out of memory. Tried to allocate ", mebibytes(bytes), " MiB (NPU ", static_cast<int>(index), "; ",
      mebibytes(settings().memory_bytes), " MiB total capacity; ", mebibytes(memory.allocated),
      " MiB already allocated)");
  memory.allocated += bytes;
  memory.peak = std::max(memory.peak, memory.allocated);
  ++memory.num_allocations;
}

void uncount(c10::DeviceIndex index, int64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex());
  memory_of(index).allocated -= bytes;
}

struct Block {
  void* data;
  int64_t bytes;
  c10::DeviceIndex index;
};

void release_block(void* context) {
  std::unique_ptr<Block> block(static_cast<Block*>(context));
  uncount(block->index, block->bytes);
  std::free(block->data);
}

void* aligned(size_t bytes) {
  void* data = nullptr;
  TORCH_CHECK(posix_memalign(&data, c10::gAlignment, bytes) == 0, "NPU out of memory: the host has none left");
  return data;
}

struct DeviceAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    const c10::DeviceIndex index = current_device();
    const c10::Device device(kNpu, index);
    if (bytes == 0) {
      return {nullptr, nullptr, &c10::detail::deleteNothing, device};
    }
    count(index, static_cast<int64_t>(bytes));
    auto* block = new Block{aligned(bytes), static_cast<int64_t>(bytes), index};
    return {block->data, block, &release_block, device};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return nullptr;
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
};

std::map<const void*, size_t>& pinned_blocks() {
  static auto* found = new std::map<const void*, size_t>();
  return *found;
}

void release_pinned(void* data) {
  std::lock_guard<std::mutex> lock(mutex());
  pinned_blocks().erase(data);
  std::free(data);
}

struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    const int64_t fails_at = settings().pinned_fails_at_step;
    TORCH_CHECK(fails_at == 0 || steps() + 1 < fails_at, "NPU function error: pinned memory: unrecognized error");
    void* data = aligned(std::max<size_t>(bytes, 1));
    std::lock_guard<std::mutex> lock(mutex());
    pinned_blocks()[data] = std::max<size_t>(bytes, 1);
    return {data, data, &release_pinned, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return &release_pinned;
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
};

struct Adopted {
  c10::Storage host;
  int64_t bytes;
  c10::DeviceIndex index;
};

void release_adopted(void* context) {
  std::unique_ptr<Adopted> adopted(static_cast<Adopted*>(context));
  uncount(adopted->index, adopted->bytes);
}

}  // namespace

Memory& memory_of(c10::DeviceIndex index) {
  static auto* found = new std::array<Memory, kMostDevices>();
  return found->at(static_cast<size_t>(index));
}

int64_t total_memory() {
  if (settings().memory_bytes > 0) {
    return settings().memory_bytes;
  }
  return static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<int64_t>(sysconf(_SC_PAGESIZE));
}

c10::Allocator* device_allocator() {
  static auto* found = new DeviceAllocator();
  return found;
}

c10::Allocator* pinned_allocator() {
  static auto* found = new PinnedAllocator();
  return found;
}

bool is_pinned(const void* data) {
  std::lock_guard<std::mutex> lock(mutex());
  auto after = pinned_blocks().upper_bound(data);
  if (after == pinned_blocks().begin()) {
    return false;
  }
  const auto& [start, bytes] = *std::prev(after);
  return data < static_cast<const char*>(start) + bytes;
}

c10::DataPtr adopt(c10::Storage host, c10::DeviceIndex index) {
  const auto bytes = static_cast<int64_t>(host.nbytes());
  count(index, bytes);
  void* data = host.mutable_data();
  auto* adopted = new Adopted{std::move(host), bytes, index};
  return {data, adopted, &release_adopted, c10::Device(kNpu, index)};
}

}  // namespace simnpu

namespace c10 {
REGISTER_ALLOCATOR(DeviceType::PrivateUse1, simnpu::device_allocator())
}

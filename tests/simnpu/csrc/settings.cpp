// The settings, and what happens before each kernel.
#include "device.h"

#include <c10/util/Exception.h>

#include <chrono>
#include <cstdlib>
#include <mutex>
#include <sstream>

namespace simnpu {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

int64_t number(const char* name, int64_t otherwise) {
  const std::string value = variable(name);
  return value.empty() ? otherwise : std::stoll(value);
}

// ASCEND_RT_VISIBLE_DEVICES names the devices that are seen; without it all are.
int num_visible(int num_devices) {
  if (std::getenv("ASCEND_RT_VISIBLE_DEVICES") == nullptr) {
    return num_devices;
  }
  std::stringstream names(variable("ASCEND_RT_VISIBLE_DEVICES"));
  int found = 0;
  for (std::string name; std::getline(names, name, ',');) {
    found += std::stoi(name) < num_devices;
  }
  return found;
}

Settings from_environment() {
  Settings found;
  found.num_devices = num_visible(static_cast<int>(number("SIMNPU_DEVICES", 1)));
  found.latency_seconds = static_cast<double>(number("SIMNPU_LATENCY_MICROSECONDS", 0)) * 1e-6;
  found.memory_bytes = number("SIMNPU_MEMORY_BYTES", 0);
  std::stringstream names(variable("SIMNPU_MISSING"));
  for (std::string name; std::getline(names, name, ',');) {
    found.missing.insert(name);
  }
  found.sdpa_nan = variable("SIMNPU_SDPA_NAN");
  found.bf16_bits = static_cast<int>(number("SIMNPU_BF16_BITS", 7));
  found.pinned_fails_at_step = number("SIMNPU_PINNED_FAILS_AT_STEP", 0);
  found.lost_at_step = number("SIMNPU_LOST_AT_STEP", 0);
  return found;
}

struct Counts {
  std::mutex mutex;
  std::map<std::string, int64_t> by_name;
};

Counts& counts() {
  static Counts* found = new Counts();  // outlives what is torn down at exit
  return *found;
}

}  // namespace

Settings& settings() {
  static Settings* found = new Settings(from_environment());
  return *found;
}

std::atomic<int64_t>& steps() {
  static std::atomic<int64_t> found{0};
  return found;
}

void require_device() {
  const int64_t lost = settings().lost_at_step;
  // The words are those that users of the real device have reported.
  TORCH_CHECK(
      lost == 0 || steps() < lost,
      "NPU function error: AclrtSynchronizeStreamWithTimeout, error code is 507010\n",
      "[ERROR] ERR00100 PTA call acl api failed\n[Error]: lost heartbeat");
}

void launch(const std::string& name) {
  const auto start = std::chrono::steady_clock::now();
  require_device();
  const std::string bare = name.substr(0, name.find('.'));
  TORCH_CHECK_NOT_IMPLEMENTED(
      settings().missing.count(bare) == 0,
      "Could not run 'aten::", name, "' with arguments from the 'npu' backend: there is no kernel for it");
  {
    std::lock_guard<std::mutex> lock(counts().mutex);
    ++counts().by_name[name];
  }
  const std::chrono::duration<double> latency(settings().latency_seconds);
  while (std::chrono::steady_clock::now() - start < latency) {
  }
}

std::map<std::string, int64_t> launches() {
  std::lock_guard<std::mutex> lock(counts().mutex);
  return counts().by_name;
}

void reset_launches() {
  std::lock_guard<std::mutex> lock(counts().mutex);
  counts().by_name.clear();
}

}  // namespace simnpu

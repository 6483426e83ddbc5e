// Memory, streams, events, launches and graphs on a real GPU; skipped where there is none.
#include "gpu/device.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "ops/cuda/modules.h"
#include "ops/cuda/params.h"

namespace firesteel::gpu {
namespace {

class DeviceTest : public testing::Test {
 protected:
  void SetUp() override {
    auto device = Device::open(0);
    if (!device.ok()) GTEST_SKIP() << device.error().message;
    device_ = std::move(device).value();
    auto stream = device_->stream();
    ASSERT_TRUE(stream.ok());
    stream_ = std::move(stream).value();
  }
  /// The kernel x += y of the backend, as a kernel to launch.
  Result<Kernel<cuda::AddParams>> add_kernel() {
    for (const EmbeddedModule& m : embedded_modules()) {
      if (m.name != "elementwise") continue;
      ASSIGN_OR_RETURN(module_, device_->load(m));
      return device_->kernel<cuda::AddParams>(module_, "add");
    }
    return Error{ErrorCode::kUnsupported, "no GPU code in this build"};
  }
  std::unique_ptr<Device> device_;
  Stream stream_;
  Module module_;
};

TEST_F(DeviceTest, DescribesItself) {
  EXPECT_GE(device_->info().arch, 80);
  EXPECT_GT(device_->info().multiprocessors, 0);
  EXPECT_GT(device_->info().memory_bytes, size_t{1} << 30);
  const auto memory = device_->memory();
  ASSERT_TRUE(memory.ok());
  EXPECT_GT(memory.value().free, 0u);
  EXPECT_LE(memory.value().free, memory.value().total);
}

TEST_F(DeviceTest, CopiesBothWays) {
  constexpr size_t kCount = (1 << 20) + 3;
  auto a = device_->allocate(kCount * 4, "a"), b = device_->allocate(kCount * 4, "b");
  auto pinned = device_->allocate_pinned(kCount * 4, "host");
  ASSERT_TRUE(a.ok() && b.ok() && pinned.ok());
  auto* host = reinterpret_cast<uint32_t*>(pinned.value().data());
  for (size_t i = 0; i < kCount; ++i) host[i] = static_cast<uint32_t>(i * 2654435761u);
  std::vector<uint32_t> back(kCount);
  ASSERT_TRUE(device_->to_device(stream_, a.value().data(), host, kCount * 4).ok());
  ASSERT_TRUE(device_->on_device(stream_, b.value().data(), a.value().data(), kCount * 4).ok());
  ASSERT_TRUE(device_->fill(stream_, a.value().data(), 0x5A, kCount * 4).ok());
  ASSERT_TRUE(device_->to_host(stream_, back.data(), b.value().data(), kCount * 4).ok());
  ASSERT_TRUE(stream_.synchronize().ok());
  for (size_t i = 0; i < kCount; ++i) ASSERT_EQ(back[i], static_cast<uint32_t>(i * 2654435761u));
  ASSERT_TRUE(device_->to_host(stream_, back.data(), a.value().data(), kCount * 4).ok());
  ASSERT_TRUE(stream_.synchronize().ok());
  for (size_t i = 0; i < kCount; ++i) ASSERT_EQ(back[i], 0x5A5A5A5Au);
}

TEST_F(DeviceTest, TooMuchMemoryIsOutOfMemory) {
  const auto buffer = device_->allocate(size_t{1} << 46, "a mistake");
  ASSERT_FALSE(buffer.ok());
  EXPECT_EQ(buffer.error().code, ErrorCode::kOutOfMemory);
  EXPECT_NE(buffer.error().message.find("a mistake"), std::string::npos);
}

TEST_F(DeviceTest, UnknownKernelIsAnError) {
  for (const EmbeddedModule& m : embedded_modules()) {
    if (m.name != "elementwise") continue;
    auto module = device_->load(m);
    ASSERT_TRUE(module.ok()) << module.error().message;
    EXPECT_FALSE(device_->kernel<cuda::AddParams>(module.value(), "no_such_kernel").ok());
  }
}

TEST_F(DeviceTest, LaunchesAndReplaysGraphs) {
  auto kernel = add_kernel();
  if (!kernel.ok()) GTEST_SKIP() << kernel.error().message;
  constexpr size_t kCount = 1000;
  auto x = device_->allocate(kCount * 2, "x"), y = device_->allocate(kCount * 4, "y");
  ASSERT_TRUE(x.ok() && y.ok());
  std::vector<float> ones(kCount, 1.0f);
  ASSERT_TRUE(device_->to_device(stream_, y.value().data(), ones.data(), kCount * 4).ok());
  ASSERT_TRUE(device_->fill(stream_, x.value().data(), 0, kCount * 2).ok());
  const cuda::AddParams params{reinterpret_cast<cuda::Bits16*>(x.value().data()),
                               reinterpret_cast<const float*>(y.value().data()), kCount};
  const LaunchShape shape{{4}, 256};
  ASSERT_TRUE(device_->launch(stream_, kernel.value(), shape, params).ok());
  ASSERT_TRUE(stream_.synchronize().ok());

  ASSERT_TRUE(device_->capture_begin(stream_).ok());
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(device_->launch(stream_, kernel.value(), shape, params).ok());
  auto graph = device_->capture_end(stream_);
  ASSERT_TRUE(graph.ok()) << graph.error().message;
  auto begin = device_->event(true), end = device_->event(true);
  ASSERT_TRUE(begin.ok() && end.ok());
  ASSERT_TRUE(begin.value().record(stream_).ok());
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(graph.value().replay(stream_).ok());
  ASSERT_TRUE(end.value().record(stream_).ok());
  std::vector<uint16_t> back(kCount);
  ASSERT_TRUE(device_->to_host(stream_, back.data(), x.value().data(), kCount * 2).ok());
  ASSERT_TRUE(stream_.synchronize().ok());
  // 1 + 3 · 5 = 16 in bf16; capturing itself ran nothing.
  for (const uint16_t v : back) ASSERT_EQ(v, 0x4180);
  const auto ms = begin.value().elapsed_ms(end.value());
  ASSERT_TRUE(ms.ok());
  EXPECT_GT(ms.value(), 0.0f);
}

TEST_F(DeviceTest, EventsOrderStreams) {
  auto kernel = add_kernel();
  if (!kernel.ok()) GTEST_SKIP() << kernel.error().message;
  auto side = device_->stream();
  auto forked = device_->event(false), joined = device_->event(false);
  ASSERT_TRUE(side.ok() && forked.ok() && joined.ok());
  constexpr size_t kCount = size_t{1} << 24;
  auto x = device_->allocate(kCount * 2, "x"), y = device_->allocate(kCount * 4, "y");
  ASSERT_TRUE(x.ok() && y.ok());
  const cuda::AddParams params{reinterpret_cast<cuda::Bits16*>(x.value().data()),
                               reinterpret_cast<const float*>(y.value().data()), kCount};
  ASSERT_TRUE(device_->fill(stream_, x.value().data(), 0, kCount * 2).ok());
  std::vector<float> ones(kCount, 1.0f);
  ASSERT_TRUE(device_->to_device(stream_, y.value().data(), ones.data(), kCount * 4).ok());
  ASSERT_TRUE(forked.value().record(stream_).ok());
  ASSERT_TRUE(forked.value().wait_on(side.value()).ok());
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(device_->launch(side.value(), kernel.value(), {{kCount / 256}, 256}, params).ok());
  }
  ASSERT_TRUE(joined.value().record(side.value()).ok());
  ASSERT_TRUE(joined.value().wait_on(stream_).ok());
  std::vector<uint16_t> back(kCount);
  ASSERT_TRUE(device_->to_host(stream_, back.data(), x.value().data(), kCount * 2).ok());
  ASSERT_TRUE(stream_.synchronize().ok());
  for (size_t i = 0; i < kCount; i += 4099) ASSERT_EQ(back[i], 0x4080);
}

}  // namespace
}  // namespace firesteel::gpu

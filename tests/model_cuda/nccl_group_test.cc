// One rank's group of whatever libnccl.so.2 is here, NCCL itself or the stand-in: formed, used, recorded and
// given up on a GPU.
#include <thread>

#include "comm/nccl_group.h"
#include "comm/rendezvous.h"
#include "cuda.h"
#include "gpu/device.h"

namespace firesteel::test {
namespace {

TEST(CudaNcclGroup, FormsGathersIsRecordedAndGivenUp) {
  NEEDS_GPU();
  const auto nccl = load_nccl();
  if (!nccl.ok()) GTEST_SKIP() << nccl.error().message;
  std::printf("NCCL %s\n", nccl_version_text((*nccl)->version).c_str());
  const auto device = gpu::Device::open(0);
  ASSERT_TRUE(device.ok());
  for (int round = 0; round < 2; ++round) {  // a group can be formed again
    auto comms = make_local_group(1);
    auto group = NcclGroup::form(**nccl, *comms[0], 0, std::chrono::seconds(30));
    ASSERT_TRUE(group.ok()) << group.error().message;
    constexpr size_t kCount = 1000;
    auto stream = (*device)->stream();
    auto part = (*device)->allocate(kCount * 4, "part"), all = (*device)->allocate(kCount * 4, "all");
    auto host = (*device)->allocate_pinned(kCount * 4, "host");
    ASSERT_TRUE(stream.ok() && part.ok() && all.ok() && host.ok());
    auto* const values = reinterpret_cast<float*>(host->data());
    const auto put = [&](float first) {
      for (size_t i = 0; i < kCount; ++i) values[i] = first + static_cast<float>(i);
      ASSERT_TRUE((*device)->to_device(*stream, part->data(), values, kCount * 4).ok());
      ASSERT_TRUE(stream->synchronize().ok());
    };
    const auto expect = [&](float first) {
      ASSERT_TRUE((*device)->to_host(*stream, values, all->data(), kCount * 4).ok());
      ASSERT_TRUE(stream->synchronize().ok());
      for (size_t i = 0; i < kCount; ++i) ASSERT_EQ(values[i], first + static_cast<float>(i));
    };
    const auto gather = [&] {
      return (*group)->gather(reinterpret_cast<const float*>(part->data()),
                              reinterpret_cast<float*>(all->data()), kCount, stream->handle());
    };
    put(5);
    ASSERT_TRUE(gather().ok());
    expect(5);
    ASSERT_TRUE((*device)->capture_begin(*stream).ok());
    const Status recorded = gather();
    auto graph = (*device)->capture_end(*stream);
    ASSERT_TRUE(recorded.ok()) << recorded.error().message;
    ASSERT_TRUE(graph.ok()) << graph.error().message;
    for (const float first : {7.0f, 9.0f}) {
      put(first);
      ASSERT_TRUE(graph->replay(*stream).ok());
      expect(first);
    }
    EXPECT_TRUE((*group)->check().ok());
    // Another thread gives the group up; it is let go when no recording holds it.
    std::thread ending([&] { (*group)->abort(); });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    *graph = gpu::Graph();
    ending.join();
    EXPECT_EQ(gather().error().code, ErrorCode::kUnavailable);
  }
}

}  // namespace
}  // namespace firesteel::test

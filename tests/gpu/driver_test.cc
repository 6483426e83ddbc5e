// What a user reads where no driver is. Needs no GPU.
#include "gpu/driver.h"

#include <gtest/gtest.h>

#include "gpu/device.h"

namespace firesteel::gpu {
namespace {

TEST(Driver, MissingLibraryIsOneLineThatSaysWhatToDo) {
  const auto driver = load_driver_from("libcuda-that-does-not-exist.so.1");
  ASSERT_FALSE(driver.ok());
  EXPECT_EQ(driver.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(driver.error().message.find("--device cpu"), std::string::npos);
  EXPECT_EQ(driver.error().message.find('\n'), std::string::npos);
}

TEST(Driver, LibraryWithoutItsFunctionsIsNamed) {
  const auto driver = load_driver_from("libc.so.6");
  ASSERT_FALSE(driver.ok());
  EXPECT_EQ(driver.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(driver.error().message.find("cuInit"), std::string::npos);
}

TEST(Driver, DeviceOutOfRange) {
  const auto device = Device::open(1 << 20);
  ASSERT_FALSE(device.ok());
  EXPECT_TRUE(device.error().code == ErrorCode::kUnavailable ||
              device.error().code == ErrorCode::kInvalidArgument);
  EXPECT_EQ(device.error().message.find('\n'), std::string::npos);
}

}  // namespace
}  // namespace firesteel::gpu

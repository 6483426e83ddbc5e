// GPU code carried inside the program: one image per architecture and a PTX text for the others.
//
// cmake/Cuda.cmake compiles each .cu file, embeds the results and writes the table of an EmbeddedModule list.
// Constant data of the program, any thread.
#pragma once

#include <span>
#include <string_view>

namespace firesteel::gpu {

struct EmbeddedImage {
  int arch = 0;  // compute capability × 10 of a cubin (90, 121); 0: PTX
  std::string_view bytes;
};

struct EmbeddedModule {
  std::string_view name;  // the .cu file without its ending
  std::span<const EmbeddedImage> images;
};

}  // namespace firesteel::gpu

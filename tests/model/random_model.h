// Writes glm5_next checkpoints with random weights, of any shape that a config describes.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tensor/dtype.h"

namespace firesteel::test {

struct WrittenTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes;
};

struct RandomModelOptions {
  uint64_t seed = 1;
  std::string prefix = "model.language_model.";
  double gain = 1.5;    // standard deviation of matrices is gain / √fan-in
  int files = 1;        // more than one: with an index
  bool visual = false;  // adds tensors of a vision tower
  /// Last change before writing: drop, reshape, retype.
  std::function<void(std::vector<WrittenTensor>&)> edit;
};

/// The configuration of spec/model.md 7.1: six layers and an MTP layer at odd widths.
nlohmann::ordered_json model_a_config();
/// The tensors that a config asks for.
std::vector<WrittenTensor> random_tensors(const nlohmann::ordered_json& config,
                                          const RandomModelOptions& options);
/// Writes config.json and the tensors into a fresh temporary directory and returns it; removed when the test
/// program ends.
std::string write_random_model(const nlohmann::ordered_json& config, const RandomModelOptions& options = {});

WrittenTensor& find_tensor(std::vector<WrittenTensor>& tensors, const std::string& name_end);
void drop_tensor(std::vector<WrittenTensor>& tensors, const std::string& name_end);

}  // namespace firesteel::test

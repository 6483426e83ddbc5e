// Feeds a fuzz target random bytes, without coverage and hence several times as fast as libFuzzer: for
// targets that compose their input from choices, where any bytes mean something (scripts/fuzz.sh random=N). A
// quarter of the bytes are small. An input that aborts is left in FILE.
//   TARGET INPUTS SEED LONGEST FILE
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

std::vector<uint8_t> input;
const char* file = nullptr;

void keep_input(int) {
  if (std::FILE* out = std::fopen(file, "wb")) {
    std::fwrite(input.data(), 1, input.size(), out);
    std::fclose(out);
  }
  _exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  const uint64_t inputs = std::strtoull(argv[1], nullptr, 10), longest = std::strtoull(argv[3], nullptr, 10);
  file = argv[4];
  for (const int signal : {SIGABRT, SIGSEGV, SIGFPE, SIGBUS}) std::signal(signal, keep_input);
  std::mt19937_64 random(std::strtoull(argv[2], nullptr, 10));
  for (uint64_t i = 0; i < inputs; ++i) {
    input.resize(1 + random() % longest);
    for (uint8_t& byte : input) {
      const uint64_t r = random();
      byte = static_cast<uint8_t>(r % 4 == 0 ? (r >> 8) % 8 : r >> 8);
    }
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  std::printf("stat::number_of_executed_units: %llu\n", static_cast<unsigned long long>(inputs));
}

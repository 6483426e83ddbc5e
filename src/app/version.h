// Which build this is. Plain constants, any thread.
#pragma once

namespace firesteel {

const char* program_version();
const char* program_commit();
/// "x86-64" or "aarch64".
const char* program_architecture();

}  // namespace firesteel

# Writes the commit of the tree into OUTPUT, touching it only when it changed: run at every build, so that a program
# never names an older commit than it was built from (ranks compare it).
execute_process(COMMAND git rev-parse --short HEAD WORKING_DIRECTORY ${SOURCE} OUTPUT_VARIABLE commit
                OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
execute_process(COMMAND git diff --quiet HEAD -- src WORKING_DIRECTORY ${SOURCE} RESULT_VARIABLE changed ERROR_QUIET)
set(carried ${SOURCE}/build/gpu-dev/commit)  # of a tree without its history: scripts/gpu.sh pack
if(NOT commit AND EXISTS ${carried})
  file(STRINGS ${carried} commit LIMIT_COUNT 1)
elseif(NOT commit)
  set(commit "no commit")
elseif(changed)
  string(APPEND commit "+")
endif()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "#define FIRESTEEL_COMMIT \"@commit@\"\n" @ONLY)

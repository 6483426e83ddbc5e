#!/usr/bin/env bash
# Prints, for each number under "Done when" of first light, the ranks and the API, which tests covered it and how they ended.
#   scripts/done_report.sh CTEST_OUTPUT …     (what ctest printed; fuzz figures from build/reports/fuzz.txt)
set -euo pipefail
cd "$(dirname "$0")/.."
results=$(cat "$@" 2>/dev/null | grep -aE 'Test +#[0-9]+:' || true)

# covers NUMBER TITLE TEST[=what it ran] …
covers() {
  echo "Done $1: $2"
  shift 2
  local entry name what line
  for entry in "$@"; do
    name=${entry%%=*}
    what=""
    [ "$entry" = "$name" ] || what=" (${entry#*=})"
    line=$(printf '%s\n' "$results" | grep -aE "Test +#[0-9]+: $name " | sed -E 's/.*\.\.\.+ *//; s/ +/ /g' | paste -sd '; ' || true)
    echo "  $name$what: ${line:-did not run}"
  done
}
covers 1 "golden models: logits, layers, choices, MTP, EXL3 matrices" \
  "model_golden_test=203 positions of four models, one pass, split, token by token" model_mtp_test exl3_test
covers 2 "requests alone, in company, in any split, resumed" \
  "engine_exactness_tiny=12 of the 320; all by scripts/exactness.sh" \
  "engine_exactness_demo=8 of the 320; all by scripts/exactness.sh" model_exact_test ops_invariance_test \
  "engine_reply_ids=24 replies against recorded ids; also under qemu"
covers 3 "the bundled model: golden replies, and over HTTP" model_demo_test e2e_openai_chat
covers 4 "tokenizer and templates against their oracles" tokenizer_oracle template_oracle prompt_test
covers 5 "the openai client" e2e_openai_chat
echo "Done 6: load"
echo "  not run here: scripts/load_test.sh (figures in docs/testing.md)"
echo "Done 7: sanitizers and fuzz targets"
echo "  sanitizers not run here: scripts/sanitize.sh (figures in docs/testing.md)"
sed 's/^/  /' build/reports/fuzz.txt 2>/dev/null || echo "  fuzz targets: did not run"
echo "Done 8: measured speeds"
echo "  not run here: bench programs (figures in docs/performance.md)"
echo "Ranks"
covers "ranks 1" "the same ids on 1, 2 and 4 ranks over threads, shared memory and TCP; the FP8 form" \
  "engine_ranks_tiny=3 of the 320; all by scripts/ranks.sh" engine_ranks_tiny-fp8 engine_ranks_demo \
  "model_ranks_test=logits, hidden rows and MTP rows of five models, bit for bit" decode_group_sampler_test comm_test
covers "ranks 2" "killed, stopped, slow, restarted, differing ranks; faulty links" \
  "engine_rank_faults=12 points of each fault; 50 by scripts/ranks.sh" e2e_ranks engine_record_test
echo "Done ranks 3: network namespaces"
echo "  not run here: scripts/netns_test.sh (figures in docs/testing.md)"
covers "ranks 4" "the model-based test of the scheduler" engine_scheduler_test
echo "Done ranks 5: soak"
echo "  not run here: scripts/soak.sh (figures in docs/testing.md)"
echo "API"
covers "API 1" "streamed equals whole at every cut; rules, logprobs, grammars with any number of tokens a step" \
  "transcripts_test=648 transcripts, at every cut" reply_test api_chat_test api_responses_test api_structured_test \
  engine_rules_test decode_reply_rules_test
covers "API 2" "grammar engine: walks, masks, patterns against their oracles" \
  "grammar_walks_oracle=the first of 2,000 schemas; all by scripts/grammar_walks.sh" grammar_xgrammar_oracle grammar_regex_oracle grammar_test
covers "API 3" "real clients" e2e_openai_chat e2e_openai_responses e2e_anthropic_sdk e2e_ai_sdk e2e_agent e2e_structured
covers "API 4" "hostile requests" e2e_hostile http_parser_test http_server_test
covers "API 6" "reported faults (docs/reports.md); lost reasoning and markup put back; check tools" \
  reports_test api_memory_test e2e_check_tools
echo "GPU"
echo "  ops_cuda_test, model_cuda_test: skipped here, no GPU (scripts/gpu.sh; figures in docs/performance-gpu.md)"
covers "GPU 2" "what 4-bit matrices and FP8 KV cost, on the CPU's definition of them" model_dense_test model_kv_quality_test \
  ops_kv_format_test narrow_test cuda_pack_test

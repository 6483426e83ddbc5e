// Codex, the program, does a tool task of two steps against replies from a script: it runs a command in its folder, sends
// the result back and prints the answer. Skipped where the package is not there; the test never fetches it:
//   npm install --no-save @openai/codex
//   node codex.mjs SCRIPTED_SERVER MODEL_DIR [PROGRAM]
import { agentTask } from './agent_task.mjs';

const [scripted, modelDir, program] = process.argv.slice(2);
const triple = { x64: 'x86_64', arm64: 'aarch64' }[process.arch];
await agentTask({
  name: 'Codex', scripted, modelDir,
  program: program ?? new URL(`node_modules/@openai/codex-linux-${process.arch}/vendor/${triple}-unknown-linux-musl/bin/codex`,
    import.meta.url).pathname,
  call: ['exec_command', { cmd: 'cat secret.txt && echo was here > seen.txt' }],
  args: (task) => ['exec', '--skip-git-repo-check', '--dangerously-bypass-approvals-and-sandbox', task],
  files: (url) => ({ '.codex/config.toml': `model = "demo"
model_provider = "firesteel"
model_context_window = 262144

[model_providers.firesteel]
name = "Firesteel"
base_url = "${url}/v1"
wire_api = "responses"
env_key = "FIRESTEEL_API_KEY"
` }),
  env: () => ({ FIRESTEEL_API_KEY: 'none' }),
});

// Claude Code, the program, does a tool task of two steps against replies from a script: it runs a command in its folder,
// sends the result back and prints the answer. Skipped where the package is not there; the test never fetches it:
//   npm install --no-save @anthropic-ai/claude-code-linux-x64
//   node claude_code.mjs SCRIPTED_SERVER MODEL_DIR [PROGRAM]
import { agentTask } from './agent_task.mjs';

const [scripted, modelDir, program] = process.argv.slice(2);
await agentTask({
  name: 'Claude Code', scripted, modelDir,
  program: program ?? new URL(`node_modules/@anthropic-ai/claude-code-linux-${process.arch}/claude`, import.meta.url).pathname,
  call: ['Bash', { command: 'cat secret.txt && echo was here > seen.txt', description: 'Reads the file' }],
  args: (task) => ['-p', task, '--allowedTools', 'Bash', '--output-format', 'text'],
  env: (url) => ({
    ANTHROPIC_BASE_URL: url, ANTHROPIC_AUTH_TOKEN: 'none', ANTHROPIC_MODEL: 'demo', ANTHROPIC_SMALL_FAST_MODEL: 'demo',
    ANTHROPIC_DEFAULT_OPUS_MODEL: 'demo', ANTHROPIC_DEFAULT_SONNET_MODEL: 'demo', ANTHROPIC_DEFAULT_HAIKU_MODEL: 'demo',
    DISABLE_AUTOUPDATER: '1', CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: '1', DISABLE_TELEMETRY: '1', DISABLE_ERROR_REPORTING: '1',
  }),
});

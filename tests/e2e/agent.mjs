// OpenCode, a real coding agent, does a tool task of two steps against replies from a script.
//   node agent.mjs SCRIPTED_SERVER MODEL_DIR
import { agentTask } from './agent_task.mjs';

const [scripted, modelDir] = process.argv.slice(2);
await agentTask({
  name: 'OpenCode (npm ci in tests/e2e)', scripted, modelDir,
  program: new URL(`node_modules/opencode-linux-${process.arch}/bin/opencode`, import.meta.url).pathname,
  call: ['bash', { command: 'cat secret.txt && echo was here > seen.txt', description: 'Reads the file' }],
  args: (task) => ['run', task],
  files: (url) => ({ 'work/opencode.json': JSON.stringify({
    autoupdate: false, share: 'disabled', model: 'firesteel/demo', small_model: 'firesteel/demo',
    provider: { firesteel: { npm: '@ai-sdk/openai-compatible', name: 'Firesteel',
      options: { baseURL: `${url}/v1`, apiKey: 'none' },
      models: { demo: { name: 'demo', limit: { context: 200_000, output: 8_000 } } } } },
  }) }),
  env: () => ({ OPENCODE_DISABLE_MODELS_FETCH: '1', OPENCODE_DISABLE_AUTOUPDATE: '1', OPENCODE_DISABLE_DEFAULT_PLUGINS: '1',
    OPENCODE_DISABLE_LSP_DOWNLOAD: '1' }),
});

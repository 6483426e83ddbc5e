// OpenCode, a real coding agent, does a tool task of two steps against replies from a script: it runs a command in its
// folder, sends the result back and prints the answer. Twice, so that a second session is served too.
//   node agent.mjs SCRIPTED_SERVER MODEL_DIR
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { callText, run, serveScript } from './served.mjs';

const [scripted, modelDir] = process.argv.slice(2);
const arch = { x64: 'x64', arm64: 'arm64' }[process.arch];
const opencode = new URL(`node_modules/opencode-linux-${arch}/bin/opencode`, import.meta.url).pathname;
if (!existsSync(opencode)) {
  console.log('skipped: opencode is not installed (npm ci in tests/e2e)');
  process.exit(77);
}

const folder = mkdtempSync(join(tmpdir(), 'firesteel-agent-'));
const work = join(folder, 'work');
mkdirSync(work);
const server = await serveScript(scripted, modelDir, [
  { when: 'secret word', result: 'aurochs-17', reply: 'It says so.</think>The word is aurochs-17.' },
  { when: 'secret word', result: '', reply: '</think>The file says something else.' },
  { when: 'secret word', reply: `I read it.</think>Reading.${callText('bash',
    { command: 'cat secret.txt && echo was here > seen.txt', description: 'Reads the file' })}` },
  { reply: '</think>Nothing.' },
].map((line) => ({ ...line, cut: [3, 1, 9] })), ['--context', '400000']); // its own prompt is 11,000 tokens here

writeFileSync(join(work, 'opencode.json'), JSON.stringify({
  autoupdate: false, share: 'disabled', model: 'firesteel/demo', small_model: 'firesteel/demo',
  provider: { firesteel: { npm: '@ai-sdk/openai-compatible', name: 'Firesteel',
    options: { baseURL: `${server.url}/v1`, apiKey: 'none' },
    models: { demo: { name: 'demo', limit: { context: 200_000, output: 8_000 } } } } },
}));

function agent(task) {
  const env = { PATH: process.env.PATH, HOME: folder, OPENCODE_DISABLE_MODELS_FETCH: '1', OPENCODE_DISABLE_AUTOUPDATE: '1',
    OPENCODE_DISABLE_DEFAULT_PLUGINS: '1', OPENCODE_DISABLE_LSP_DOWNLOAD: '1' };
  return new Promise((resolve) => {
    const child = spawn(opencode, ['run', task], { cwd: work, env, stdio: ['ignore', 'pipe', 'pipe'] });
    const out = { stdout: '', stderr: '' };
    const late = setTimeout(() => child.kill('SIGKILL'), 120_000);
    child.stdout.on('data', (data) => (out.stdout += data));
    child.stderr.on('data', (data) => (out.stderr += data));
    child.on('close', (code) => (clearTimeout(late), resolve({ ...out, code })));
  });
}

/// What OpenCode did with the word that the file holds.
async function task(word) {
  writeFileSync(join(work, 'secret.txt'), `${word}\n`);
  rmSync(join(work, 'seen.txt'), { force: true });
  const result = await agent('Read secret.txt and tell me the secret word.');
  assert.equal(result.code, 0, `${result.stdout}\n${result.stderr}`);
  assert.equal(readFileSync(join(work, 'seen.txt'), 'utf8'), 'was here\n', 'the command ran');
  return result.stdout.trim();
}

const checks = {
  async 'a tool task in two steps'() {
    assert.match(await task('aurochs-17'), /The word is aurochs-17\.$/);
  },
  async 'the answer depends on the result'() {
    assert.match(await task('wisent-4'), /The file says something else\.$/);
  },
};
const passed = await run(checks);
const status = await server.stop();
rmSync(folder, { recursive: true, force: true });
process.exit(passed && status === 0 ? 0 : 1);

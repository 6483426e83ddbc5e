// A tool task of two steps for an agent program: it reads a file with a command and says what is in it; replies come from a
// script. Twice, so that the answer is seen to depend on the result and a second session is served too.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { callText, metrics, run, serveScript } from './served.mjs';

/// `call`: name and arguments of the agent's own command tool. `args(task)`: of the program. `files(url)`: by their path in
/// the home folder; `env(url)`: beside PATH and HOME. Ends the process: 0 passed, 1 failed, 77 the program is not there.
export async function agentTask({ name, program, scripted, modelDir, call, args, env = () => ({}), files = () => ({}) }) {
  if (!existsSync(program)) {
    console.log(`skipped: ${name} is not installed`);
    process.exit(77);
  }
  const folder = mkdtempSync(join(tmpdir(), 'firesteel-agent-'));
  const work = join(folder, 'work');
  mkdirSync(work);
  const server = await serveScript(scripted, modelDir, [
    { when: 'secret word', result: 'aurochs-17', reply: 'It says so.</think>The word is aurochs-17.' },
    { when: 'secret word', result: '', reply: '</think>The file says something else.' },
    { when: 'secret word', reply: `I read it.</think>Reading.${callText(...call)}` },
    { reply: '</think>Nothing.' },
  ].map((line) => ({ ...line, cut: [3, 1, 9] })), ['--context', '400000']); // agents' own prompts are long
  for (const [path, text] of Object.entries(files(server.url))) {
    mkdirSync(dirname(join(folder, path)), { recursive: true });
    writeFileSync(join(folder, path), text);
  }

  const agent = (task) => new Promise((resolve) => {
    const child = spawn(program, args(task), { cwd: work, stdio: ['ignore', 'pipe', 'pipe'],
      env: { PATH: process.env.PATH, HOME: folder, ...env(server.url) } });
    const out = { stdout: '', stderr: '' };
    const late = setTimeout(() => child.kill('SIGKILL'), 240_000);
    child.stdout.on('data', (data) => (out.stdout += data));
    child.stderr.on('data', (data) => (out.stderr += data));
    child.on('close', (code) => (clearTimeout(late), resolve({ ...out, code })));
  });
  const told = async (word) => {
    writeFileSync(join(work, 'secret.txt'), `${word}\n`);
    rmSync(join(work, 'seen.txt'), { force: true });
    const result = await agent('Read secret.txt and tell me the secret word.');
    const all = `${result.stdout}\n${result.stderr}\n${server.log.slice(-20).join('\n')}`;
    assert.equal(result.code, 0, all);
    assert.ok(existsSync(join(work, 'seen.txt')), all);
    assert.equal(readFileSync(join(work, 'seen.txt'), 'utf8'), 'was here\n', 'the command ran');
    return result.stdout.trim();
  };
  const passed = await run({
    async 'a tool task in two steps'() {
      assert.match(await told('aurochs-17'), /The word is aurochs-17\.$/);
    },
    async 'the answer depends on the result'() {
      assert.match(await told('wisent-4'), /The file says something else\.$/);
    },
    async 'no request was refused'() {
      const refused = [...await metrics(server.url)].filter(([series]) => series.startsWith('firesteel_refused_total'));
      assert.deepEqual(refused.filter(([series]) => !series.includes('unknown_url')), []); // they ask what else is there
    },
  });
  const status = await server.stop();
  rmSync(folder, { recursive: true, force: true });
  process.exit(passed && status === 0 ? 0 : 1);
}

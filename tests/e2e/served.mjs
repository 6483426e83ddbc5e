// Starts a server on a free port and stops it again; used by every end-to-end test.
import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';

/// `firesteel serve`.
export const serve = (program, args) => start(program, ['serve', ...args]);

/// `scripted_server` with the lines of a script (docs/scripted.md).
export async function serveScript(program, modelDir, lines, args = []) {
  const folder = mkdtempSync(join(tmpdir(), 'firesteel-script-'));
  const file = join(folder, 'script.jsonl');
  writeFileSync(file, lines.map((line) => JSON.stringify(line)).join('\n'));
  try {
    return await start(program, ['--model', modelDir, '--script', file, ...args]); // read before it listens
  } finally {
    rmSync(folder, { recursive: true });
  }
}

/// A call as the model writes it.
export const callText = (name, args = {}) => `<tool_call>${name}${Object.entries(args).map(([key, value]) =>
  `<arg_key>${key}</arg_key><arg_value>${typeof value === 'string' ? value : JSON.stringify(value)}</arg_value>`)
  .join('')}</tool_call>`;

async function start(program, args) {
  const child = spawn(program, [...args, '--port', '0'], { stdio: ['ignore', 'inherit', 'pipe'] });
  const log = [];
  const url = await new Promise((resolve, reject) => {
    createInterface({ input: child.stderr }).on('line', (line) => {
      log.push(line);
      const match = line.match(/listening on (http:\/\/\S+)/);
      if (match) resolve(match[1]);
    });
    child.on('exit', (code) => reject(new Error(`the server ended with ${code}:\n${log.join('\n')}`)));
    child.on('error', reject);
  });
  const stop = async () => {
    if (child.exitCode !== null || child.signalCode !== null) return child.exitCode ?? child.signalCode;
    const ended = new Promise((resolve) => child.on('exit', (code, signal) => resolve(code ?? signal)));
    child.kill('SIGTERM');
    return ended;
  };
  try {
    await ready(url, child);
  } catch (error) {
    await stop();
    throw new Error(`${error.message}\n${log.join('\n')}`);
  }
  return { url, stop, log, pid: child.pid };
}

async function ready(url, child) {
  for (;;) {
    if (child.exitCode !== null) throw new Error(`the server ended with ${child.exitCode}`);
    const reply = await fetch(`${url}/ready`);
    const body = await reply.json();
    if (reply.status === 200) return;
    if (reply.status !== 503 || body.error?.code !== 'loading') throw new Error(`/ready: ${JSON.stringify(body)}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

/// /metrics as a map from series to value.
export async function metrics(url) {
  const reply = await fetch(`${url}/metrics`);
  if (reply.status !== 200) throw new Error(`/metrics: ${reply.status}`);
  const lines = (await reply.text()).split('\n').filter((line) => line && !line.startsWith('#'));
  return new Map(lines.map((line) => {
    const blank = line.lastIndexOf(' ');
    return [line.slice(0, blank), Number(line.slice(blank + 1))];
  }));
}

/// Waits until so many requests run and wait, as the engine says after a round; gives the metrics then.
export async function engineHas(url, running, waiting) {
  for (let i = 0; i < 600; ++i) {
    const m = await metrics(url);
    const has = [m.get('firesteel_requests_running'), m.get('firesteel_requests_waiting')];
    if (has[0] === running && has[1] === waiting) return m;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  throw new Error(`the engine never had ${running} running and ${waiting} waiting requests`);
}

/// Runs named checks one after the other and exits 1 if any failed.
export async function run(checks) {
  let failed = 0;
  for (const [name, check] of Object.entries(checks)) {
    const started = Date.now();
    try {
      await check();
      console.log(`ok    ${name} (${Date.now() - started} ms)`);
    } catch (error) {
      failed += 1;
      console.log(`FAIL  ${name}\n${error.stack}`);
    }
  }
  console.log(failed === 0 ? 'all checks passed' : `${failed} checks failed`);
  return failed === 0;
}

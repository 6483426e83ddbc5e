// The bench subcommands against the bundled model, and what /metrics counted of them.
//   node bench.mjs PROGRAM MODEL_DIR
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { engineHas, run, serve } from './served.mjs';

const [program, modelDir] = process.argv.slice(2);
const folder = mkdtempSync(join(tmpdir(), 'firesteel-bench-'));
const server = await serve(program, ['--model', modelDir, '--device', 'cpu', '--streams', '4']);

// Not spawnSync: the server's log must go on being read meanwhile.
function bench(...args) {
  return new Promise((resolve) => {
    const child = spawn(program, ['bench', ...args], { stdio: ['ignore', 'pipe', 'pipe'] });
    const out = { stdout: '', stderr: '' };
    child.stdout.on('data', (data) => (out.stdout += data));
    child.stderr.on('data', (data) => (out.stderr += data));
    child.on('close', (code) => resolve({ ...out, code }));
  });
}
async function figures(name, ...args) {
  const file = join(folder, `${name}.json`);
  const result = await bench(name, ...args, '--json', file);
  assert.equal(result.code, 0, result.stderr);
  const json = JSON.parse(readFileSync(file, 'utf8'));
  for (const key of ['what', 'machine', 'version', 'commit', 'taken']) assert.ok(json[key], key);
  assert.ok(json.command.startsWith(`firesteel bench ${name} `), json.command);
  return { ...result, json };
}

const checks = {
  async 'bench serve follows the protocol'() {
    const { stdout, json } = await figures('serve', '--url', `${server.url}/v1`, '--streams', '1,2', '--tokens', '12',
      '--prompts', 'structured,prose', '--prefill', '400');
    assert.match(stdout, /^structured +2 /m);
    assert.equal(json.fixed_length, true);
    assert.deepEqual(json.streams.map((row) => [row.prompt, row.streams]),
      [['structured', 1], ['structured', 2], ['prose', 1], ['prose', 2]]);
    for (const row of json.streams) {
      assert.equal(row.each.length, row.streams);
      for (const one of row.each) {
        assert.equal(one.completion_tokens, 12);
        assert.equal(one.finish_reason, 'length');
        assert.ok(one.prompt_tokens > 10);
      }
      assert.ok(row.tokens_per_s_each > 0 && row.tokens_per_s_all > 0, JSON.stringify(row));
      assert.ok(row.first_token_ms.mean > 0 && row.first_token_ms.max >= row.first_token_ms.mean);
      assert.ok(row.gap_ms.p50 <= row.gap_ms.p90 && row.gap_ms.p90 <= row.gap_ms.max);
      assert.ok(row.tokens_per_piece >= 1);
    }
    assert.equal(json.prefill.length, 1);
    assert.ok(Math.abs(json.prefill[0].prompt_tokens - 400) < 80, JSON.stringify(json.prefill));

    // The server counted the same: a warm-up of 32 tokens, six replies, two probes and one long prompt.
    const m = await engineHas(server.url, 0, 0);
    const model = json.model;
    const of = (name) => m.get(`vllm:${name}{model_name="${model}"}`);
    const ends = (reason) => m.get(`vllm:request_success_total{model_name="${model}",finished_reason="${reason}"}`);
    assert.equal(ends('stop') + ends('length'), 10);
    assert.equal(ends('abort') + ends('error'), 0);
    assert.equal(of('time_to_first_token_seconds_count'), 10);
    assert.ok(of('generation_tokens_total') >= 32 + 6 * 12 + 2);
    assert.equal(of('generation_tokens_total'), of('request_generation_tokens_sum'));
    assert.equal(of('prompt_tokens_total'), of('request_prompt_tokens_sum'));
    assert.equal(of('inter_token_latency_seconds_count'), of('generation_tokens_total') - 10);
    assert.equal(of('iteration_tokens_total_sum'), of('generation_tokens_total') + of('prompt_tokens_total'));
    assert.equal(of('num_requests_running'), 0);
    assert.equal(of('kv_cache_usage_perc'), 0);
    assert.equal(m.get('firesteel_kv_cache_usage_ratio{pool="pages"}'), 0);
    assert.equal(m.get('firesteel_generation_tokens_running'), 0);
  },
  async 'bench decode and bench prefill run a model in the process'() {
    const decode = await figures('decode', '--model', modelDir, '--streams', '1,2', '--prompt', '20', '--tokens', '6');
    assert.deepEqual(decode.json.runs.map((row) => row.streams), [1, 2]);
    for (const row of decode.json.runs) assert.ok(row.tokens_per_s_all > 0 && row.gap_ms.max > 0, JSON.stringify(row));
    const prefill = await figures('prefill', '--model', modelDir, '--lengths', '32,70');
    assert.deepEqual(prefill.json.runs.map((row) => row.prompt_tokens), [32, 70]);
    for (const row of prefill.json.runs) assert.ok(row.tokens_per_s > 0 && row.tokens_per_cpu_s > 0);
  },
  async 'bench tokenizer needs no weights'() {
    const { json } = await figures('tokenizer', '--model', modelDir, '--seconds', '0.02', '--text', program + '.none')
      .catch((error) => ({ json: error.message }));
    assert.match(json, /\.none: cannot be read/);
    const good = await figures('tokenizer', '--model', modelDir, '--seconds', '0.02', '--text', process.argv[1]);
    assert.deepEqual(good.json.figures.map((row) => row.what),
      ['load', 'encode: bench.mjs', 'decode: bench.mjs', 'encode: one letter, 1 MiB', 'decode: one letter, 1 MiB']);
    for (const row of good.json.figures.slice(1)) assert.ok(row.tokens > 0 && row.tokens_per_s > 0);
  },
  async 'what cannot work is told in one line'() {
    for (const [code, text, ...args] of [
      [1, /cannot connect to 127.0.0.1:1: /, 'serve', '--url', 'http://127.0.0.1:1'],
      [2, /expected a URL like/, 'serve', '--url', 'localhost'],
      [1, /only http:\/\/ URLs/, 'serve', '--url', 'https://localhost'],
      [2, /--streams/, 'serve', '--streams', '0'],
      [2, /--prompts/, 'serve', '--prompts', 'verse'],
      [1, /no API key/, 'serve', '--key-file', join(folder, 'none')],
      [1, /none.x.json: cannot be written/, 'tokenizer', '--model', modelDir, '--seconds', '0.01', '--json',
        join(folder, 'none', 'x.json')],
      [2, /the model knows 8192 positions/, 'prefill', '--model', modelDir, '--lengths', '2000000'],
      [1, /./, 'decode', '--model', folder],
      [2, /subcommand/],
    ]) {
      const result = await bench(...args);
      assert.equal(result.code, code, `${args}: ${result.stderr}`);
      assert.match(result.stderr, text);
      assert.equal(result.stderr.trim().split('\n').length, 1, result.stderr);
    }
  },
};

let good = false;
try {
  good = await run(checks);
} finally {
  await server.stop();
  rmSync(folder, { recursive: true });
}
process.exit(good ? 0 : 1);

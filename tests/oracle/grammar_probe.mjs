// Talks to tests/grammar/grammar_probe: one request, one answer.
import {spawn} from 'node:child_process';
import readline from 'node:readline';

export class Probe {
  constructor(program, vocabulary) {
    this.child = spawn(program, [vocabulary], {stdio: ['pipe', 'pipe', 'inherit']});
    this.waiting = [];
    readline.createInterface({input: this.child.stdout}).on('line', (line) => this.waiting.shift()(JSON.parse(line)));
    this.child.on('exit', (code) => {
      if (this.closed) return;
      console.error(`the probe ended with ${code}`);
      process.exit(1);
    });
  }
  ask(request) {
    return new Promise((resolve) => {
      this.waiting.push(resolve);
      this.child.stdin.write(JSON.stringify(request) + '\n');
    });
  }
  close() {
    this.closed = true;
    this.child.stdin.end();
  }
}

/** Numbers from a seed, the same on every machine. */
export class Random {
  constructor(seed) { this.state = BigInt(seed) * 0x9E3779B97F4A7C15n & 0xFFFFFFFFFFFFFFFFn; }
  next() {
    this.state = this.state + 0x9E3779B97F4A7C15n & 0xFFFFFFFFFFFFFFFFn;
    let z = this.state;
    z = (z ^ z >> 30n) * 0xBF58476D1CE4E5B9n & 0xFFFFFFFFFFFFFFFFn;
    z = (z ^ z >> 27n) * 0x94D049BB133111EBn & 0xFFFFFFFFFFFFFFFFn;
    return Number((z ^ z >> 31n) >> 11n) / 2 ** 53;
  }
  below(n) { return Math.floor(this.next() * n); }
  chance(p) { return this.next() < p; }
  pick(list) { return list[this.below(list.length)]; }
}

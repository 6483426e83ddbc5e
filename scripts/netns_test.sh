#!/usr/bin/env bash
# Two ranks in two network namespaces joined by a veth pair: the reply of one rank, across a plain, a late and a
# stalling link; across a link that is cut or set down a retryable error in five seconds, and the service comes back.
# Needs root, `ip` and network namespaces (exit 77 without); about four minutes.
#   scripts/netns_test.sh [--program FILE] [--model DIR]
set -euo pipefail
cd "$(dirname "$0")/.."
a=firesteel-a-$$ b=firesteel-b-$$ work=$(mktemp -d)
unavailable() {
  echo "netns test: skipped: $1"
  exit 77
}
# shellcheck disable=SC2317  # called by the trap
clean_up() {
  trap '' INT TERM
  for ns in "$a" "$b"; do
    # The namespaces are ours alone: whatever still runs in them is ours.
    for pid in $(ip netns pids "$ns" 2>/dev/null); do kill -9 "$pid" 2>/dev/null || true; done
    ip netns delete "$ns" 2>/dev/null || true
  done
  rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 1' INT TERM
[ "$(id -u)" = 0 ] || unavailable "not root"
command -v ip >/dev/null || unavailable "there is no ip command (Debian: iproute2)"
ip netns add "$a" 2>"$work/why" || unavailable "no network namespaces here: $(cat "$work/why")"
ip netns add "$b"
ip -n "$a" link add link0 type veth peer name link0 netns "$b" 2>"$work/why" ||
  unavailable "no veth pairs here: $(cat "$work/why")"
ip -n "$a" address add 10.77.0.1/24 dev link0
ip -n "$b" address add 10.77.0.2/24 dev link0
for ns in "$a" "$b"; do
  ip -n "$ns" link set lo up
  ip -n "$ns" link set link0 up
done
ip netns exec "$a" python3 scripts/netns_test.py --far "$b" --work "$work" "$@"

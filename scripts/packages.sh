#!/usr/bin/env bash
# Installs what is missing from the distribution's packages: packages.sh build|test|arm64 …
# Debian 12 and Ubuntu 24.04. Asks for root only when something is missing.
set -euo pipefail

# Boost 1.81 or later: Debian 12 has it under its own name, newer distributions as the default.
boost=libboost-dev
if apt-cache show libboost1.81-dev >/dev/null 2>&1; then boost=libboost1.81-dev; fi
clang_rt=$(apt-cache depends clang 2>/dev/null | awk '$1=="Depends:" && $2 ~ /^clang-[0-9]+$/ {sub("clang-","",$2); print "libclang-rt-" $2 "-dev"; exit}')

libraries="libspdlog-dev libfmt-dev libhwy-dev libpcre2-dev libssl-dev libxxhash-dev $boost"
build="g++ cmake ninja-build pkg-config nlohmann-json3-dev libcli11-dev $libraries curl ca-certificates"
test="libgtest-dev librapidcheck-dev libbenchmark-dev nodejs python3 python3-jinja2 clang ${clang_rt:-} git"
command -v npm >/dev/null || test="$test npm"
arm64="g++-aarch64-linux-gnu qemu-user-static"
arm64_libraries="libc6:arm64 libgtest-dev:arm64 librapidcheck-dev:arm64"
for l in $libraries; do arm64_libraries="$arm64_libraries $l:arm64"; done

want=""
for group in "$@"; do
  case "$group" in
    build) want="$want $build" ;;
    test) want="$want $test" ;;
    arm64) want="$want $arm64 $arm64_libraries" ;;
    *) echo "packages.sh: no such group: $group (build, test, arm64)" >&2; exit 2 ;;
  esac
done

installed() { dpkg-query -W -f='${db:Status-Status}\n' "$1" 2>/dev/null | grep -qx installed; }
missing=""
for p in $want; do
  # nodejs may come from elsewhere than the distribution
  if [ "$p" = nodejs ] && command -v node >/dev/null; then continue; fi
  installed "$p" || missing="$missing $p"
done
[ -z "$missing" ] && exit 0

sudo=""
[ "$(id -u)" = 0 ] || sudo=sudo
echo "Installing:$missing"
export DEBIAN_FRONTEND=noninteractive
case " $* " in *" arm64 "*) dpkg --print-foreign-architectures | grep -qx arm64 || $sudo dpkg --add-architecture arm64 ;; esac
$sudo apt-get update -qq
# shellcheck disable=SC2086  # a list of words
$sudo apt-get install -y -qq --no-install-recommends $missing >/dev/null

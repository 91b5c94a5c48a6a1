#!/bin/sh
# Puts Debian's etcd into .venv/etcd for the tests, unless there is one already. Needs no root where
# apt's lists of packages are there, and starts nothing.
#
#   tools/install_etcd.sh        # make test does it; without an etcd its tests are skipped
set -eu
command -v etcd >/dev/null && exit 0
into=$(cd "$(dirname "$0")/.." && pwd)/.venv/etcd
[ -x "$into/usr/bin/etcd" ] && exit 0
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
apt-get -qq download etcd-server 2>/dev/null || { apt-get -qq update && apt-get -qq download etcd-server; }
mkdir -p "$into"
dpkg-deb -x etcd-server_*.deb "$into"
"$into/usr/bin/etcd" --version | head -n 1

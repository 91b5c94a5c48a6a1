#!/bin/sh
# Puts Debian's etcd into .venv/etcd for the tests, unless there is one already. Needs no root where
# apt's lists of packages are there, and starts nothing.
#
#   tools/install_etcd.sh          # make test does it; without an etcd its tests are skipped
#   tools/install_etcd.sh trixie   # that of another Debian, into .venv/etcd-trixie (make etcd SUITE=trixie)
set -eu
suite=${1:-}
into=$(cd "$(dirname "$0")/.." && pwd)/.venv/etcd${suite:+-$suite}
[ -n "$suite" ] || ! command -v etcd >/dev/null || exit 0
[ -x "$into/usr/bin/etcd" ] && exit 0
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
if [ -n "$suite" ]; then
    # Lists of its own: those of the machine stay as they are.
    mkdir -p lists/partial cache/archives/partial
    key=/usr/share/keyrings/debian-archive-keyring.gpg
    echo "deb [signed-by=$key] http://deb.debian.org/debian $suite main" >sources.list
    cat >apt.conf <<END
Dir::State::lists "$folder/lists";
Dir::Cache "$folder/cache";
Dir::Etc::sourcelist "$folder/sources.list";
Dir::Etc::sourceparts "/dev/null";
END
    export APT_CONFIG=$folder/apt.conf
    apt-get -qq update
fi
apt-get -qq download etcd-server 2>/dev/null || { apt-get -qq update && apt-get -qq download etcd-server; }
mkdir -p "$into"
dpkg-deb -x etcd-server_*.deb "$into"
"$into/usr/bin/etcd" --version | head -n 1

#!/bin/sh
# Installs Debian's Slurm and munge for the tests, unless they are there already. Needs root; starts
# no service, and enables none.
#
#   tools/install_slurm.sh       # make test does it; without a Slurm its tests are skipped
set -eu
command -v slurmctld >/dev/null && command -v munged >/dev/null && exit 0
[ "$(id -u)" -eq 0 ] || { echo "slurmctld: not installed, which needs root"; exit 0; }
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' > "$policy" && chmod +x "$policy"
    trap 'rm -f "$policy"' EXIT
fi
packages="slurmctld slurmd slurm-client munge"
install() { DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $packages >/dev/null 2>&1; }
install || { apt-get -qq update && install; }
slurmctld -V

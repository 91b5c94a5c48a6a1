#!/bin/sh
# Installs Debian's OpenSSH, server and client, for the tests, unless they are there already. Needs
# root; starts no service, and enables none.
#
#   tools/install_sshd.sh       # make test does it; without an sshd its tests are skipped
set -eu
command -v ssh >/dev/null && PATH="$PATH:/usr/sbin" command -v sshd >/dev/null && exit 0
[ "$(id -u)" -eq 0 ] || { echo "sshd: not installed, which needs root"; exit 0; }
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' > "$policy" && chmod +x "$policy"
    trap 'rm -f "$policy"' EXIT
fi
packages="openssh-server openssh-client"
install() { DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $packages >/dev/null 2>&1; }
install || { apt-get -qq update && install; }
ssh -V

#!/usr/bin/env bash
# Install programs for tests from Debian or Ubuntu packages, without starting any of them:
#
#     tests/install.sh slurm      a one-machine Slurm; tests/support/slurm/cluster.py brings its daemons up
#     tests/install.sh browser    chromium, which opens the report
#     tests/install.sh serving    load balancers and ApacheBench
#     tests/install.sh storage    fio
#     tests/install.sh solvers    HPC Challenge, LAMMPS, GROMACS, OpenFOAM, NWChem and Open MPI
#     tests/install.sh locale     sources of the Turkish locale, and time zones: CI runs in both
#
# Exit status: 0 all programs are installed, 3 they cannot be installed here (stderr has the reason).
set -euo pipefail

# The daemons are in sbin, which the PATH of ordinary users often lacks.
PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"
case "${1:-}" in
slurm)
    PROGRAMS=(sbatch slurmctld slurmd slurmdbd munged mariadbd mariadb-install-db iptables)
    # The -core packages suffice: the full servers would add databases, services and 200 MB.
    PACKAGES=(slurmctld slurmd slurmdbd slurm-client munge mariadb-server-core mariadb-client-core libnss-wrapper iptables)
    ;;
browser)
    PROGRAMS=(chromium)
    PACKAGES=(chromium)
    ;;
serving)
    PROGRAMS=(haproxy nginx ab)
    PACKAGES=(haproxy nginx-light apache2-utils)
    ;;
storage)
    PROGRAMS=(fio)
    PACKAGES=(fio)
    ;;
solvers)
    PROGRAMS=(hpcc lmp gmx_mpi simpleFoam nwchem mpirun /usr/share/doc/openfoam-examples/examples)
    PACKAGES=(hpcc lammps gromacs openfoam openfoam-examples nwchem openmpi-bin)
    ;;
locale)
    PROGRAMS=(localedef /usr/share/i18n/locales/tr_TR /usr/share/zoneinfo/Pacific/Apia)
    PACKAGES=(libc-bin locales tzdata)
    ;;
*)
    echo "usage: tests/install.sh slurm|browser|serving|storage|solvers|locale" >&2
    exit 2
    ;;
esac
WHAT=$1
POLICY=/usr/sbin/policy-rc.d

missing() {
    local program
    for program in "${PROGRAMS[@]}"; do
        command -v "$program" >/dev/null || [[ $program == /* && -e $program ]] || printf '%s ' "$program"
    done
}

cannot() {
    echo "tests/install.sh $WHAT: $1; missing: $(missing)- install by hand: ${PACKAGES[*]}" >&2
    exit 3
}

[[ -z "$(missing)" ]] && exit 0

command -v apt-get >/dev/null || cannot "no apt-get on this machine"
AS_ROOT=()
if [[ $EUID -ne 0 ]]; then
    { command -v sudo && sudo -n true; } >/dev/null 2>&1 || cannot "not root, and no passwordless sudo"
    AS_ROOT=(sudo -n)
fi

# The packages would start system-wide daemons; exit status 101 forbids it. An existing policy is
# the owner's decision and stays.
if [[ ! -e $POLICY ]]; then
    trap '"${AS_ROOT[@]}" rm -f "$POLICY"' EXIT
    printf '#!/bin/sh\nexit 101\n' | "${AS_ROOT[@]}" tee "$POLICY" >/dev/null
    "${AS_ROOT[@]}" chmod 755 "$POLICY"
fi

apt() {
    "${AS_ROOT[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=120 "$@"
}

# apt-get update does not wait for its lock, and mirrors may fail briefly: try a few times.
for attempt in 1 2 3 4; do
    if apt update && apt install -y --no-install-recommends "${PACKAGES[@]}"; then
        break
    fi
    echo "tests/install.sh $WHAT: attempt $attempt failed" >&2
    sleep $((attempt * 5))
done

[[ -z "$(missing)" ]] || cannot "apt-get install failed"

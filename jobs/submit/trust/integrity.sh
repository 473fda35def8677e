# shellcheck shell=bash
# A job executes the code of its sweep; one of launcher=local also unpickles files in its logs. Each batch script reads
# this file and compares it with a digest in the script, which Slurm keeps: a changed check would find nothing.

not_started() {
    printf 'slurmscale: not started: %s\n' "$1" >&2
    exit 1
}

# Print the id of the private group that many systems give each user: it has the name of the user, and no other member.
private_group() {
    local user
    user=$(id -un)
    case $(getent group "$(id -g)") in "$user":*:*: | "$user":*:*:"$user") id -g ;; esac
}

refuse_writable() {
    [ -n "$1" ] || return 0
    local mode group remedy
    mode=$(stat -L -c %a -- "$1") group=$(stat -L -c %G -- "$1")
    if [ -n "$(find -H "$1" -maxdepth 0 -perm -002)" ]; then
        remedy="is writable by other users (mode $mode), who could inject code into your jobs. Run \`chmod go-w $(printf %q "$1")\`, or set runs_dir=PATH."
    else
        remedy="is writable by group $group (mode $mode), who could inject code into your jobs. Run \`chmod g-w $(printf %q "$1")\`, or set cluster.trusted_group=$group if you trust all its members, or runs_dir=PATH."
    fi
    not_started "$1 $remedy"
}

refuse_owner() {
    [ -n "$1" ] || return 0
    not_started "$1 belongs to user $(stat -L -c %u -- "$1"), who could inject code into your jobs. Set runs_dir=PATH to a directory of your own, or cluster.trusted_group=GROUP if you trust all members of its group."
}

# refuse_listed TRUSTED PRIVATE PATH...: end this script if an access control list lets another user or group write. The
# group bits of a mode are the mask of such a list, so only paths that are writable by their group are given.
refuse_listed() {
    local trusted=$1 private=$2 path entries writer
    shift 2
    for path in "$@"; do
        case $(ls -ldL -- "$path") in ??????????+*) ;; *) continue ;; esac
        command -v getfacl > /dev/null ||
            not_started "$path has an access control list that may let others write, and getfacl is not installed here to read it. Run \`setfacl -b $(printf %q "$path")\`, or set runs_dir=PATH."
        entries=$(getfacl --absolute-names --omit-header --numeric --access -- "$path" 2> /dev/null) ||
            not_started "$path has an access control list that may let others write, and getfacl cannot read it. Run \`setfacl -b $(printf %q "$path")\`, or set runs_dir=PATH."
        writer=$(grep -E '^(user|group):[0-9]+:.w' <<< "$entries" |
            grep -v -m 1 -E "^user:($(id -u)|0):|^group:(${private:-none}|${trusted:-none}):")
        [ -z "$writer" ] ||
            not_started "$path is writable by others through its access control list ($writer), who could inject code into your jobs. Run \`setfacl -b $(printf %q "$path")\`, or set runs_dir=PATH."
    done
}

# Print a warning if an access control list of NFSv4 names somebody who may write: its mask is not in the mode.
warn_of_nfs4() {
    local path writer
    command -v nfs4_getfacl > /dev/null || return 0
    for path in "$@"; do
        writer=$(nfs4_getfacl "$path" 2> /dev/null | grep -E '^A:[^:]*:[^:]*:[^:]*[wa]' | grep -v -m 1 -E ':(OWNER|GROUP|EVERYONE)@:|:root@')
        [ -z "$writer" ] || printf 'slurmscale: warning: %s is writable by others through its access control list (%s). Run nfs4_editfacl to remove them if you do not trust them.\n' "$path" "$writer" >&2
    done
}

# refuse_changed TRUSTED_GROUP SWEEP [--run RUN]... CODE...: end this script if another user could change the code
# snapshots, the sweep or a directory above it, or if a snapshot is not the one that its name is the digest of. Code lies
# in this user's store next to the sweep; an earlier version of slurmscale put it into the sweep.
refuse_changed() {
    local trusted=$1 sweep=$2 physical store path private member='' digest
    shift 2
    local -a listed=() above=() own=() open=(-perm -020) foreign=(! -user "$(id -u)" ! -user 0)
    private=$(private_group)
    [ -z "$private" ] || open+=(! -group "$private")
    if [ -n "$trusted" ]; then
        getent group "$trusted" > /dev/null ||
            not_started "cluster.trusted_group=$trusted: $(uname -n) has no group of this name. Set one that \`id -Gn\` prints."
        # The configuration may come from a member of that group.
        member=$(getent group "$trusted" | cut -d : -f 3)
        case " $(id -G) " in
            *" $member "*) ;;
            *) not_started "cluster.trusted_group=$trusted: you are not a member of this group. Set one that \`id -Gn\` prints, or null." ;;
        esac
        open+=(! -group "$trusted") foreign+=(! -group "$trusted")
    fi
    physical=$(readlink -m -- "$sweep")
    case "$sweep$physical" in
        *:*) not_started "$physical has a colon, where Python would split PYTHONPATH and run code of another directory. Set runs_dir=PATH and sweep=NAME without one, or rename the directory." ;;
    esac
    case "$sweep" in
        *%*) not_started "$sweep has a %, which Slurm and submitit would expand in the names of logs. Set runs_dir=PATH and sweep=NAME without one, or rename the directory." ;;
    esac
    [ ! -L "$sweep/logs" ] || not_started "$sweep/logs is a link, and output is never written through one. Remove it."
    for path in "$sweep" "$physical"; do
        while [ "$path" != / ]; do
            path=${path%/*}
            path=${path:-/}
            [ ! -e "$path" ] || above+=("$path")
        done
    done
    store=${physical%/*}/.code-$(id -u)
    [ ! -L "$store" ] || not_started "$store is a link, and code is never run through one. Remove it."
    for path in "$sweep/logs" "$sweep" "$store"; do
        [ ! -e "$path" ] || own+=("$path")
    done
    while [ "${1-}" = --run ]; do
        [ ! -L "$2" ] || not_started "$2 is a link, and was a directory when the run was submitted. Submit the run again."
        own+=("$2")
        shift 2
    done
    for path in "$@"; do
        [ -d "$path" ] || not_started "$path, the code of the run, is gone. Submit the run again."
        [ "${path%/*}" = "$store" ] || [ "${path%/*}" = "$physical" ] ||
            not_started "$path, the code of the run, is not in $store. Submit the run again."
    done
    if [ ${#own[@]} -gt 0 ]; then
        refuse_writable "$(find -H "${own[@]}" -maxdepth 0 \( -perm -002 -o "${open[@]}" \) -print -quit)"
    fi
    # In a sticky directory, such as /tmp, others cannot rename our directories, but they can add files.
    refuse_writable "$(find -H "${above[@]}" -maxdepth 0 ! -perm -1000 \( -perm -002 -o "${open[@]}" \) -print -quit)"
    refuse_owner "$(find -H "${own[@]}" "${above[@]}" -maxdepth 0 "${foreign[@]}" -print -quit)"
    readarray -d '' listed < <(
        [ ${#own[@]} -eq 0 ] || find -H "${own[@]}" -maxdepth 0 -perm -020 -print0
        find -H "${above[@]}" -maxdepth 0 -perm -020 ! -perm -1000 -print0
        [ $# -eq 0 ] || find "$@" -ignore_readdir_race -perm -020 -print0
    )
    refuse_listed "$member" "$private" "${listed[@]}"
    warn_of_nfs4 "${own[@]}" "$@"
    [ $# -gt 0 ] || return 0
    # Other jobs with this code may write and remove bytecode meanwhile.
    path=$(find "$@" -ignore_readdir_race ! -type f ! -type d -print -quit) || not_started "$* cannot be read."
    [ -z "$path" ] || not_started "$path is neither a file nor a directory. Submit the run again."
    refuse_writable "$(find "$@" -ignore_readdir_race \( -perm -002 -o "${open[@]}" \) -print -quit)"
    refuse_owner "$(find "$@" -ignore_readdir_race "${foreign[@]}" -print -quit)"
    for path in "$@"; do
        # Python makes its bytecode again. The digest does not cover it, and it would run instead of the files.
        find "$path" -ignore_readdir_race -name __pycache__ -prune -exec rm -rf -- {} +
        digest=$(
            set -o pipefail
            cd -- "$path" &&
                find . -ignore_readdir_race -name __pycache__ -prune -o -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum
        ) || not_started "$path cannot be read."
        [ "code-${digest:0:32}" = "${path##*/}" ] ||
            not_started "$path is not the code that was submitted: its name is the digest of its files, which is now ${digest:0:32}. Remove it and submit the run again."
    done
}

#!/usr/bin/env bash
# Run a rank with a copy of its Python environment on a disk of its node:
#
#     bash staged_python.sh LINK DIRECTORY PYTHON ARGUMENT...
#
# LINK leads to the archive env-DIGEST.tar, which jobs/submit/preparation/staging.py wrote. The first rank of a node unpacks it to
# DIRECTORY/slurmscale-UID/env-DIGEST while the others wait, and later starts find it there. Whatever prevents that is a
# note in the log and in the record of the run, and the rank runs PYTHON where it is.

link=$1 directory=$2 python=$3
shift 3
arguments=("$@")
began=$(date +%s%N)

run() {
    export SLURMSCALE_STAGED=$1
    SLURMSCALE_STAGING_S=$(awk "BEGIN { print ($(date +%s%N) - $began) / 1e9 }")
    export SLURMSCALE_STAGING_S
    exec "$2" "${arguments[@]}"
}

unstaged() {
    # Otherwise the rank would hold a lock for which the others wait.
    exec 9>&-
    printf 'slurmscale: the environment is not staged: %s\n' "$1" >&2
    run "not staged: $1" "$python"
}

# Remove the copies of other environments whose locks no rank holds.
remove_unused() {
    local other
    for other in "$top"/env-*/; do
        other=${other%/}
        [ "$other" = "$target" ] || (flock -n 8 && rm -rf -- "$other") 8> "$other.lock"
    done
}

free_kb() {
    df -Pk -- "$top" | awk 'NR == 2 { print $4 }'
}

# Write the copy aside and rename it, so that no rank finds a part of it; set `why` if that fails.
unpack() {
    local new=$target.new.$$ need_kb base to each
    rm -rf -- "$target".new.*
    # Blocks of a disk are larger than those of an archive.
    need_kb=$(($(stat -c %s -- "$archive") * 105 / 102400))
    [ "$(free_kb)" -ge "$need_kb" ] || remove_unused
    if [ "$(free_kb)" -lt "$need_kb" ]; then
        why=$(awk "BEGIN { printf \"%.3g GB are missing in $top (%.3g GB needed)\", ($need_kb - $(free_kb)) * 1024 / 1e9, $need_kb * 1024 / 1e9 }")
        return 1
    fi
    if ! { mkdir -m 700 -- "$new" && tar -xf "$archive" -C "$new"; }; then
        rm -rf -- "$new"
        why="$archive could not be unpacked in $top"
        return 1
    fi
    if [ -d "$new/base" ]; then
        # The copy of a venv finds the copy of the Python that it was made from.
        base=$(sed -n 2p "$new/origin")
        [ ! -f "$new/prefix/pyvenv.cfg" ] || sed -i "s|^home = .*|home = $target/base/bin|" "$new/prefix/pyvenv.cfg"
        for each in "$new"/prefix/bin/python*; do
            to=$(readlink -- "$each") || continue
            case $to in "$base"/*) ln -sfn -- "$target/base/${to#"$base"/}" "$each" ;; esac
        done
    fi
    mv -T -- "$new" "$target"
}

private() {
    [ ! -L "$1" ] && [ -d "$1" ] && [ -O "$1" ] && [ "$(stat -c %a -- "$1")" = 700 ] ||
        unstaged "$1 is not a directory of yours that only you can enter (mode 700)"
}

archive=$(readlink -e -- "$link") || unstaged "$link leads to no archive"
private "${archive%/*}"
top=$directory/slurmscale-$(id -u)
target=$top/$(basename -- "$archive" .tar)
[ -d "$directory" ] || unstaged "this node has no directory $directory"
mkdir -m 700 -- "$top" 2> /dev/null
private "$top"
{ exec 9> "$target.lock"; } 2> /dev/null || unstaged "$target.lock cannot be written"
how=found
if [ ! -d "$target" ]; then
    flock 9
    if [ ! -d "$target" ]; then
        # A rank that waited does not repeat what has just failed.
        failed=$(stat -c %Y -- "$target.failed" 2> /dev/null)
        [ "${failed:-0}" -lt "$((began / 1000000000))" ] || unstaged "another rank of this node could not unpack it"
        unpack || { touch -- "$target.failed"; unstaged "$why"; }
        how=unpacked
    fi
fi
# Held until the rank ends: nobody removes the copy while it is used.
flock -s 9
copy=$target/prefix/$(sed -n 3p "$target/origin" 2> /dev/null)
[ -x "$copy" ] || unstaged "$target was removed meanwhile"
run "$how in $target" "$copy"

#!/bin/sh
# ssh, whose other machines are this one: it runs what it is told to run there, and a forwarded
# socket is a link. Each call is noted in the directory $SSH_DOUBLE, where files say what is wrong:
# says[-HOST] is printed before it ends with 255, hangs[-HOST] holds it up, sends-HOST has the bytes
# after which the connection breaks, or hangs where stalls-HOST is a pipe that is told of it.
# first-HOST is run there once, before what it is told to run, where that has the word in its first
# line. home-HOST is the home there, bin-HOST all of its programs.
printf '%s\n' "$*" >>"$SSH_DOUBLE/calls"
operation=
while [ $# -gt 0 ]; do
    case $1 in
    -O) operation=$2 && shift 2 ;;
    -L) forwarded=$2 && shift 2 ;;
    -o | -l | -p | -F) shift 2 ;;
    --) host=$2 && shift 2 && break ;;
    *) echo "unexpected: $1" >&2 && exit 255 ;;
    esac
done
for says in "$SSH_DOUBLE/says" "$SSH_DOUBLE/says-$host"; do
    if [ -e "$says" ]; then
        cat "$says" >&2
        exit 255
    fi
done
if [ "$operation" = forward ]; then
    [ -e "$SSH_DOUBLE/hangs" ] && exec sleep 60
    exec ln -s "${forwarded#*:}" "${forwarded%%:*}"
fi
[ -e "$SSH_DOUBLE/hangs-$host" ] && exec sleep 60
if [ -e "$SSH_DOUBLE/home-$host" ]; then
    cd "$SSH_DOUBLE/home-$host" && HOME=$PWD || exit 255
fi
echo "Welcome to $host" # as files of a login shell may
if [ -e "$SSH_DOUBLE/first-$host" ]; then
    cat >"$SSH_DOUBLE/given-$host"
    if grep -q "$(head -n 1 "$SSH_DOUBLE/first-$host" | cut -c 3-)" "$SSH_DOUBLE/given-$host"; then
        mv "$SSH_DOUBLE/first-$host" "$SSH_DOUBLE/once-$host"
        sh "$SSH_DOUBLE/once-$host" </dev/null
    fi
    exec <"$SSH_DOUBLE/given-$host"
fi
if [ -e "$SSH_DOUBLE/sends-$host" ]; then
    most=$(cat "$SSH_DOUBLE/sends-$host")
    sh -c "$*" | head -c "$most" >"$SSH_DOUBLE/sent-$host-$$"
    cat "$SSH_DOUBLE/sent-$host-$$"
    [ "$(wc -c <"$SSH_DOUBLE/sent-$host-$$")" -lt "$most" ] && exit 0
    if [ -p "$SSH_DOUBLE/stalls-$host" ]; then
        echo stalled >"$SSH_DOUBLE/stalls-$host"
        exec sleep 60
    fi
    echo "Connection to $host closed by remote host." >&2
    exit 255
fi
[ -e "$SSH_DOUBLE/bin-$host" ] && PATH=$SSH_DOUBLE/bin-$host
sh -c "$*"
status=$?
echo over >>"$SSH_DOUBLE/calls"
exit $status

#!/bin/sh
# ssh, whose other machines are this one: it runs what it is told to run there, and a forwarded
# socket is a link. Each call is noted in the directory $SSH_DOUBLE, where files say what is wrong:
# says[-HOST] is printed before it ends with 255, hangs[-HOST] holds it up, sends-HOST has the bytes
# after which the connection breaks, first-HOST is run there once, before what it is told to run.
# home-HOST is the home there, bin-HOST all of its programs.
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
    HOME=$(readlink "$SSH_DOUBLE/home-$host") && cd "$HOME" || exit 255
fi
echo "Welcome to $host" # as files of a login shell may
if mv "$SSH_DOUBLE/first-$host" "$SSH_DOUBLE/once-$host" 2>/dev/null; then
    sh "$SSH_DOUBLE/once-$host" </dev/null
fi
if [ -e "$SSH_DOUBLE/sends-$host" ]; then
    sh -c "$*" | head -c "$(cat "$SSH_DOUBLE/sends-$host")"
    exit 255
fi
[ -e "$SSH_DOUBLE/bin-$host" ] && PATH=$SSH_DOUBLE/bin-$host
sh -c "$*"
status=$?
echo over >>"$SSH_DOUBLE/calls"
exit $status

#!/bin/sh
# ssh, whose other machine is this one: it runs what it is told to run there, and a forwarded socket
# is a link. Each call is noted in the directory $SSH_DOUBLE.
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
if [ -e "$SSH_DOUBLE/says" ]; then
    cat "$SSH_DOUBLE/says" >&2
    exit 255
fi
if [ "$operation" = forward ]; then
    [ -e "$SSH_DOUBLE/hangs" ] && exec sleep 60
    exec ln -s "${forwarded#*:}" "${forwarded%%:*}"
fi
echo "Welcome to $host" # as files of a login shell may
sh -c "$*"
echo over >>"$SSH_DOUBLE/calls"

#!/bin/sh
# Starts and stops a coordinator and CITUS_WORKERS (2) workers of Citus on this machine, for trials and tests.
#
#   CITUS_BIN=/usr/lib/postgresql/16/bin deploy/citus/nodes.sh start FOLDER
#   deploy/citus/nodes.sh urls
#   deploy/citus/nodes.sh stop FOLDER [PORT]    # of one node; start brings it back
#
# CITUS_BIN is the folder of PostgreSQL's programs, with the extension citus installed for them. The
# nodes listen on loopback from CITUS_PORT (15500) on, without passwords and without fsync: never
# use them for data that matters.
set -eu

action=${1:-}
folder=${2:-}
only=${3:-}
bin=${CITUS_BIN:-/usr/lib/postgresql/16/bin}
port=${CITUS_PORT:-15500}
ports=$(seq -s ' ' "$port" "$((port + ${CITUS_WORKERS:-2}))")

fail() {
    printf '%s\n' "$1" >&2
    exit 1
}

# PostgreSQL refuses to run as root.
as_postgres() {
    if [ "$(id -u)" = 0 ]; then
        runuser -u postgres -- "$@"
    else
        "$@"
    fi
}

create() {
    as_postgres "$bin/initdb" --pgdata="$1" --username=postgres --auth=trust \
        --encoding=UTF8 --no-locale --no-sync > /dev/null
    as_postgres tee -a "$1/postgresql.conf" > /dev/null << SETTINGS
listen_addresses = '127.0.0.1'
port = $2
unix_socket_directories = '$folder'
shared_preload_libraries = 'citus'
max_connections = 300
max_worker_processes = 64
max_prepared_transactions = 300
wal_level = logical
citus.node_conninfo = 'sslmode=prefer'
fsync = off
synchronous_commit = off
full_page_writes = off
SETTINGS
}

start() {
    [ -n "$folder" ] || fail "Name a folder for the nodes."
    [ -x "$bin/initdb" ] || fail "There is no PostgreSQL in $bin: set CITUS_BIN."
    [ -e "$("$bin/pg_config" --sharedir)/extension/citus.control" ] ||
        fail "The PostgreSQL in $bin has no extension citus."
    mkdir -p "$folder"
    [ "$(id -u)" != 0 ] || chown postgres "$folder"
    for each in $ports; do
        [ -d "$folder/$each" ] || create "$folder/$each" "$each"
        as_postgres "$bin/pg_ctl" --pgdata="$folder/$each" status > /dev/null && continue
        as_postgres "$bin/pg_ctl" --pgdata="$folder/$each" --log="$folder/$each.log" \
            --wait start > /dev/null
    done
}

# A single node keeps its data, although it does not sync.
stop() {
    [ -n "$folder" ] || fail "Name the folder of the nodes."
    mode=immediate
    [ -z "$only" ] || mode=fast
    for each in ${only:-$ports}; do
        as_postgres "$bin/pg_ctl" --pgdata="$folder/$each" --mode="$mode" stop > /dev/null || :
    done
}

# The first is the coordinator.
urls() {
    for each in $ports; do
        printf 'postgresql://postgres@127.0.0.1:%s/postgres ' "$each"
    done
}

case $action in
    start | stop | urls) "$action" ;;
    *) fail "Usage: nodes.sh start FOLDER, stop FOLDER [PORT], or nodes.sh urls" ;;
esac

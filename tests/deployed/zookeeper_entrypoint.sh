#!/bin/sh
# What the image zookeeper:3.9 does at its start, as far as deploy/ uses it: root gives the directories to the user
# zookeeper and becomes it; variables become the configuration.
set -eu
if [ "$(id -u)" = 0 ]; then
    chown -R zookeeper /data /datalog /logs
    exec gosu zookeeper "$0" "$@"
fi
cat > /conf/zoo.cfg <<END
dataDir=/data
dataLogDir=/datalog
clientPort=2181
tickTime=2000
maxClientCnxns=${ZOO_MAX_CLIENT_CNXNS:-60}
autopurge.purgeInterval=${ZOO_AUTOPURGE_PURGEINTERVAL:-0}
admin.enableServer=false
END
exec java -Xmx256m -cp '/zookeeper/*' org.apache.zookeeper.server.quorum.QuorumPeerMain /conf/zoo.cfg

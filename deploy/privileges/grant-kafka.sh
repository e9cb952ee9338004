#!/bin/sh
# The access rules of oncewatch's user in Apache Kafka 3.0 or later, and no more.
#
#   grant-kafka.sh --bootstrap-server HOST:PORT --command-config admin.properties …
#
# Nothing is needed on the cluster. For single topics and groups write
# --topic NAME and --group NAME without --resource-pattern-type: what has no rule
# costs only its own series, is counted in oncewatch_errors_total{kind="denied"}
# and named in the log.
set -eu
principal=${ONCEWATCH_PRINCIPAL:-User:oncewatch}

# Metadata, offsets and times of records; retention and cleanup policy.
kafka-acls.sh "$@" --add --allow-principal "$principal" \
	--operation Describe --operation DescribeConfigs --topic '*'

# State, members and commits.
kafka-acls.sh "$@" --add --allow-principal "$principal" \
	--operation Describe --group '*'

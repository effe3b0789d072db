#!/bin/sh
# Adds the fields for domain names to the schemas of Calico's custom resources. An API server drops
# fields that a schema lacks, and a rule without its domains would allow all destinations; so
# `tortie apply` refuses such objects until the fields are there. Run it again after an upgrade of
# Calico, whose manifests replace the schemas. KUBECTL may be another client.
set -eu

group=${1:-crd.projectcalico.org}
kubectl=${KUBECTL:-kubectl}
list='{"type": "array", "items": {"type": "string"}}'
spec=/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties

add() {
	$kubectl patch crd "$1.$group" --type=json -p "[{\"op\": \"add\", \"path\": \"$spec/$2\", \"value\": $list}]"
}

for policies in networkpolicies globalnetworkpolicies stagednetworkpolicies stagedglobalnetworkpolicies; do
	add "$policies" egress/items/properties/destination/properties/domains
done
for sets in networksets globalnetworksets; do
	add "$sets" allowedEgressDomains
done

#!/bin/sh
# Adds the fields for domain names to the schemas of Calico's custom resources. An API server drops
# fields that a schema lacks, and a rule without its domains would allow all destinations; so
# `tortie apply` refuses such objects until the fields are there. Kinds that the cluster lacks are
# named and skipped. KUBECTL may be another client.
#
# Manifests of Calico replace the schemas, and the API server then drops the fields of stored rules
# as well: add the fields to new manifests before they are applied, see
# docs/book/src/concepts/domains.md. Afterwards, this program is too late for rules in force.
set -eu

group=${1:-crd.projectcalico.org}
kubectl=${KUBECTL:-kubectl}
list='{"type": "array", "items": {"type": "string"}}'
spec=/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties

add() {
	# A failure to look ends the program; only a missing kind is skipped.
	found=$($kubectl get crd "$1.$group" --ignore-not-found -o name)
	if [ -z "$found" ]; then
		echo "$1.$group: not in this cluster; skipped" >&2
		return
	fi
	$kubectl patch crd "$1.$group" --type=json -p "[{\"op\": \"add\", \"path\": \"$spec/$2\", \"value\": $list}]"
}

# Sets come first: without their field, they allow less.
for sets in networksets globalnetworksets; do
	add "$sets" allowedEgressDomains
done
for policies in networkpolicies globalnetworkpolicies stagednetworkpolicies stagedglobalnetworkpolicies; do
	add "$policies" egress/items/properties/destination/properties/domains
done

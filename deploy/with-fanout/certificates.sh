#!/bin/sh
# Writes an authority and the certificates of the fan-out and the agents to a new directory. The authority's key is deleted.
# Usage: certificates.sh DIRECTORY [DAYS]
set -eu
umask 077
mkdir "$1"
cd "$1"
days=${2:-3650}
key() { openssl ecparam -name prime256v1 -genkey -noout | openssl pkcs8 -topk8 -nocrypt -out "$1"; }
key ca-key.pem
openssl req -x509 -new -key ca-key.pem -days "$days" -subj /CN=tortie-fanout-ca -out ca.pem
for side in fanout agent; do
  mkdir "$side"
  key "$side/key.pem"
  openssl req -new -key "$side/key.pem" -subj "/CN=tortie-$side" -out "$side/request.pem"
  printf 'subjectAltName=DNS:tortie-%s\nbasicConstraints=CA:FALSE\nextendedKeyUsage=serverAuth,clientAuth\n' "$side" >extensions
  openssl x509 -req -in "$side/request.pem" -CA ca.pem -CAkey ca-key.pem -set_serial "0x$(openssl rand -hex 15)" \
    -days "$days" -extfile extensions -out "$side/cert.pem" 2>/dev/null
  cp ca.pem "$side/ca.pem"
  rm "$side/request.pem" extensions
done
rm ca-key.pem ca.pem

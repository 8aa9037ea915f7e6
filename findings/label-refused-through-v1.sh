#!/bin/sh
# k8s.io/kubernetes v1.37.2, PodCertificateRequests of certificates.k8s.io/v1beta1 and v1: the conversions and the
# validation that kube-apiserver uses.
#
# Expected: an object that exists can be labelled through each version that serves it.
# Seen: v1 has no pkixPublicKey and no proofOfPossession. A request that a client of v1beta1 has made with them loses them
# in v1, and as the spec is immutable, each update of it through v1 is refused, also one of a label, an annotation or a
# finalizer: the error names the spec, which the client has not touched. A kube-apiserver 1.37.2 answers 422.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
export GOFLAGS=-mod=mod GOWORK=off
go mod init example.com/finding >/dev/null 2>&1
cat >main.go <<'GO'
package main

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/certificates"
	_ "k8s.io/kubernetes/pkg/apis/certificates/install"
	"k8s.io/kubernetes/pkg/apis/certificates/validation"
)

const made = `{"apiVersion": "certificates.k8s.io/v1beta1", "kind": "PodCertificateRequest",
"metadata": {"name": "req", "namespace": "default", "resourceVersion": "1"}, "spec": {"signerName": "example.com/signer",
"podName": "pod", "podUID": "1", "serviceAccountName": "sa", "serviceAccountUID": "2", "nodeName": "node", "nodeUID": "3",
"maxExpirationSeconds": 86400, "pkixPublicKey": "a2V5", "proofOfPossession": "cHJvb2Y="}}`

func decode(text []byte) *certificates.PodCertificateRequest {
	object, err := runtime.Decode(legacyscheme.Codecs.UniversalDecoder(certificates.SchemeGroupVersion), text)
	if err != nil {
		panic(err)
	}
	return object.(*certificates.PodCertificateRequest)
}

func main() {
	stored := decode([]byte(made))
	for _, version := range []string{"v1beta1", "v1"} {
		codec := legacyscheme.Codecs.LegacyCodec(schema.GroupVersion{Group: "certificates.k8s.io", Version: version})
		seen, err := runtime.Encode(codec, stored)
		if err != nil {
			panic(err)
		}
		labelled := decode(seen)
		labelled.Labels = map[string]string{"a": "b"}
		answer := "accepted"
		for _, e := range validation.ValidatePodCertificateRequestUpdate(labelled, stored) {
			answer = "refused, " + e.Field + ": " + e.Detail
		}
		fmt.Printf("a label through %s: %s\n", version, answer)
	}
}
GO
go get k8s.io/api@v0.37.2 k8s.io/apimachinery@v0.37.2 >/dev/null 2>&1
# k8s.io/kubernetes requires these at v0.0.0.
file=$(go mod download -json k8s.io/kubernetes@v1.37.2 | sed -n 's/.*"GoMod": "\(.*\)".*/\1/p')
go mod edit -require=k8s.io/kubernetes@v1.37.2
for module in $(sed -n 's/^\t\(k8s.io\/[a-z-]*\) v0.0.0\( .*\)*$/\1/p' "$file"); do
	go mod edit -require="$module@v0.37.2"
done
go run . | tee seen
cat >expected <<'TEXT'
a label through v1beta1: accepted
a label through v1: refused, spec: field is immutable
TEXT
cmp expected seen
echo "still so"

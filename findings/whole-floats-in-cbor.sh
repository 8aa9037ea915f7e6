#!/bin/sh
# k8s.io/apimachinery v0.37.2, the serializers for JSON and CBOR, and an unstructured object.
#
# Expected: an object that a client may send as JSON may be sent as CBOR too. encoding/json reads every number as a
# float64, and clients have always sent such objects, because 3.0 is written as 3.
# Seen: in CBOR the number stays a floating-point one, and an integer field refuses it. So a program whose objects come
# from encoding/json, or from a YAML library over it, stops working on the day when its client prefers CBOR
# (ClientsAllowCBOR and ClientsPreferCBOR, which a program also gets by importing k8s.io/kubernetes/pkg/features and
# turning all alpha gates on). Objects that unstructured.UnmarshalJSON has read have integers.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
export GOFLAGS=-mod=mod GOWORK=off
go mod init example.com/finding >/dev/null 2>&1
cat >main.go <<'GO'
package main

import (
	"encoding/json"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	kjson "k8s.io/apimachinery/pkg/runtime/serializer/json"
)

const text = `{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {"replicas": 3}}`

func main() {
	object := map[string]any{}
	if err := json.Unmarshal([]byte(text), &object); err != nil {
		panic(err)
	}
	scheme := runtime.NewScheme()
	if err := appsv1.AddToScheme(scheme); err != nil {
		panic(err)
	}
	for _, s := range []struct {
		name string
		runtime.Serializer
	}{
		{"JSON", kjson.NewSerializerWithOptions(kjson.DefaultMetaFactory, scheme, scheme, kjson.SerializerOptions{})},
		{"CBOR", cbor.NewSerializer(scheme, scheme)},
	} {
		sent, err := runtime.Encode(s, &unstructured.Unstructured{Object: object})
		if err != nil {
			panic(err)
		}
		received, err := runtime.Decode(s, sent)
		if err != nil {
			fmt.Printf("%s: %v\n", s.name, err)
			continue
		}
		fmt.Printf("%s: %d replicas\n", s.name, *received.(*appsv1.Deployment).Spec.Replicas)
	}
}
GO
go get k8s.io/apimachinery@v0.37.2 k8s.io/api@v0.37.2 >/dev/null 2>&1
go run . >seen
cat seen
cat >want <<'END'
JSON: 3 replicas
CBOR: cbor: cannot unmarshal primitives into Go struct field v1.Deployment.spec of type int32
END
cmp seen want

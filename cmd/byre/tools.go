//go:build tools

package main

// Kubernetes' staging modules are required at one version, by name. `go mod
// tidy` drops those that nothing imports, and a later import would then ask for
// v0.0.0, which does not exist: what is to come is named here.
import (
	_ "k8s.io/kube-aggregator/pkg/controllers/autoregister"
	_ "k8s.io/kube-aggregator/pkg/controllers/status/remote"
)

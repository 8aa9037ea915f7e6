package controllers

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/kubernetes/cmd/kube-controller-manager/names"
)

// aliases returns the former names of the controllers, which --controllers accepts too.
func aliases() map[string]string {
	return map[string]string{
		"namespace":               names.NamespaceController,
		"garbagecollector":        names.GarbageCollectorController,
		"serviceaccount":          names.ServiceAccountController,
		"root-ca-cert-publisher":  names.RootCACertificatePublisherController,
		"clusterrole-aggregation": names.ClusterRoleAggregationController,
		"resourcequota":           names.ResourceQuotaController,
	}
}

// Names returns the names of all controllers, sorted.
func Names() []string {
	return slices.Sorted(maps.Keys(constructors()))
}

// Select returns the controllers that a list in the syntax of --controllers selects: "*"
// selects every controller, "foo" the controller foo, and "-foo" excludes it. The first
// mention of a controller counts. An empty list selects none. A name that the server does
// not have is an error, unless the list excludes it.
func Select(list []string) ([]string, error) {
	all := Names()
	chosen := make(map[string]bool)
	star := false
	for _, item := range list {
		name, without := strings.CutPrefix(item, "-")
		if item == "*" {
			star = true
			continue
		}
		if full, ok := aliases()[name]; ok {
			name = full
		}
		if _, ok := slices.BinarySearch(all, name); !ok && !without {
			return nil, fmt.Errorf("%q is not in the list of known controllers: %s", name, strings.Join(all, ", "))
		}
		if _, mentioned := chosen[name]; !mentioned {
			chosen[name] = !without
		}
	}
	return slices.DeleteFunc(all, func(name string) bool {
		on, mentioned := chosen[name]
		return mentioned && !on || !mentioned && !star
	}), nil
}

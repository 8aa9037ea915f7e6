package controllers

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Names returns the names of all controllers, sorted.
func Names() []string {
	return slices.Sorted(maps.Keys(descriptors()))
}

// Select returns the controllers that a list in the syntax of --controllers selects: "*"
// selects every controller that is on by default, "foo" the controller foo, and "-foo"
// excludes it. With withControllerManager, all that kube-controller-manager runs by
// default are on by default. The first mention of a controller counts. An empty list
// selects none. A name that the server does not have is an error, unless the list
// excludes it.
func Select(list []string, withControllerManager bool) ([]string, error) {
	known := descriptors()
	byAlias := make(map[string]string)
	for name, d := range known {
		byAlias[d.alias] = name
	}
	chosen := make(map[string]bool)
	star := false
	for _, item := range list {
		name, without := strings.CutPrefix(item, "-")
		if item == "*" {
			star = true
			continue
		}
		if full, ok := byAlias[name]; ok && name != "" {
			name = full
		}
		if _, ok := known[name]; !ok && !without {
			return nil, fmt.Errorf("%q is not in the list of known controllers: %s", name, strings.Join(Names(), ", "))
		}
		if _, mentioned := chosen[name]; !mentioned {
			chosen[name] = !without
		}
	}
	return slices.DeleteFunc(Names(), func(name string) bool {
		if on, mentioned := chosen[name]; mentioned {
			return !on
		}
		c := known[name].class
		return !star || c == named || c == workload && !withControllerManager
	}), nil
}

package server

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"byre/apiserver/registry"
	"byre/sqlstore"
)

// warnOfUnknownResources logs the names in flags that select no resource, with the name that may have
// been meant. It is no error: a definition of a custom resource may come later.
func warnOfUnknownResources(ctx context.Context, driver sqlstore.Driver, o StoreOptions, logger *slog.Logger) error {
	flags := map[string][]string{"--retention-for": slices.Sorted(maps.Keys(o.RetentionFor)), "--volatile": o.Volatile}
	if len(o.RetentionFor)+len(o.Volatile) == 0 {
		return nil
	}
	known, err := knownResources(ctx, driver)
	if err != nil {
		return err
	}
	for _, flag := range slices.Sorted(maps.Keys(flags)) {
		for _, name := range flags[flag] {
			if nearest, isKnown := lookUpResource(name, known); !isKnown {
				logger.Warn("A flag names a resource that this server does not know: it has no effect before there is such a resource",
					"flag", flag, "resource", name, "nearest", nearest)
			}
		}
	}
	return nil
}

// knownResources returns the built-in resources, those of CustomResourceDefinitions, and those that have
// ever had an object.
func knownResources(ctx context.Context, driver sqlstore.Driver) ([]schema.GroupResource, error) {
	definitions := schema.GroupResource{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}
	known := append(registry.Resources(), definitions, schema.GroupResource{Group: "apiregistration.k8s.io", Resource: "apiservices"})
	histories, err := driver.Histories(ctx)
	if err != nil {
		return nil, err
	}
	for _, h := range histories {
		known = append(known, schema.GroupResource{Group: h.Group, Resource: h.Resource.Resource})
	}
	q := sqlstore.Query{Range: sqlstore.Range{Group: definitions.Group, Resource: definitions.Resource}, KeysOnly: true}
	_, err = driver.List(ctx, q, func(r sqlstore.Record) error {
		known = append(known, schema.ParseGroupResource(r.Name)) // plural.group
		return nil
	})
	return known, err
}

// lookUpResource reports whether a name such as deployments.apps, leases or * selects a known resource.
// If not, nearest is the one that is most like it; empty if none is.
func lookUpResource(name string, known []schema.GroupResource) (nearest string, isKnown bool) {
	of := schema.ParseGroupResource(name)
	least := 1 + len(name)/3
	for _, k := range known {
		if name == "*" || k == of || of.Group == "" && k.Resource == of.Resource {
			return "", true
		}
		for _, candidate := range []string{k.Resource, k.String()} {
			if d := distance(name, candidate); d < least || d == least && nearest != "" && candidate < nearest {
				nearest, least = candidate, d
			}
		}
	}
	return nearest, false
}

// distance is Levenshtein's: how many letters are to be added, removed or replaced to get b from a.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(row[j]+1, row[j+1]+1, replaced)
		}
	}
	return row[len(b)]
}

// unknownResource says that no history is that of a name; see lookUpResource.
func unknownResource(name string, histories []sqlstore.History) string {
	var known []schema.GroupResource
	for _, h := range histories {
		known = append(known, schema.GroupResource{Group: h.Group, Resource: h.Resource.Resource})
	}
	text := fmt.Sprintf("no resource %q has ever had an object", name)
	if nearest, _ := lookUpResource(name, known); nearest != "" {
		text += ": did you mean " + nearest + "?"
	}
	return text
}

package query

import (
	"context"
	"iter"
	"maps"
	"slices"
	"strings"
)

// edge is a table of what an object has several of. It is made of the tables of the objects, and so shows what
// its reader sees of these. Its columns begin with the resource, the namespace and the name of the object.
type edge struct {
	description string
	columns     []Column
	// tables are those that the edge is made of; nil for all. selects says that it needs the Pods beside.
	tables  []string
	selects bool
	// about is the path of the name of the object that an object of the table tells of, of which the rows then are;
	// nil if they are of the objects themselves.
	about []string
	// rowsOf makes the rows of an object from the JSON at paths.
	paths  [][]string
	rowsOf rowsOf
}

// edges are the edges by their names.
var edges = map[string]edge{
	"labels": {
		description: "The labels of all objects.",
		paths:       [][]string{{"metadata", "labels"}},
		rowsOf:      membersOf,
		columns: append(edgeColumns(),
			NewColumn("key", Text, "The key of the label."),
			NewColumn("value", Text, "The value of the label."),
		),
	},
	"annotations": {
		description: "The annotations of all objects.",
		paths:       [][]string{{"metadata", "annotations"}},
		rowsOf:      membersOf,
		columns: append(edgeColumns(),
			NewColumn("key", Text, "The key of the annotation."),
			NewColumn("value", Text, "The value of the annotation."),
		),
	},
	"owners": {
		description: "The owners of all objects.",
		paths:       [][]string{{"metadata", "ownerReferences"}},
		rowsOf:      listOf,
		columns: append(edgeColumns(),
			NewColumn("kind", Text, "The kind of the owner.", "metadata", "ownerReferences", "kind"),
			NewColumn("owner", Text, "The name of the owner.", "metadata", "ownerReferences", "name"),
			NewColumn("uid", Text, "The UID of the owner.", "metadata", "ownerReferences", "uid"),
			NewColumn("controller", Boolean, "Whether the owner controls the object.", "metadata", "ownerReferences", "controller"),
		),
	},
	"conditions": {
		description: "The conditions in the status of all objects.",
		paths:       [][]string{{"status", "conditions"}},
		rowsOf:      listOf,
		columns: append(edgeColumns(),
			NewColumn("type", Text, "What the condition is about, such as Ready.", "status", "conditions", "type"),
			NewColumn("status", Text, "True, False or Unknown.", "status", "conditions", "status"),
			NewColumn("reason", Text, "Why, in one word.", "status", "conditions", "reason"),
			NewColumn("message", Text, "Why, for people.", "status", "conditions", "message"),
			NewColumn("changed", Time, "When the status last changed.", "status", "conditions", "lastTransitionTime"),
		),
	},
	"containers": {
		description: "The containers of Pods, with their state.",
		columns: append(edgeColumns(),
			NewColumn("kind", Text, "main, init or ephemeral."),
			NewColumn("container", Text, "The name of the container."),
			NewColumn("image", Text, "The image that is asked for."),
			NewColumn("cpu_request", Real, "In cores; NULL without a request."),
			NewColumn("memory_request", Real, "In bytes."),
			NewColumn("cpu_limit", Real, "In cores; NULL without a limit."),
			NewColumn("memory_limit", Real, "In bytes."),
			NewColumn("state", Text, "waiting, running or terminated; NULL before the kubelet has told."),
			NewColumn("reason", Text, "Why it is in that state, such as CrashLoopBackOff."),
			NewColumn("ready", Boolean, "Whether it passes its readiness probe."),
			NewColumn("restarts", Integer, "How often it was started again."),
		),
		tables: []string{podsTable},
		paths:  containerLists,
		rowsOf: containersOf,
	},
	"container_env_refs": {
		description: "Where the variables of the containers of Pods come from, if not from a text.",
		columns: append(edgeColumns(),
			NewColumn("container", Text, "The name of the container."),
			NewColumn("variable", Text, "The name of the variable; NULL if all keys of the source become variables."),
			NewColumn("type", Text, "configMap, secret, field, resource or file."),
			NewColumn("source", Text, "The name of the ConfigMap, Secret, container or volume; NULL for the Pod itself."),
			NewColumn("key", Text, "The key or the field; NULL for all keys."),
			NewColumn("optional", Boolean, "Whether the container starts without the source."),
		),
		tables: []string{podsTable},
		paths:  containerLists[:3],
		rowsOf: envRefsOf,
	},
	"volumes": {
		description: "The volumes of Pods. A projected volume has a row for each of its sources besides.",
		columns: append(edgeColumns(),
			NewColumn("volume", Text, "The name of the volume."),
			NewColumn("type", Text, "Where it comes from: configMap, secret, persistentVolumeClaim, emptyDir, …"),
			NewColumn("source", Text, "The name of the ConfigMap, Secret or claim; NULL for other types."),
		),
		tables: []string{podsTable},
		paths:  [][]string{{"spec", "volumes"}},
		rowsOf: volumesOf,
	},
	"selectors": {
		description: "The Pods that the selector of a workload, Service, PodDisruptionBudget or NetworkPolicy selects.",
		columns:     append(edgeColumns(), NewColumn("pod", Text, "The name of the Pod, which is in the same namespace.")),
		tables:      slices.Sorted(maps.Keys(selectorMembers)),
		selects:     true,
		paths:       [][]string{{"spec"}},
		rowsOf:      selectedOf,
	},
	"events_about": {
		description: "Events, by the object that they are about.",
		columns: append([]Column{
			NewColumn("resource", Text, "The resource of the object; NULL for a kind that is not served."),
		}, append(edgeColumns()[edgeNamespace:],
			NewColumn("type", Text, "Normal or Warning."),
			NewColumn("reason", Text, "What has happened, in one word, such as FailedScheduling."),
			NewColumn("message", Text, "What has happened, for people."),
			NewColumn("count", Integer, "How often it has happened."),
			NewColumn("first", Time, "When it happened first."),
			NewColumn("last", Time, "When it happened last."),
			NewColumn("reporter", Text, "The component that has told."),
		)...),
		tables: []string{"events"},
		about:  []string{"involvedObject", "name"},
		paths:  eventPaths,
		rowsOf: toldOf,
	},
	"node_taints": {
		description: "The taints of Nodes.",
		columns: append(edgeColumns(),
			NewColumn("key", Text, "The key of the taint.", "spec", "taints", "key"),
			NewColumn("value", Text, "The value of the taint.", "spec", "taints", "value"),
			NewColumn("effect", Text, "NoSchedule, PreferNoSchedule or NoExecute.", "spec", "taints", "effect"),
		),
		tables: []string{"nodes"},
		paths:  [][]string{{"spec", "taints"}},
		rowsOf: listOf,
	},
	"rbac_rules": {
		description: "What Roles and ClusterRoles allow: a row for each API group, resource and verb of a rule.",
		columns: append(edgeColumns(),
			NewColumn("api_group", Text, "The API group; * is all."),
			NewColumn("rule_resource", Text, "The resource, or resource/subresource; * is all."),
			NewColumn("verb", Text, "The verb; * is all."),
			NewColumn("resource_names", JSON, "The only objects that the rule is for; NULL for all."),
		),
		tables: []string{"roles", "clusterroles"},
		paths:  [][]string{{"rules"}},
		rowsOf: rulesOf,
	},
}

func edgeColumns() []Column {
	return []Column{
		NewColumn("resource", Text, "The resource of the object: the shortest name of its table."),
		NewColumn("namespace", Text, "The namespace of the object; empty for an object without one."),
		NewColumn("name", Text, "The name of the object."),
		{Name: momentName, Type: Text}, // the argument of the edge as a function: labels('-1h')
	}
}

// containerLists are the paths of the containers of a Pod, and then of their statuses: main, init and ephemeral ones.
var containerLists = [][]string{
	{"spec", "containers"}, {"spec", "initContainers"}, {"spec", "ephemeralContainers"},
	{"status", "containerStatuses"}, {"status", "initContainerStatuses"}, {"status", "ephemeralContainerStatuses"},
}

// declareEdges makes the edges known that a statement may name, and their functions.
func (e *engine) declareEdges(ctx context.Context, tables Tables, sql string) error {
	known := newResources(ctx, tables)
	if err := e.addFunctions(known); err != nil {
		return err
	}
	for name, edge := range edgesIn(sql) {
		if err := e.declareEdgeTable(name, edge, known); err != nil {
			return err
		}
	}
	return nil
}

// edgesIn yields the edges that a statement may name: an edge that it does name is in its text.
func edgesIn(sql string) iter.Seq2[string, edge] {
	return func(yield func(string, edge) bool) {
		sql = strings.ToLower(sql)
		for name, edge := range edges {
			if strings.Contains(sql, name) && !yield(name, edge) {
				return
			}
		}
	}
}
